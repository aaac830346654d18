"""What ``--data`` may name, read as a stream: texts or images, one record at a time.

Text files, tables (CSV, TSV, JSON, parquet), folders of images, and names of the ``datasets`` library. Nothing is loaded
whole, so that the data may be larger than memory.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import logging
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from sepnorm.errors import SepNormError, nearest

TEXT = (".txt", ".text")
TABLES = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
# without a batch size datasets takes the rows of the first row group for one, and fails where there are none
_OPTIONS: dict[str, dict[str, Any]] = {".tsv": {"sep": "\t", "quoting": 3}, ".parquet": {"batch_size": 256}}
_TEXT_NAMES = ("text", "sentence", "sentence1", "content", "smiles")
_IMAGE_NAMES = ("image", "img", "images", "picture", "jpg", "jpeg", "png", "webp")
_LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "cls")
_MOST_CORRUPT = 0.1  # share of images that may be unreadable
_LONGEST = 10**7  # characters of a line


class Record(NamedTuple):
    """One sample: a text, or an image of Pillow, with its label, a name to show, and the split that its table names."""

    content: Any
    label: str | None
    name: str
    split: str | None = None


def read_texts(source: str, column: str | None = None, split: str = "train") -> Iterator[Record]:
    """The texts of a file, a table or a ``datasets`` name, in their order; empty ones are left out."""
    kind = suffix_of(Path(source))
    if kind in TEXT:
        for number, line in enumerate(text_lines(Path(source)), 1):
            if line := line.strip():
                yield Record(line, None, f"line {number}")
        return
    if Path(source).is_file() and kind not in TABLES:
        raise SepNormError(
            f"{source} is of no kind that texts are read from: give one of {', '.join([*TEXT, *TABLES])} (also .gz, .xz)."
        )
    chosen = label = None
    for number, row in enumerate(rows_of(source, split), 1):
        if chosen is None:
            chosen = choose_column(row, column, _TEXT_NAMES, lambda value: isinstance(value, str), "text", source)
            label = _label_of(row, chosen)
        text = row.get(chosen)
        if isinstance(text, str) and text.strip():
            yield Record(text.strip(), said(row, label), f"row {number}")


def read_images(
    source: str, column: str | None = None, split: str = "train", label: str | None = None, seed: int = 0
) -> Iterator[Record]:
    """The images of a folder (shuffled by the seed; the folder is the label), a table or a ``datasets`` name.

    Images that cannot be read are left out, as long as they are few.
    """
    read = corrupt = 0
    named: list[str] = []
    for record in _encoded_images(source, column, split, label, seed):
        try:
            image = to_image(record.content)
        except Exception as error:  # whatever damage makes Pillow raise
            corrupt += 1
            named.append(f"{record.name} ({error})")
            if corrupt > 10 and corrupt > _MOST_CORRUPT * (read + corrupt):
                raise SepNormError(
                    f"{corrupt} of the first {read + corrupt} images of {source} cannot be read, such as {named[0]}: "
                    "check the files."
                ) from error
            continue
        read += 1
        yield record._replace(content=image)
    if not read:
        found = f", but {corrupt} that cannot be read, such as {named[0]}" if corrupt else ""
        raise SepNormError(f"{source} holds no image{found}: give a folder with {', '.join(IMAGES)} files.")


def to_image(content: Any) -> Any:
    """An RGB image of Pillow from a path, from bytes, from the dictionary of ``datasets``, or from an image."""
    from PIL import Image

    if isinstance(content, dict):
        content = content.get("bytes") or content.get("path")
    if isinstance(content, bytes):
        content = io.BytesIO(content)
    image = content if isinstance(content, Image.Image) else Image.open(content)
    return image.convert("RGB")


def choose_column(
    row: dict[str, Any], column: str | None, names: tuple[str, ...], fits: Any, what: str, source: str
) -> str:
    """The column asked for, or else the one with a usual name, or else the only one that fits."""
    if column is not None:
        if column not in row:
            raise SepNormError(
                f"{source} has no column {column!r}: it has {', '.join(map(str, row))}.{nearest(column, map(str, row))}"
            )
        return column
    # the first row may lack a value, and a label is no text
    fitting = [name for name, value in row.items() if name not in _LABEL_NAMES and (value is None or fits(value))]
    usual = [name for name in names if name in fitting]
    if usual or len(fitting) == 1:
        return (usual or fitting)[0]
    raise SepNormError(
        f"which column of {source} holds the {what} is not clear (it has {', '.join(map(str, row))}): name it by --column."
    )


def _encoded_images(source: str, column: str | None, split: str, wanted: str | None, seed: int) -> Iterator[Record]:
    path = Path(source)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGES)
        Random(seed).shuffle(files)
        for file in files:
            label = file.parent.name if file.parent != path else None
            yield Record(file, label, str(file.relative_to(path)))
        return
    if path.is_file() and suffix_of(path) not in TABLES:
        raise SepNormError(f"{source} is no table of images: give a folder of images, or one of {', '.join(TABLES)}.")
    chosen = label = None
    for number, row in enumerate(rows_of(source, split), 1):
        if chosen is None:
            chosen, label = image_columns(row, column, wanted, source)
        yield Record(row.get(chosen), said(row, label), f"row {number}", said(row, "split"))


def image_columns(row: dict[str, Any], column: str | None, label: str | None, source: str) -> tuple[str, str | None]:
    """The columns of images and, if there is one, of labels, by the first row: those asked for, or those that look so."""
    chosen = choose_column(row, column, _IMAGE_NAMES, _looks_like_image, "images", source)
    return chosen, _label_of(row, chosen, label, source)


def said(row: dict[str, Any], name: str | None) -> str | None:
    """What a row says in a column; a missing value is None, and not a class of that name."""
    value = None if name is None else row.get(name)
    return None if value is None else str(value)


def _looks_like_image(value: Any) -> bool:
    return isinstance(value, bytes) or (isinstance(value, dict) and "bytes" in value) or hasattr(value, "convert")


def _label_of(row: dict[str, Any], chosen: str, wanted: str | None = None, source: str = "") -> str | None:
    if wanted is not None and wanted not in row:
        raise SepNormError(
            f"{source} has no column {wanted!r} for labels: it has {', '.join(map(str, row))}.{nearest(wanted, map(str, row))}"
        )
    return wanted or next((name for name in _LABEL_NAMES if name in row and name != chosen), None)


def suffix_of(path: Path) -> str:
    """The suffix that says what is in a file, without that of its compression."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in _OPENERS else path.suffix.lower()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A text file, packed or not."""
    if not path.is_file():
        raise SepNormError(f"there is no file {path}.")
    opener = _OPENERS.get(path.suffix.lower(), open)
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            yield file
    except (UnicodeDecodeError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise SepNormError(f"{path} cannot be read as text in UTF-8: {error}.") from error


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, packed or not."""
    with _opened(path) as file:
        while line := file.readline(_LONGEST + 1):
            if len(line) > _LONGEST:
                raise SepNormError(f"{path} has a line of more than {_LONGEST:,} characters: put one text in a line.")
            yield line


def json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON file, one in a line or all in one list. (At some that are none, pyarrow ends the process.)"""
    with _opened(path) as file:
        while (start := file.read(1)).isspace():
            pass
        rows = json.loads(start + file.read()) if start == "[" else None
    if rows is None:
        rows = (json.loads(line) for line in text_lines(path) if line.strip())
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise SepNormError(f"row {number} of {path} is no object with names and values, but {type(row).__name__}.")
        yield row


def quiet_datasets() -> Any:
    """The library, without bars and lines of its own: what goes wrong is raised too, and told by us."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    return datasets


def rows_of(source: str, split: str) -> Iterator[dict[str, Any]]:
    """The rows of a table or of a ``datasets`` name, through ``datasets``, as a stream."""
    datasets = quiet_datasets()
    path = Path(source)
    kind = suffix_of(path)
    try:
        if path.is_file() and path.stat().st_size == 0:
            raise SepNormError(f"{source} is empty.")
        if TABLES.get(kind) == "json" and path.is_file():
            rows = json_rows(path)
        elif kind in TABLES and path.is_file():
            options = _OPTIONS.get(kind, {})
            rows = datasets.load_dataset(TABLES[kind], data_files=str(path), split="train", streaming=True, **options)
        elif kind in TABLES:
            raise SepNormError(f"there is no file {source}.")
        else:
            name, _, config = source.partition(":")
            rows = datasets.load_dataset(name, config or None, split=split, streaming=True)
        count = 0
        for row in rows:
            count += 1
            yield dict(row)
    except SepNormError:
        raise
    except Exception as error:  # a damaged table, a name that cannot be reached: each kind has errors of its own
        where = "" if path.exists() else " It is no file or folder here, so it was taken for a name of datasets."
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise SepNormError(f"{source} cannot be read: {reason}.{where}") from error
    if not count:
        raise SepNormError(f"{source} holds no rows.")
