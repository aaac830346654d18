"""``sepnorm embed``: writes one vector for each text, image or molecule to a file, in the order of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.records import LeftOut, Record
from sepnorm.domains.encoders import Encoded, Encoder, open_encoder
from sepnorm.domains.healing.maps import healed_pooling
from sepnorm.domains.requests import NEED_CLS, check_embedding
from sepnorm.domains.targets import find_model
from sepnorm.errors import SepNormError
from sepnorm.files import make_folder, write_whole
from sepnorm.training.devices import check_device

_ROWS = 4096  # rows of a row group in a parquet file

Progress = Callable[[int, int | None], None]


@dataclass(eq=False)
class Written:
    """Result of ``write_embeddings``.

    Args:
        count: number of vectors written.
        dim: their length.
        left_out: number of inputs that were empty or unreadable.
    """

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
    device: str = "auto",
    progress: Progress | None = None,
) -> Written:
    """Runs a model on data and writes one vector for each input.

    The file is written whole or not at all. Rows are in the order of the data.

    Args:
        target: a model: folder, folder of a run, Hub name, or ``timm:NAME``.
        data: a text file, table, folder of images, SMILES or name of a Hugging Face dataset.
        out: the ``.parquet`` or ``.npy`` file to write. Parquet also has names and labels.
        pooling: ``cls``, ``mean`` (of tokens), ``cls+mean``, ``moments``; or ``healed`` for a folder that ``heal``
            wrote.
        column: column with the texts or images; needed if several fit.
        split: split of a Hugging Face dataset.
        batch_size: samples in a batch.
        device: ``auto`` for the fastest, or torch's name of a device.
        progress: called with the number of samples done, and None.

    Returns:
        Number and length of the vectors, and number of inputs left out.

    Raises:
        SepNormError: if the model, the data or an argument cannot be used.
    """
    check_embedding(target, data, out, pooling)
    check_device(device)
    encoder = open_encoder(target)
    if pooling in NEED_CLS:
        encoder.require_cls()
    pool = healed_pooling(find_model(target)) if pooling == "healed" else lambda encoded: encoded.pooled(pooling)
    encoder.to_device(device)
    left_out = LeftOut()
    records = encoder.read_in_order(data, column, split, left_out)
    rows = _reported(_vectors(encoder, records, pool, batch_size, data), progress)
    make_folder(out.parent)
    write = _write_parquet if out.suffix.lower() == ".parquet" else _write_npy
    count, dim = write_whole(out, lambda scratch: write(scratch, rows))
    return Written(count, dim, left_out.count)


def _vectors(
    encoder: Encoder, records: Iterator[Record], pool: Callable[[Encoded], Tensor], batch_size: int, data: str
) -> Iterator[tuple[list[Record], Tensor]]:
    """Yields records and their vectors (count, dim), in the order of the records."""
    window = batch_size * encoder.window
    empty = True
    with encoder.evaluating():
        while some := list(islice(records, window)):
            empty = False
            place = {id(record): number for number, record in enumerate(some)}  # batches may come in another order
            rows: dict[int, Tensor] = {}
            for part, batch in encoder.batches(iter(some), batch_size):
                vectors = pool(encoder.encode(batch))
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


def _write_npy(path: str, parts: Iterator[tuple[list[Record], Tensor]]) -> tuple[int, int]:
    import numpy

    with open(path, "wb") as file:  # opened before anything is computed
        array = torch.cat([vectors for _, vectors in parts]).numpy()
        # numpy.save buffers on its own and does not report a full disk
        numpy.lib.format.write_array_header_1_0(file, numpy.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)
    return array.shape


def _write_parquet(path: str, parts: Iterator[tuple[list[Record], Tensor]]) -> tuple[int, int]:
    """Writes the columns ``name``, ``label`` and ``embedding`` (lists of fixed size); no labels if the first lack them."""
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
    return count, vectors.shape[1]
