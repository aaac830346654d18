"""What a run on molecules would be trained and scored on, read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepnorm.domains import Look
from sepnorm.domains.molecules.config import MoleculeConfig
from sepnorm.domains.molecules.tables import KNOWN, SPLITS, Table, read_table, tables_in

_TRAINED = 0.8  # share of molecules for training where the data has no split


def has_targets(source: str, given: Mapping[str, Any]) -> bool:
    """Whether a file or folder has a property to learn; of a name that is not here this is taken for granted."""
    if given.get("targets") or _is_elsewhere(source):
        return True
    return bool(read_table(source, given.get("column"), labelled=False).targets)


def look_at(config: MoleculeConfig) -> Look:
    """Reads the table; SMILES are not looked at."""
    model = f"a Graphormer of {config.depth} layers, width {config.width}"
    learns = "by hidden atoms and bonds" if config.task == "pretrain" else "by a property"
    probed = [] if config.test is None else list(tables_in(config.test))
    if _is_elsewhere(config.data):
        return Look(f"{model} ({learns})", config.data, "its test molecules")
    table = read_table(config.data, config.column, config.targets, labelled=config.task == "supervised")
    count = len(table.smiles) if config.molecules is None else min(config.molecules, len(table.smiles))
    train = min(_train_count(table, count), config.train_molecules or count)
    names = ", ".join(table.targets)
    if config.task == "supervised":
        scored = f"the error on {names} of test molecules"
    elif table.targets or probed:
        scored = f"probes of {', '.join([*([names] if names else []), *probed])}"
    else:
        scored = "the geometry of [CLS] alone, since there is no property: --test TABLE probes the model for some"
    return Look(f"{model} ({learns})", f"{train:,} molecules of {Path(config.data).name}", scored, train)


def _train_count(table: Table, count: int) -> int:
    if table.splits is not None and count == len(table.smiles):
        return sum(str(split).lower() in SPLITS["train"] for split in table.splits)
    return round(_TRAINED * count)


def _is_elsewhere(source: str) -> bool:
    """Whether it is a name of ``datasets``, which is not fetched for a look."""
    return source in KNOWN or (source not in ("nci", "solubility") and not _seems_here(source))


def _seems_here(source: str) -> bool:
    from sepnorm.data.places import looks_like_path

    return Path(source).exists() or looks_like_path(source)
