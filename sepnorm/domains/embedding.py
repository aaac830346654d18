"""One vector for each text, image or molecule, in the order of the data, to a file; and encoders as modules to train or export."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sepnorm.data.records import IMAGES, Record, label_and_name, read_images, to_image
from sepnorm.domains.encoders import Encoded, Encoder, in_order, open_encoder
from sepnorm.errors import SepNormError, nearest
from sepnorm.files import regular_files, write_whole
from sepnorm.layer import TokenNorm
from sepnorm.surgery.families import is_timm, is_transformers

POOLINGS = ("cls", "mean")
FORMATS = (".parquet", ".npy")
_ROWS = 4096  # of a group in a parquet file

Progress = Callable[[int, int | None], None]


@dataclass(eq=False)
class Written:
    """How many vectors of which length were written, and how many inputs were empty or unreadable."""

    count: int
    dim: int
    left_out: int


def write_embeddings(
    target: str,
    data: str,
    out: Path,
    *,
    pooling: str = "cls",
    column: str | None = None,
    split: str = "train",
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Written:
    """Runs a model on data and writes [CLS], or the mean of tokens, to a ``.parquet`` or ``.npy`` file, whole or not at all."""
    if out.suffix.lower() not in FORMATS:
        raise SepNormError(f"embeddings are written to {' or '.join(FORMATS)} files, found {out.name}: change --out.")
    choose("pooling", pooling, POOLINGS)
    encoder = open_encoder(model_folder(target))
    to_fastest_device(encoder.model)
    left_out: list[str] = []
    records = _records(encoder, data, column, split, left_out)
    rows = _reported(_vectors(encoder, records, pooling, batch_size, data), progress)
    make_folder(out.parent)
    found: list[Written] = []
    write = _write_parquet if out.suffix.lower() == ".parquet" else _write_npy
    write_whole(out, lambda scratch: found.append(write(scratch, rows)))
    found[0].left_out += len(left_out)
    return found[0]


def choose(what: str, name: str, known: tuple[str, ...]) -> str:
    """The name, if it is known."""
    if name not in known:
        raise SepNormError(f"there is no {what} {name!r}: there are {', '.join(known)}.{nearest(name, known)}")
    return name


def model_folder(target: str) -> str:
    """The model of a finished run, where the run's folder is named; else the target itself."""
    folder = Path(target)
    if not folder.exists() and (target.startswith((".", "/", "~")) or target.count("/") > 1):
        raise SepNormError(f"there is no model {target}: it is neither a folder here nor a name of the hub.")
    return str(folder / "model") if (folder / "metrics.json").is_file() else target


def make_folder(folder: Path) -> None:
    """Makes a folder that can be written to, or says that it cannot be, before anything is computed for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SepNormError(f"the folder {folder} cannot be made ({error.strerror}): change --out.") from error
    if not os.access(folder, os.W_OK):
        raise SepNormError(f"the folder {folder} cannot be written to: change --out.")


def to_fastest_device(model: nn.Module) -> None:
    if torch.cuda.is_available():
        model.to("cuda")


def pooled(encoded: Encoded, pooling: str, kind: str) -> Tensor:
    """(batch, dim): [CLS], or the mean of tokens without padding: of text with [CLS], as sentence-transformers has it."""
    if pooling == "cls":
        return encoded.cls.float().cpu()
    keep = encoded.keep.to(encoded.tokens.device)[..., None]
    total, count = encoded.tokens.masked_fill(~keep, 0).sum(1), keep.sum(1)
    if kind == "text":
        total, count = total + encoded.cls, count + 1
    return (total / count.clamp(min=1)).float().cpu()


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether a norm that ``convert`` put there has some."""
    norms = [module for module in model.modules() if isinstance(module, TokenNorm)]
    return any(isinstance(child, _BatchNorm) for norm in norms for child in norm.children())


class Body(nn.Module):
    """A copy of an encoder as a module from its inputs to [CLS] (batch, dim) and all last hidden states (batch, tokens, dim).

    Images are seen whole and in order by masked autoencoders too.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        inner: Any = next(module for module in model.modules() if is_timm(module) or is_transformers(module))
        self.inner: Any = copy.deepcopy(inner if is_timm(inner) else inner.base_model)
        self.masked = getattr(getattr(inner, "config", None), "mask_ratio", None) is not None
        if self.masked:
            self.inner.config.mask_ratio = 0.0


class ImageBody(Body):
    """Takes ``pixel_values`` (batch, channels, height, width)."""

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        if is_timm(self.inner):
            hidden = self.inner.forward_features(pixel_values)
        else:
            order = {"noise": in_order(self.inner, len(pixel_values)).to(pixel_values.device)} if self.masked else {}
            hidden = self.inner(pixel_values, **order).last_hidden_state
        return hidden[:, 0], hidden


class TextBody(Body):
    """Takes what a tokeniser gives, each (batch, tokens)."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.inner(input_ids=input_ids, attention_mask=attention_mask, **kinds).last_hidden_state
        return hidden[:, 0], hidden


# ---- reading ------------------------------------------------------------------------------------------------------------


def _records(encoder: Encoder, data: str, column: str | None, split: str, left_out: list[str]) -> Iterator[Record]:
    """What the encoder's reader gives, and for images also a folder in its order and the names that runs know."""
    if encoder.kind == "molecules":
        return iter(encoder.prepare.read(data, column, split, left_out))
    if encoder.kind != "images":
        return encoder.read(data, column, split)
    from sepnorm.domains.images.data import KNOWN, load_images

    path = Path(data)
    if data == "digits" or (path.is_dir() and any("-ubyte" in file.name for file in path.iterdir())):
        size, channels = encoder.prepare.size[0], len(encoder.prepare.mean)
        found = load_images(data, size, channels)
        return _loaded(found.test if split == "test" else found.train, split)
    if path.is_dir():
        return _folder(path, left_out)
    known = KNOWN.get(data, {}) if not path.exists() else {}
    return read_images(known.get("name", data), column, split, known.get("label"))


def _folder(path: Path, left_out: list[str]) -> Iterator[Record]:
    """The images below a folder, sorted by path; the folder of each is its label."""
    files, others = regular_files(path, IMAGES)
    left_out += [label_and_name(file, path)[1] for file in others]
    for file in files:
        label, name = label_and_name(file, path)
        try:
            yield Record(to_image(file), label, name)
        except Exception:  # whatever damage makes Pillow raise
            left_out.append(name)
    if len(left_out) == len(files) + len(others):
        reason = f"{left_out[0]} cannot be read" if left_out else f"it has no {', '.join(IMAGES)} files"
        raise SepNormError(f"{path} holds no image: {reason}.")


def _loaded(images: Any, split: str) -> Iterator[Record]:
    from PIL import Image

    for number, pixels in enumerate(images.images):
        image = Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy())
        label = None if images.labels is None else images.classes[int(images.labels[number])]
        yield Record(image, label, f"{split} {number + 1}")


# ---- encoding and writing -----------------------------------------------------------------------------------------------


def _vectors(
    encoder: Encoder, records: Iterator[Record], pooling: str, batch_size: int, data: str
) -> Iterator[tuple[list[Record], Tensor]]:
    """Records and their vectors (count, dim), in the order of the records."""
    window = batch_size * encoder.window
    empty = True
    with encoder.evaluating():
        while some := list(islice(records, window)):
            empty = False
            place = {id(record): number for number, record in enumerate(some)}  # batches may come in another order
            rows: dict[int, Tensor] = {}
            for part, batch in encoder.batches(iter(some), batch_size):
                vectors = pooled(encoder.encode(batch), pooling, encoder.kind)
                rows |= {place[id(record)]: vector for record, vector in zip(part, vectors, strict=True)}
            yield some, torch.stack([rows[number] for number in range(len(some))])
    if empty:
        raise SepNormError(f"{data} gives nothing to embed: it is empty.")


def _reported(parts: Iterator[tuple[list[Record], Tensor]], progress: Progress | None) -> Iterator[Any]:
    done = 0
    for records, rows in parts:
        yield records, rows
        done += len(records)
        if progress is not None:
            progress(done, None)


def _write_npy(path: str, parts: Iterator[tuple[list[Record], Tensor]]) -> Written:
    import numpy

    with open(path, "wb") as file:  # before anything is computed
        rows, last = [], None
        for records, vectors in parts:
            rows.append(vectors)
            last = records[-1]
        array = torch.cat(rows).numpy()
        # numpy.save would write through a buffer of its own, and say nothing where the disk is full
        numpy.lib.format.write_array_header_1_0(file, numpy.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)
    return Written(len(array), array.shape[1], _skipped(last, len(array)))


def _write_parquet(path: str, parts: Iterator[tuple[list[Record], Tensor]]) -> Written:
    """Columns ``name``, ``label`` if the first records have some, and ``embedding`` as lists of a fixed size."""
    import pyarrow
    import pyarrow.parquet

    def flush() -> None:
        vectors = torch.cat([part for _, part in pending])
        records = [record for part, _ in pending for record in part]
        flat = pyarrow.array(vectors.flatten().numpy())
        columns = {
            "name": [record.name for record in records],
            "label": [record.label for record in records],
            "embedding": pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
        writer.write_table(pyarrow.table([columns[name] for name in schema.names], schema=schema))
        pending.clear()

    pending: list[tuple[list[Record], Tensor]] = []
    writer: Any = None
    count = 0
    with open(path, "wb") as file:
        try:
            for records, vectors in parts:
                if writer is None:
                    text = pyarrow.string()
                    label = [("label", text)] if any(record.label is not None for record in records) else []
                    kind = pyarrow.list_(pyarrow.float32(), vectors.shape[1])
                    schema = pyarrow.schema([("name", text), *label, ("embedding", kind)])
                    writer = pyarrow.parquet.ParquetWriter(file, schema)
                pending.append((records, vectors))
                count += len(records)
                if sum(len(part) for part, _ in pending) >= _ROWS:
                    flush()
            if pending:
                flush()
        finally:
            if writer is not None:
                writer.close()
    return Written(count, vectors.shape[1], _skipped(records[-1], count))


def _skipped(last: Record | None, count: int) -> int:
    """How many lines or rows a reader passed over before its last record, as the number in that one's name tells."""
    kind, _, number = (last.name if last is not None else "").partition(" ")
    return int(number) - count if kind in ("line", "row") and number.isdigit() else 0
