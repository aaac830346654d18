"""Files of a folder that are read as one source: shards for streams, and the texts or tables of one split.

Folders are listed here, and not by ``datasets``, which follows a README in them to files and addresses elsewhere.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sepnorm.data.tables import LONGEST_TEXT, TABLES, TEXT, rows_of_file, suffix_of, text_lines
from sepnorm.errors import SepNormError

#: Words in the path of a file that name its split.
_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_NO_TABLES = ("dataset_info.json", "dataset_infos.json", "state.json")  # descriptions by the library datasets


def shards(source: str, known: tuple[str, ...]) -> tuple[str, list[str]]:
    """Suffix and names of the files of a file, folder or pattern; all must be of one kind, which is in ``known``."""
    path = Path(source)
    if path.is_dir():
        found = [file for file in sorted(path.rglob("*")) if file.is_file() and suffix_of(file) in known]
    else:
        found = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(source, recursive=True))]
    if not found or min(map(suffix_of, found)) not in known:
        raise SepNormError(f"{source} names no file of a kind that can be streamed: {', '.join(known)} or images.")
    return _one_kind(source, found), [str(file) for file in found]


def rows_of_folder(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a split: of the files whose path says so, or of all files if none names a split."""
    known = (*TEXT, *TABLES)
    found = [
        file
        for file in sorted(folder.rglob("*"))
        if suffix_of(file) in known and file.name not in _NO_TABLES and not _is_hidden(file, folder) and file.is_file()
    ]
    if not found:
        raise SepNormError(
            f"{folder} holds no texts or tables: give a folder with {', '.join(known)} files, or a file."
        )
    files = _of_split(found, folder, split)
    kind = _one_kind(str(folder), files)
    for file in files:
        yield from text_rows(file) if kind in TEXT else rows_of_file(file)


def text_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a text file as rows with the column ``text``; long lines are truncated."""
    yield from ({"text": line[:LONGEST_TEXT].rstrip("\r\n")} for line in text_lines(path))


def _one_kind(source: str, files: Sequence[Path]) -> str:
    kinds = sorted(set(map(suffix_of, files)))
    if len(kinds) > 1:
        raise SepNormError(f"the files of {source} are of different kinds, {' and '.join(kinds)}: name those of one.")
    return kinds[0]


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _of_split(files: list[Path], folder: Path, split: str) -> list[Path]:
    words = [set(re.findall("[a-z]+", str(file.relative_to(folder)).lower())) for file in files]
    if not any(each.intersection(names) for each in words for names in _SPLITS.values()):
        chosen = files if split == "train" else []
    else:
        wanted = _SPLITS.get(split, (split,))
        chosen = [file for file, each in zip(files, words, strict=True) if each.intersection(wanted)]
    if not chosen:
        raise SepNormError(f"{folder} has no file whose name says that it is of the split {split}: name the file.")
    return chosen
