"""Folders as the Open Graph Benchmark unpacks them: a table with SMILES, and the rows of each split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sepnorm.data.tables import text_lines
from sepnorm.errors import SepNormError, one_line
from sepnorm.files import DAMAGE

_TABLES = ("mapping/mol.csv.gz", "raw/data.csv.gz")  # of ogbg-molhiv and its like, and of PCQM4Mv2
_PICKLED = "split_dict.pt"  # the split of PCQM4Mv2


def ogb_table(folder: Path) -> Path | None:
    """The table of a folder of OGB; None for any other place."""
    return next((folder / name for name in _TABLES if (folder / name).is_file()), None)


def ogb_splits(folder: Path, count: int) -> list[str] | None:
    """The split of each of ``count`` rows, if the folder has one.

    PCQM4Mv2 keeps the labels of its test molecules to itself. So its validation molecules are for testing, as in
    papers, and those that have no label are put beside them.
    """
    if (folder / _PICKLED).is_file():
        splits = ["test"] * count
        for row in _pickled_rows(folder / _PICKLED, count)["train"].tolist():
            splits[row] = "train"
        return splits
    way = min((path for path in (folder / "split").glob("*") if path.is_dir()), default=None)
    if way is None:
        return None
    splits = [""] * count
    for name in ("train", "valid", "test"):
        file = next(way.glob(f"{name}.csv*"), None)
        if file is None:
            raise SepNormError(f"{way} has no {name}.csv.gz: it is incomplete, copy it again.")
        for line in text_lines(file):
            row = line.strip()
            if not row.isdecimal() or int(row) >= count:
                raise SepNormError(f"{way} names the row {row!r} for {name}, and {ogb_table(folder)} has {count} rows.")
            splits[int(row)] = name
    return splits


def _pickled_rows(path: Path, count: int) -> dict[str, Any]:
    """The rows of ``train`` and ``valid``: arrays of whole numbers, whose bytes are all that is taken from the pickle."""
    import numpy as np

    from sepnorm.data.torch_files import ARRAYS, stored

    rows = {}
    try:
        with stored(path, ARRAYS) as file:
            found = file.content
        for name in ("train", "valid"):
            _, shape, kind, _, data = found[name].state
            if len(shape) != 1 or kind.given[0] != "i8" or kind.state[1] != "<":
                raise ValueError(f"{name} is no list of whole numbers")
            text, _ = data.given  # bytes, as Python 3 writes them for Python 2
            rows[name] = np.frombuffer(text.encode("latin1"), "<i8")
    except SepNormError:
        raise
    except DAMAGE as error:
        raise SepNormError(
            f"{path} holds more than rows by split, or is damaged, and nothing else is unpickled: {one_line(error)}. Copy it "
            f"again, or name {ogb_table(path.parent)} for a split at random."
        ) from error
    for name, each in rows.items():
        if not len(each) or not 0 <= each.min() <= each.max() < count:
            raise SepNormError(f"{path} names other rows for {name} than the {count} of {ogb_table(path.parent)}.")
    return rows
