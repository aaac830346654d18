"""Molecules in memory with targets, split into training, validation and test."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.choices import evenly
from sepnorm.data.tables import NULLS
from sepnorm.domains.molecules.cache import featurise_many
from sepnorm.domains.molecules.config import USUAL_ATOMS, MoleculeConfig
from sepnorm.domains.molecules.features import Rejected, graph_of
from sepnorm.domains.molecules.folders import named_targets, tables_in
from sepnorm.domains.molecules.graphs import Graph, Graphs
from sepnorm.domains.molecules.splits import kind_of_split, require_rows, split_rows
from sepnorm.domains.molecules.tables import NAMING, Table, read_table
from sepnorm.errors import LeftOutWarning, SepNormError, tell_limit

_PROBED = "call it y, target or label"  # how to mark the target in a table to probe


@dataclass(eq=False)
class MoleculeSet:
    """Graphs, their SMILES (empty if unknown), and targets (count, targets), NaN if missing."""

    graphs: Sequence[Graph]
    smiles: list[str]
    targets: Tensor

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def sizes(self) -> list[int]:
        return [len(graph) for graph in self.graphs]

    def take(self, rows: Sequence[int]) -> MoleculeSet:
        return MoleculeSet(
            [self.graphs[row] for row in rows], [self.smiles[row] for row in rows], self.targets[list(rows)]
        )


@dataclass(eq=False)
class MoleculeData:
    """The three splits, names and scale of targets, whether these are classes, and the rejected rows."""

    train: MoleculeSet
    valid: MoleculeSet
    test: MoleculeSet
    names: list[str]
    classes: bool
    mean: Tensor  #: (targets,) of the training molecules; 0 for classes
    std: Tensor  #: (targets,) likewise; 1 for classes
    rejected: list[Rejected]


def load_molecules(config: MoleculeConfig, probed: bool = False, naming: str = NAMING) -> MoleculeData:
    """Reads ``config.data`` by ``read_table``. A few invalid rows are left out with a warning.

    Targets are required for supervised training and if ``probed``, which takes several that are not named.
    """
    labelled = probed or config.task == "supervised"
    table = read_table(config.data, config.column, config.targets, labelled, naming, several=probed)
    return arrange(table, config, probed)


def arrange(table: Table, config: MoleculeConfig, probed: bool = False) -> MoleculeData:
    """Turns the molecules of a table into graphs and splits them."""
    if config.molecules is not None and config.molecules < len(table.smiles):
        table = table.take(evenly(len(table.smiles), config.molecules).tolist())
    whole, kept, rejected = _molecules(table, config)
    splits = None if table.splits is None else [table.splits[row] for row in kept]
    parts = split_rows(whole.smiles, splits, config, probed)
    labelled = whole.targets.isfinite().any(1)
    needed = ("train", "valid", "test") if config.task == "supervised" else ("valid", "test")
    for name in needed if table.targets else ():
        parts[name] = [row for row in parts[name] if labelled[row]]
    if config.train_molecules is not None and config.train_molecules < len(parts["train"]):
        count = len(parts["train"])
        if config.data != "nci":
            tell_limit(config.train_molecules, f"{count:,} training molecules", "train_molecules")
        parts["train"] = [parts["train"][i * count // config.train_molecules] for i in range(config.train_molecules)]
    how = kind_of_split(whole.smiles, splits, config, probed)
    require_rows(parts, how, config, needed if table.targets else (), probed)
    names = _learnable(whole, parts["train"], list(table.targets), config.data)
    classes = _are_classes(whole.targets, config)
    for name in ("valid", "test") if classes else ():
        _two_classes(whole.targets[parts[name]], name, config)
    train = whole.take(parts["train"])
    mean, std = _scale(train.targets, names, classes, config.data)
    return MoleculeData(
        train, whole.take(parts["valid"]), whole.take(parts["test"]), names, classes, mean, std, rejected
    )


def _molecules(table: Table, config: MoleculeConfig) -> tuple[MoleculeSet, list[int], list[Rejected]]:
    """The valid molecules, their rows, and the rejected rows."""
    read = _from_graphs(table.graphs, config) if table.graphs else None
    graphs, rejected = read or featurise_many(table.smiles, config.features, config.max_atoms)
    left_out = {each.row for each in rejected}
    count = len(table.smiles)
    if rejected:
        named = [f"row {each.row + 1}" + ("" if table.graphs else f" {each.smiles!r}") for each in rejected]
        some = "; ".join(f"{name}: {each.reason}" for name, each in zip(named[:3], rejected, strict=False))
        said = f"{len(rejected)} of {count} rows of {table.source} are not valid molecules, such as {some}"
        if len(rejected) > config.max_rejected * count:
            raise SepNormError(f"{said}. Fix them, or allow more with --set max_rejected=SHARE.")
        warnings.warn(f"{said}. They are left out.", LeftOutWarning, stacklevel=3)
    kept = [row for row in range(count) if row not in left_out]
    columns = [_numbers(name, values, table.source) for name, values in table.targets.items()]
    targets = torch.tensor(columns).reshape(len(columns), count).T
    return MoleculeSet(list(graphs), [str(table.smiles[row]).strip() for row in kept], targets[kept]), kept, rejected


def _from_graphs(given: Sequence[Any], config: MoleculeConfig) -> tuple[Graphs, list[Rejected]]:
    """Graphs of the rows that are not too large, and the others, as ``featurise`` returns them."""
    sizes = [len(item.x) for item in given]
    rejected = [
        Rejected(row, "", f"it has {size} atoms, the limit is max_atoms={config.max_atoms}")
        for row, size in enumerate(sizes)
        if not 1 <= size <= config.max_atoms
    ]
    bad = {each.row for each in rejected}
    kept = [graph_of(row, item, config.features) for row, item in enumerate(given) if row not in bad]
    return Graphs.join(config.features, kept), rejected


def as_number(value: Any) -> float:
    """A target as a number; NaN if missing."""
    return float("nan") if value is None or value in NULLS else float(value)


def _numbers(name: str, values: list[Any], source: str) -> list[float]:
    """The numbers of a column; NaN where missing."""
    found = []
    for row, value in enumerate(values, 1):
        try:
            found.append(as_number(value))
        except (TypeError, ValueError):
            raise SepNormError(
                f"{name!r} of {source} holds no number in row {row}, found {value!r}: a target is a number, or empty."
            ) from None
    if any(value in (float("inf"), float("-inf")) for value in found):
        raise SepNormError(f"{name!r} of {source} holds infinity: a target is a number, or empty where it is missing.")
    return found


def _are_classes(targets: Tensor, config: MoleculeConfig) -> bool:
    known = targets[targets.isfinite()]
    binary = bool(len(known)) and bool(((known == 0) | (known == 1)).all())
    if config.kind == "classification" and not binary:
        raise SepNormError(
            f"classes are 0 and 1, found {float(known.min()):g} to {float(known.max()):g} in {config.data}."
        )
    return binary if config.kind == "auto" else config.kind == "classification"


def _two_classes(targets: Tensor, name: str, config: MoleculeConfig) -> None:
    """Raises if a split has only one class: its scores would silently be missing."""
    known = [column[column.isfinite()].unique() for column in targets.T]
    if known and all(len(values) < 2 for values in known):
        raise SepNormError(
            f"all molecules of {config.data} for {name} have class {float(known[0][0]):g}, so nothing can be scored: use "
            "another split."
        )


def _learnable(molecules: MoleculeSet, train: list[int], names: list[str], source: str) -> list[str]:
    """Drops targets that are constant in training, unless all are."""
    varies = [len(column[column.isfinite()].unique()) > 1 for column in molecules.targets[train].T]
    if all(varies) or not any(varies):
        return names
    out = [name for name, kept in zip(names, varies, strict=True) if not kept]
    warnings.warn(
        f"{len(out)} of {len(names)} targets of {source} are always the same in training, such as {out[0]!r}. They are left out.",
        LeftOutWarning,
        stacklevel=4,
    )
    molecules.targets = molecules.targets[:, varies]
    return [name for name in names if name not in out]


def _scale(targets: Tensor, names: list[str], classes: bool, source: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each target. Raises for a constant one."""
    scales = []
    for name, column in zip(names, targets.T, strict=True):
        known = column[column.isfinite()].double()
        if len(known) < 2 or float(known.min()) == float(known.max()):
            found = f"always {float(known[0]):g}" if len(known) else "always missing"
            raise SepNormError(
                f"{name!r} of {source} is {found} in training: there is nothing to learn, choose another."
            )
        scales.append((0.0, 1.0) if classes else (float(known.mean()), float(known.std())))
    mean, std = torch.tensor(scales).reshape(-1, 2).T
    return mean, std


def load_probed(
    config: MoleculeConfig, column: str | None = None, target: str | None = None, naming: str = _PROBED
) -> dict[str, MoleculeData]:
    """The tables of ``config.test`` by name, with SMILES in ``column``, each in its own split or by scaffold.

    Columns that ``target`` names are the targets of the tables that have them.
    """
    if config.test is None:
        return {}
    tables = tables_in(config.test)
    named = named_targets(config.test, tables, target) if target else {}
    plain = {
        "test": None,
        "column": column,
        "molecules": None,
        "train_molecules": None,
        "max_atoms": max(config.max_atoms, USUAL_ATOMS),  # a preset's lower limit is for training speed
        "kind": "auto",
    }
    return {
        name: load_molecules(
            config.changed(plain | {"data": path, "split": "auto", "targets": named.get(name)}), True, naming
        )
        for name, path in tables.items()
    }
