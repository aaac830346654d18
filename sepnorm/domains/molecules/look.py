"""Describes the data of a run on molecules, without torch."""

from __future__ import annotations

from pathlib import Path

from sepnorm.domains import Look
from sepnorm.domains.molecules.config import MoleculeConfig
from sepnorm.domains.molecules.folders import tables_in
from sepnorm.domains.molecules.splits import look_at_split
from sepnorm.domains.molecules.tables import KNOWN, SPLITS, Table, read_table

_TRAINED = 0.8  # share of training molecules if the data has no split


def has_targets(config: MoleculeConfig) -> bool:
    """Whether a file or folder has a target column; assumed for names of the Hub. Raises if it is not clear which."""
    if config.targets or _is_elsewhere(config.data):
        return True
    if config.stream is not None:
        return bool(_of_stream(config, None).targets)
    return bool(read_table(config.data, config.column, labelled=None).targets)


def look_at(config: MoleculeConfig) -> Look:
    """Reads the table, and the SMILES of a small one to see that its split has molecules."""
    model = f"a Graphormer of {config.depth} layers, width {config.width}"
    learns = "by hidden atoms and bonds" if config.task == "pretrain" else "by a property"
    if config.test is not None:
        tables_in(config.test)
    if _is_elsewhere(config.data):
        return Look(f"{model} ({learns})", config.data, "its test molecules")
    labelled = config.task == "supervised"
    if config.stream is not None:
        scored = _scored(config, _of_stream(config, labelled))
        return Look(f"{model} ({learns})", f"a stream of {Path(config.data).name}", scored)
    table = read_table(config.data, config.column, config.targets, labelled)
    look_at_split(table, config)
    count = len(table.smiles) if config.molecules is None else min(config.molecules, len(table.smiles))
    train = min(_train_count(table, count), config.train_molecules or count)
    of = f"{train:,} molecules of {Path(config.data).name}"
    return Look(f"{model} ({learns})", of, _scored(config, table), train)


def _scored(config: MoleculeConfig, table: Table) -> str:
    names = ", ".join(table.targets)
    probed = [] if config.test is None else list(tables_in(config.test))
    if config.task == "supervised":
        return f"the error on {names} of test molecules"
    if table.targets or probed:
        return f"probes of {', '.join([*([names] if names else []), *probed])}"
    return "the geometry of [CLS] alone, since no column is clearly a property: --test TABLE probes the model for some"


def _of_stream(config: MoleculeConfig, labelled: bool | None) -> Table:
    from sepnorm.domains.molecules.streaming import streamed_table

    return streamed_table(config, labelled)[2]


def _train_count(table: Table, count: int) -> int:
    if table.splits is not None and count == len(table.smiles):
        return sum(str(split).lower() in SPLITS["train"] for split in table.splits)
    return round(_TRAINED * count)


def _is_elsewhere(source: str) -> bool:
    """Whether the source is on the Hub, which is not downloaded for a preview."""
    return source in KNOWN or (source not in ("nci", "solubility") and not _seems_here(source))


def _seems_here(source: str) -> bool:
    from sepnorm.data.places import looks_like_path

    return Path(source).exists() or looks_like_path(source)
