"""Reads ``--data`` as a stream of texts or images, one record at a time.

Sources are text files, tables (CSV, TSV, JSON, parquet), folders of images, and names of Hugging Face datasets. No
source is loaded whole, so data may be larger than memory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from sepnorm.data.folders import rows_of_folder
from sepnorm.data.pictures import to_image
from sepnorm.data.places import prepare_hub, require_here
from sepnorm.data.tables import LONGEST_TEXT, TABLES, TEXT, rows_of_file, suffix_of, text_lines, unreadable
from sepnorm.errors import SepNormError, nearest, printable
from sepnorm.files import regular_files

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_TEXT_NAMES = ("text", "sentence", "sentence1", "content", "smiles")
_IMAGE_NAMES = ("image", "img", "images", "picture", "jpg", "jpeg", "png", "webp")
_LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "cls")
_MOST_CORRUPT, _FEW = 0.1, 10  # largest share of unreadable images; number below which half may be unreadable
#: Environment variable: set to 1, tables may name images outside of their folder.
OUTSIDE = "SEPNORM_OUTSIDE_FILES"


class Record(NamedTuple):
    """One sample: a text or Pillow image, its label, a name to show, and the split that its table names."""

    content: Any
    label: str | None
    name: str
    split: str | None = None


@dataclass
class LeftOut:
    """The number of records that a reader skipped because they are empty or unreadable, and the name of the first."""

    count: int = 0
    first: str | None = None

    def add(self, name: str) -> None:
        self.count += 1
        self.first = self.first or name


def read_texts(
    source: str, column: str | None = None, split: str = "train", left_out: LeftOut | None = None
) -> Iterator[Record]:
    """Yields the texts of a file, a table or a Hugging Face dataset, in order; skips empty ones."""
    left_out = left_out or LeftOut()
    if suffix_of(Path(source)) in TEXT:
        for number, line in enumerate(text_lines(Path(source)), 1):
            if line := line[:LONGEST_TEXT].strip():
                yield Record(line, None, f"line {number}")
            else:
                left_out.add(f"line {number}")
        return
    require_texts(source)
    chosen = label = None
    for number, row in enumerate(rows_of(source, split), 1):
        if chosen is None:
            chosen = choose_column(row, column, _TEXT_NAMES, lambda value: isinstance(value, str), "text", source)
            label = _label_of(row, chosen)
        text = row.get(chosen)
        if isinstance(text, str) and text.strip():
            yield Record(text.strip(), said(row, label), f"row {number}")
        else:
            left_out.add(f"row {number}")


def require_texts(source: str) -> None:
    """Refuses a folder of images, and a file that is neither text nor a table."""
    path = Path(source)
    if path.is_dir() and regular_files(path, IMAGES)[0]:
        raise SepNormError(f"{source} is a folder of images, and texts are wanted: give a text file or a table.")
    if path.is_file() and suffix_of(path) not in (*TEXT, *TABLES):
        raise SepNormError(
            f"{source} is no text file or table: give one of {', '.join([*TEXT, *TABLES])} (also .gz, .xz)."
        )


def read_images(
    source: str,
    column: str | None = None,
    split: str = "train",
    label: str | None = None,
    seed: int = 0,
    left_out: LeftOut | None = None,
) -> Iterator[Record]:
    """Yields the images of a folder, a table or a Hugging Face dataset.

    A folder is shuffled by the seed, and the name of an image's own folder is its label. Unreadable images are skipped;
    too many of them are an error (see ``refuse_broken``).
    """
    left_out = left_out or LeftOut()
    read = corrupt = 0
    named: list[str] = []
    for record in _encoded_images(source, column, split, label, seed):
        try:
            image = to_image(record.content)
        except Exception as error:  # Pillow raises many kinds of errors at damaged files
            corrupt += 1
            left_out.add(record.name)
            named.append(f"{record.name} ({error})")
            if corrupt > _FEW:
                refuse_broken(source, corrupt, read + corrupt, named)
            continue
        read += 1
        yield record._replace(content=image)
    if not read:
        found = f", but {corrupt} that cannot be read, such as {named[0]}" if corrupt else ""
        raise SepNormError(f"{source} holds no image{found}: give a folder with {', '.join(IMAGES)} files.")
    refuse_broken(source, corrupt, read + corrupt, named)


def refuse_broken(source: str, broken: int, count: int, named: Sequence[str]) -> None:
    """Raises if more than a tenth of the images cannot be read; of the first few, if more than half cannot."""
    if broken > _MOST_CORRUPT * count and (broken > _FEW or 2 * broken > count):
        raise SepNormError(
            f"{broken} of {'the first ' * (broken > _FEW)}{count} images of {source} cannot be read, such as {named[0]}: "
            "check the files."
        )


def place_of(content: Any, table: Path | None) -> Any:
    """The content of a table's image cell. A file name becomes a path, which must lie in the table's folder."""
    name = content.get("path") if isinstance(content, dict) and not content.get("bytes") else content
    if not isinstance(name, str):
        return content
    if "://" in name:
        raise SepNormError(
            f"{table} names the address {name!r}: images are not fetched. Download them, and name the files."
        )
    folder = Path.cwd() if table is None else table.parent.resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(folder) and os.environ.get(OUTSIDE) != "1":
        raise SepNormError(
            f"{table} names the image {name!r}, which lies outside of its folder: put the images beside the table, or set "
            f"{OUTSIDE}=1 where you trust it."
        )
    if path.exists() and not path.is_file():
        raise SepNormError(f"{path} is not a regular file.")
    return path


def choose_column(
    row: dict[str, Any], column: str | None, names: tuple[str, ...], fits: Any, what: str, source: str
) -> str:
    """The column that the user asked for; else one with a usual name; else the only one whose value fits."""
    if column is not None:
        if column not in row:
            raise SepNormError(
                f"{source} has no column {column!r}: it has {', '.join(map(str, row))}.{nearest(column, map(str, row))}"
            )
        return column
    # the first row may lack a value, and a label column is not a text
    fitting = [name for name, value in row.items() if name not in _LABEL_NAMES and (value is None or fits(value))]
    usual = [name for name in names if name in fitting]
    fitting = [name for name in fitting if not _is_number(row[name])]  # CSV cells are all strings
    if usual or len(fitting) == 1:
        return (usual or fitting)[0]
    if not fitting:
        raise SepNormError(
            f"no column of {source} looks like {what} (it has {', '.join(map(str, row))}): is it data of another kind? Else name "
            "the column by --column."
        )
    raise SepNormError(
        f"which column of {source} holds the {what} is not clear (it has {', '.join(map(str, row))}): name it by --column."
    )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _encoded_images(source: str, column: str | None, split: str, wanted: str | None, seed: int) -> Iterator[Record]:
    path = Path(source)
    if path.is_dir():
        files, _ = regular_files(path, IMAGES)
        Random(seed).shuffle(files)
        for file in files:
            yield Record(file, *label_and_name(file, path))
        return
    if path.is_file() and suffix_of(path) not in TABLES:
        raise SepNormError(f"{source} is no table of images: give a folder of images, or one of {', '.join(TABLES)}.")
    chosen = label = None
    for number, row in enumerate(rows_of(source, split, images=True), 1):
        if chosen is None:
            chosen, label = image_columns(row, column, wanted, source)
        content = place_of(row.get(chosen), path if path.is_file() else None)
        yield Record(content, said(row, label), f"row {number}", said(row, "split"))


def label_and_name(file: Path, folder: Path) -> tuple[str | None, str]:
    """Label and name of an image file: its label is its own folder, its name the path below ``folder``."""
    label = printable(file.parent.name) if file.parent != folder else None
    return label, printable(str(file.relative_to(folder)))


def image_columns(row: dict[str, Any], column: str | None, label: str | None, source: str) -> tuple[str, str | None]:
    """The columns of images and labels, as the user asked or by the first row; None if there are no labels."""
    chosen = choose_column(row, column, _IMAGE_NAMES, _looks_like_image, "images", source)
    return chosen, _label_of(row, chosen, label, source)


def said(row: dict[str, Any], name: str | None) -> str | None:
    """The cell of a column as text; None for a missing or empty cell, which is no class of its own."""
    value = None if name is None else row.get(name)
    return None if value is None or value == "" else str(value)


def _looks_like_image(value: Any) -> bool:
    if isinstance(value, str):
        return Path(value).suffix.lower() in IMAGES
    return (
        isinstance(value, bytes | Path) or (isinstance(value, dict) and "bytes" in value) or hasattr(value, "convert")
    )


def _label_of(row: dict[str, Any], chosen: str, wanted: str | None = None, source: str = "") -> str | None:
    if wanted is not None and wanted not in row:
        raise SepNormError(
            f"{source} has no column {wanted!r} for labels: it has {', '.join(map(str, row))}.{nearest(wanted, map(str, row))}"
        )
    return wanted or next((name for name in _LABEL_NAMES if name in row and name != chosen), None)


def quiet_datasets(hub: bool = False) -> Any:
    """Imports the library ``datasets`` without its progress bars and log lines; errors are raised anyway.

    ``hub``: prepare the connection to the Hub, to look a name up.
    """
    if hub:
        prepare_hub()
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    return datasets


def hub_rows(source: str, split: str) -> Any:
    """The rows of a name of the hub, ``NAME`` or ``NAME:CONFIG``, as an ``IterableDataset``. Images are not decoded."""
    name, _, config = source.partition(":")
    if Path(name).exists():  # datasets would follow the instructions in it
        raise SepNormError(f"{name} is a folder or file here, which has no {config!r}: name it alone.")
    rows = quiet_datasets(hub=True).load_dataset(name, config or None, split=split, streaming=True)
    return rows.decode(False) if rows.features else rows


def rows_of(source: str, split: str = "train", images: bool = False) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table, a folder of tables or a Hugging Face dataset; long texts are truncated.

    ``images`` fetches the images that a Hugging Face dataset keeps as files of their own; otherwise rows only name them.
    """
    path = Path(source)
    count = 0
    try:
        for row in _rows(source, path, split, images):
            count += 1
            yield row
    except SepNormError:
        raise
    except Exception as error:  # damaged tables and unreachable names raise many kinds of errors
        raise unreadable(source, error) from error
    if not count:
        raise SepNormError(f"{source} holds no rows.")


def _rows(source: str, path: Path, split: str, images: bool) -> Iterator[dict[str, Any]]:
    require_here(source)
    if path.is_dir():
        return rows_of_folder(path, split)
    if suffix_of(path) in TABLES:
        if path.stat().st_size == 0:
            raise SepNormError(f"{source} is empty.")
        return rows_of_file(path)
    if path.exists():
        raise SepNormError(f"{source} is no table: give one of {', '.join(TABLES)} (also .gz, .xz).")
    rows = hub_rows(source, split)
    return map(_fetched if images else dict, rows)


def _fetched(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the content of those image files of the Hub that it names."""
    import fsspec

    row = dict(row)
    for column, cell in row.items():
        name = cell.get("path") if isinstance(cell, dict) and not cell.get("bytes") else None
        if isinstance(name, str) and name.rpartition("::")[2].startswith("hf://datasets/"):
            with fsspec.open(name, "rb") as file:
                row[column] = cell | {"bytes": file.read()}
    return row
