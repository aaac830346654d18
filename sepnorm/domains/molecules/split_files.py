"""Which files of a folder are for training, and which are held out, by their names."""

from __future__ import annotations

import glob
from collections import defaultdict
from itertools import takewhile
from pathlib import Path

from sepnorm.data.folders import shards
from sepnorm.data.places import is_address
from sepnorm.data.tables import TABLES
from sepnorm.domains.molecules.tables import LINES, split_of_name
from sepnorm.errors import SepNormError


def files_by_split(source: str) -> dict[str, list[str]]:
    """The files of a folder or pattern by split, as ``train.csv`` and ``test-0.csv``, or ``train/0.csv``.

    Empty if no file is held out by its name, or if all are of one split. Beside a split, files of no split are left out.
    """
    if is_address(source) or not (Path(source).is_dir() or glob.has_magic(source)):
        return {}
    root = Path(*takewhile(lambda part: not glob.has_magic(part), Path(source).parts))
    found: dict[str, list[str]] = defaultdict(list)
    for file in shards(source, (*LINES, *TABLES, ".tar"))[1]:
        splits = map(split_of_name, Path(file).relative_to(root).parts)
        found[next(filter(None, splits), "")].append(file)
    held_out = [split for split in ("valid", "test") if split in found]
    if not held_out or len(found) == 1:
        return {}
    if "train" not in found:
        raise SepNormError(
            f"{source} has files for {' and '.join(held_out)}, and none for train: name one train, as train.csv, or name the "
            "files to train on by a pattern."
        )
    return {split: found[split] for split in ("train", *held_out)}
