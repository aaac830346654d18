"""The tables of a folder to test a model on, and which of the named targets each has."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice
from pathlib import Path

from sepnorm.data.tables import csv_rows, stem_of, suffix_of
from sepnorm.domains.molecules.ogb_folders import ogb_table
from sepnorm.domains.molecules.tables import KINDS, SPLITS, parts_of, split_file, split_of_name
from sepnorm.errors import SepNormError, nearest


def tables_in(source: str) -> dict[str, str]:
    """The tables in a folder, or a single one, by name without suffix.

    A folder of OGB and one with a table per split are one table.
    """
    path = Path(source)
    alone = not path.is_dir() or _is_one_table(path)
    found: dict[str, str] = {}
    for place in [path] if alone else sorted(path.iterdir()):
        if not (_is_one_table(place) if place.is_dir() else place.is_file() and suffix_of(place) in KINDS):
            continue
        name = stem_of(place) if place.is_file() else place.resolve().name
        if name in found:
            raise SepNormError(
                f"{source} has two tables named {name!r}, {found[name]} and {place}: rename one of them."
            )
        found[name] = str(place)
    if not found:
        raise SepNormError(
            f"{source} is no table of molecules and no folder with {', '.join(KINDS)} (also .gz) or folders of OGB."
        )
    return found


def _is_one_table(folder: Path) -> bool:
    """Whether this is a folder of OGB, or one with a table for each of the three splits."""
    if ogb_table(folder) is not None:
        return True
    tables = [place for place in sorted(folder.iterdir()) if place.is_file() and suffix_of(place) in KINDS]
    if not set(SPLITS) <= {split_of_name(table.name) for table in tables}:
        return False
    if other := next((table for table in tables if not split_of_name(table.name)), None):
        raise SepNormError(
            f"{folder} has tables for train, valid and test, and {other.name} of no split: give the three a folder of their own."
        )
    return True


def named_targets(source: str, tables: Mapping[str, str], target: str) -> dict[str, str]:
    """Which of the columns that are named, separated by commas, each table has. Raises for one that none has."""
    wanted = [each.strip() for each in target.split(",")]
    columns = {name: _column_names(path) for name, path in tables.items()}
    known = list(dict.fromkeys(chain(*columns.values())))
    for each in wanted:
        if each not in known:
            raise SepNormError(f"{source} has no column {each!r}: it has {', '.join(known)}.{nearest(each, known)}")
    found = {name: ",".join(each for each in wanted if each in names) for name, names in columns.items()}
    return {name: some for name, some in found.items() if some}


def _column_names(source: str) -> list[str]:
    """The names of the columns of a table; little more than these is read."""
    path = Path(source)
    if path.is_dir():
        path = ogb_table(path) or split_file(path, "train")
    parts = parts_of(path) if suffix_of(path) == ".parquet" else csv_rows(path)
    return [name for part in islice(parts, 1) for name in part]
