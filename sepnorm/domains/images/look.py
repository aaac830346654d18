"""Inspects images by names and headers, without torch: how many, how large, grey or colour, which classes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Any

from sepnorm.data.pictures import open_image
from sepnorm.data.places import require_here
from sepnorm.data.records import (
    IMAGES,
    image_columns,
    label_and_name,
    place_of,
    refuse_broken,
    rows_of,
    said,
)
from sepnorm.data.tables import TABLES, parquet_batches, suffix_of, unreadable
from sepnorm.domains.images.places import HELD_OUT, KNOWN, idx_files, is_for_training, open_idx, split_folders
from sepnorm.errors import SepNormError
from sepnorm.files import regular_files

_HEADERS = 48  # images whose headers are read
_COUNTED = 100_000  # rows of a table that are counted


@dataclass(frozen=True)
class Seen:
    """Number of training and test images if known, their usual width and height, and their classes."""

    train: int | None
    test: int | None
    size: tuple[int, int]
    grey: bool
    classes: tuple[str, ...] | None  # of training images; None if some have none or it is unknown


_DIGITS = Seen(900, 897, (8, 8), True, tuple("0123456789"))


def look_at(source: str, column: str | None = None, label: str | None = None) -> Seen:
    """Inspects a source; ``load_images`` lists the kinds."""
    path = Path(source)
    if source == "digits":
        return _DIGITS
    if not path.exists():
        known = KNOWN.get(source, {})
        if not known:
            require_here(source)
        elif "size" in known:
            return Seen(None, None, known["size"], False, None)
        return _of_rows(source, rows_of(known.get("name", source), images=True), column, label, None)
    if path.is_dir():
        if (idx := idx_files(path)) is not None:
            train, test = (_idx_shape(part[0]) for part in idx)
            return Seen(train[0], test[0], (train[2], train[1]), True, _idx_classes(idx[0][1]))
        return _of_folder(path)
    if suffix_of(path) not in TABLES:
        raise SepNormError(f"{source} is no table of images: give a folder of images, or one of {', '.join(TABLES)}.")
    return _of_rows(source, rows_of(source, images=True), column, label, path)


def _of_folder(path: Path) -> Seen:
    parts = split_folders(path)
    files = [_images_below(Path(part)) for part in parts or (str(path),)]
    train = files[0]
    size, grey = _headers(str(path), train[:: max(1, len(train) // _HEADERS)][:_HEADERS])
    labels = [label_and_name(file, Path(parts[0]) if parts else path)[0] for file in train]
    classes = None if any(label is None for label in labels) else tuple(sorted({str(label) for label in labels}))
    held_out = len(train) // HELD_OUT
    counts = (len(train) - held_out, held_out) if parts is None else (len(train), len(files[1]))
    if counts[0] < 2 or counts[1] < 2:
        raise SepNormError(
            f"{path} gives {counts[0]} images for training and {counts[1]} for testing: more are needed."
        )
    return Seen(counts[0], counts[1], size, grey, classes)


def _images_below(folder: Path) -> list[Path]:
    files, _ = regular_files(folder, IMAGES)
    if not files:
        raise SepNormError(f"{folder} holds no image: give a folder with {', '.join(IMAGES)} files.")
    return files


def _of_rows(
    source: str, rows: Iterator[dict[str, Any]], column: str | None, label: str | None, table: Path | None
) -> Seen:
    """Reads headers of the first images; rows of a table on disk are also counted."""
    first = list(islice(rows, _HEADERS))
    chosen, labels = image_columns(first[0], column, label, source)
    size, grey = _headers(source, [place_of(row.get(chosen), table) for row in first])
    if table is None:
        return Seen(None, None, size, grey, None)
    if suffix_of(table) == ".parquet":  # read without the column of images
        counted = _narrow_rows(table, [name for name in ("split", labels) if name in first[0]])
    else:
        counted = chain(first, rows)
    train = test = 0
    classes: set[str] = set()
    unknown = labels is None
    for number, row in enumerate(islice(counted, _COUNTED + 1)):
        split = said(row, "split")
        if is_for_training(split) if split is not None else number % HELD_OUT != HELD_OUT - 1:
            train += 1
        else:
            test += 1
        found = said(row, labels)
        unknown = unknown or found is None
        classes |= {str(found)}
    few = train + test <= _COUNTED
    names = None if unknown else tuple(sorted(classes))
    return Seen(train if few else None, test if few else None, size, grey, names)


def _narrow_rows(table: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a parquet file with some of its columns."""
    try:
        for batch in parquet_batches(table, _COUNTED, columns):
            yield from batch.to_pylist() if columns else [{}] * batch.num_rows
    except SepNormError:
        raise
    except Exception as error:  # pyarrow raises many kinds of errors at damaged files
        raise unreadable(str(table), error) from error


def _headers(source: str, contents: Sequence[Any]) -> tuple[tuple[int, int], bool]:
    """The usual size of images, and whether all are grey. Raises if most cannot be opened."""
    sizes, grey, broken = [], True, []
    for content in contents:
        try:
            size, mode = _header(content)
        except Exception as error:  # Pillow raises many kinds of errors at damaged files
            broken.append(f"{getattr(content, 'name', 'one')} ({error})")
            continue
        sizes.append(size)
        grey = grey and mode in ("1", "L", "LA", "I", "I;16", "F")
    refuse_broken(source, len(broken), len(contents), broken)
    return (int(median(size[0] for size in sizes)), int(median(size[1] for size in sizes))), grey


def _header(content: Any) -> tuple[tuple[int, int], str]:
    with open_image(content) as image:
        return image.size, image.mode


def _idx_shape(path: Path) -> tuple[int, int, int]:
    """Number, height and width of images, from the header of an IDX file."""
    try:
        with open_idx(path) as file:
            head = file.read(16)
    except (OSError, EOFError, zlib.error) as error:
        raise SepNormError(f"{path} cannot be read: {error}.") from error
    if len(head) < 16 or head[:4] != b"\0\0\x08\x03":
        raise SepNormError(f"{path} is no IDX file of images.")
    count, height, width = (int.from_bytes(head[place : place + 4], "big") for place in (4, 8, 12))
    return count, height, width


def _idx_classes(path: Path) -> tuple[str, ...] | None:
    """The classes in an IDX file of labels; None if it cannot be read, which is reported on loading."""
    try:
        with open_idx(path) as file:
            return tuple(map(str, sorted(set(file.read(_COUNTED)[8:]))))
    except (SepNormError, OSError, EOFError, zlib.error):
        return None


def following(seen: Seen) -> tuple[str, dict[str, Any]]:
    """The preset that suits images of this size, and the image size and channels to use with it.

    ``demo`` has patches of 2 pixels, ``small`` of 4. Larger images are scaled to 64 x 64 with patches of 8, which gives
    as many tokens as 32 x 32 with patches of 4.
    """
    side = min(seen.size)
    channels = {"channels": 1 if seen.grey else 3}
    if side <= 16:
        return "demo", {"image_size": max(4, side - side % 2), **channels}
    if side < 48:
        return "small", {"image_size": side - side % 4, **channels}
    return "small", {"image_size": min(64, side - side % 8), "patch_size": 8, **channels}
