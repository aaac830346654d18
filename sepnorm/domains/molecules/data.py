"""Molecules in memory with their targets, split for training, validation and test."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.choices import evenly
from sepnorm.domains.molecules.cache import featurise_many
from sepnorm.domains.molecules.config import MoleculeConfig
from sepnorm.domains.molecules.features import Rejected, from_pyg
from sepnorm.domains.molecules.graphs import Graph
from sepnorm.domains.molecules.tables import NAMING, SPLITS, Table, read_table, tables_in
from sepnorm.errors import LeftOutWarning, SepNormError, tell_limit

_PROBED = "call it y, target or label"  # how a target is named in a table that a run is probed on
_SHARES = (0.8, 0.1)  # of molecules for training and for validation; the rest is for testing


@dataclass(eq=False)
class MoleculeSet:
    """Graphs, their SMILES (empty where there are none), and targets (count, targets), NaN where one is missing."""

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
    """The three sets, the names of targets, whether these are classes, their scale, and what could not be read."""

    train: MoleculeSet
    valid: MoleculeSet
    test: MoleculeSet
    names: list[str]
    classes: bool
    mean: Tensor  #: (targets,) of the training molecules; 0 for classes
    std: Tensor  #: (targets,) likewise; 1 for classes
    rejected: list[Rejected]


def load_molecules(config: MoleculeConfig, probed: bool = False, naming: str = NAMING) -> MoleculeData:
    """Reads what ``config.data`` names; see ``read_table``. Few rows that are no molecule are left out with a warning.

    A table to learn from, or one that is ``probed``, has targets.
    """
    table = read_table(
        config.data, config.column, config.targets, labelled=probed or config.task == "supervised", naming=naming
    )
    if config.molecules is not None and config.molecules < len(table.smiles):
        table = table.take(evenly(len(table.smiles), config.molecules).tolist())
    whole, kept, rejected = _molecules(table, config)
    splits = None if table.splits is None else [table.splits[row] for row in kept]
    parts = split_rows(whole, splits, config)
    labelled = whole.targets.isfinite().any(1)
    needed = ("train", "valid", "test") if config.task == "supervised" else ("valid", "test")
    for name in needed if table.targets else ():
        parts[name] = [row for row in parts[name] if labelled[row]]
    if config.train_molecules is not None and config.train_molecules < len(parts["train"]):
        count = len(parts["train"])
        if config.data != "nci":
            tell_limit(config.train_molecules, f"{count:,} training molecules", "train_molecules")
        parts["train"] = [parts["train"][i * count // config.train_molecules] for i in range(config.train_molecules)]
    for name, rows in parts.items():
        if len(rows) < 2:
            what = "labelled molecules" if table.targets and name in needed else "molecules"
            raise SepNormError(f"{config.data} gives {len(rows)} {what} for {name}: more are needed, or another split.")
    classes = _are_classes(whole.targets, config)
    for name in ("valid", "test") if classes else ():
        _two_classes(whole.targets[parts[name]], name, config)
    train = whole.take(parts["train"])
    mean, std = _scale(train.targets, list(table.targets), classes, config.data)
    return MoleculeData(
        train, whole.take(parts["valid"]), whole.take(parts["test"]), list(table.targets), classes, mean, std, rejected
    )


def _molecules(table: Table, config: MoleculeConfig) -> tuple[MoleculeSet, list[int], list[Rejected]]:
    """What can be read, and the row of each."""
    graphs: Sequence[Graph]
    rejected: list[Rejected] = []
    if table.graphs:
        graphs = from_pyg(table.graphs, config.features)
    else:
        graphs, rejected = featurise_many(table.smiles, config.features, config.max_atoms)
    left_out = {each.row for each in rejected}
    count = len(table.smiles)
    if rejected:
        some = "; ".join(f"row {each.row + 1} {each.smiles!r}: {each.reason}" for each in rejected[:3])
        said = f"{len(rejected)} of {count} rows of {table.source} are no molecule that can be taken, such as {some}"
        if len(rejected) > config.max_rejected * count:
            raise SepNormError(f"{said}; mend them; a run can allow more by --set max_rejected=SHARE.")
        warnings.warn(f"{said}. They are left out.", LeftOutWarning, stacklevel=3)
    kept = [row for row in range(count) if row not in left_out]
    columns = [_numbers(name, values, table.source) for name, values in table.targets.items()]
    targets = torch.tensor(columns).reshape(len(columns), count).T
    return MoleculeSet(list(graphs), [str(table.smiles[row]).strip() for row in kept], targets[kept]), kept, rejected


def _numbers(name: str, values: list[Any], source: str) -> list[float]:
    """Numbers of a column, NaN for what is missing."""
    found = []
    for row, value in enumerate(values, 1):
        try:
            found.append(float("nan") if value is None or value == "" else float(value))
        except (TypeError, ValueError):
            raise SepNormError(f"{name!r} of {source} holds no number in row {row}, found {value!r}.") from None
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
    """Refuses a part in which nothing can be told apart, or its scores would be missing without a word."""
    known = [column[column.isfinite()].unique() for column in targets.T]
    if known and all(len(values) < 2 for values in known):
        raise SepNormError(
            f"all molecules of {config.data} for {name} are of class {float(known[0][0]):g}, so that nothing can be scored: take "
            "another split."
        )


def _scale(targets: Tensor, names: list[str], classes: bool, source: str) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every target; one that is always the same is refused."""
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
    """The tables that ``config.test`` names, each split by scaffold, by their names; their SMILES are in ``column``."""
    if config.test is None:
        return {}
    plain = {
        "test": None,
        "column": column,
        "targets": target,
        "molecules": None,
        "train_molecules": None,
        "kind": "auto",
    }
    return {
        name: load_molecules(config.changed(plain | {"data": path, "split": "scaffold"}), True, naming)
        for name, path in tables_in(config.test).items()
    }


# ---- splits -------------------------------------------------------------------------------------------------------------


def split_rows(molecules: MoleculeSet, given: Sequence[str] | None, config: MoleculeConfig) -> dict[str, list[int]]:
    """Rows for ``train``, ``valid`` and ``test``: the same for every seed of a run."""
    how = config.split
    if how == "auto":
        how = "scaffold" if config.task == "pretrain" and any(molecules.smiles) else "random"
        how = "given" if given is not None and config.task == "supervised" else how
    if how == "given":
        return _given(given, config.data)
    if how == "random":
        return _shares(torch.randperm(len(molecules), generator=torch.Generator().manual_seed(0)).tolist())
    if not all(molecules.smiles):
        raise SepNormError(
            f"a split by scaffold needs SMILES, and {config.data} has graphs: take split=given or random."
        )
    return _by_scaffold([scaffold(smiles) for smiles in molecules.smiles])


def _given(splits: Sequence[str] | None, source: str) -> dict[str, list[int]]:
    if splits is None:
        raise SepNormError(f"{source} has no column 'split': take split=random or split=scaffold.")
    names = {alias: name for name, aliases in SPLITS.items() for alias in aliases}
    found: dict[str, list[int]] = {name: [] for name in SPLITS}
    for row, split in enumerate(splits):
        if str(split).lower() not in names:
            raise SepNormError(f"a split is train, valid or test, found {split!r} in {source}.")
        found[names[str(split).lower()]].append(row)
    if not found["valid"]:  # a tenth of the training molecules chooses, then
        order = torch.randperm(len(found["train"]), generator=torch.Generator().manual_seed(0)).tolist()
        held_out = set(order[: len(order) // 10])
        found["valid"] = [row for i, row in enumerate(found["train"]) if i in held_out]
        found["train"] = [row for i, row in enumerate(found["train"]) if i not in held_out]
    return found


def _shares(rows: list[int]) -> dict[str, list[int]]:
    first, second = round(_SHARES[0] * len(rows)), round(sum(_SHARES) * len(rows))
    return {"train": rows[:first], "valid": rows[first:second], "test": rows[second:]}


def _by_scaffold(scaffolds: Sequence[str]) -> dict[str, list[int]]:
    """Molecules of one scaffold stay together: the most frequent ones are for training, the rare ones for testing.

    Of scaffolds as frequent as each other, those that occur first come last, as in the splits that figures for these sets are
    published with.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(scaffolds):
        groups[name].append(row)
    found: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    count = len(scaffolds)
    for rows in sorted(groups.values(), key=lambda rows: (len(rows), rows[0]), reverse=True):
        if len(found["train"]) + len(rows) <= _SHARES[0] * count:
            found["train"] += rows
        elif len(found["train"]) + len(found["valid"]) + len(rows) <= sum(_SHARES) * count:
            found["valid"] += rows
        else:
            found["test"] += rows
    return found


def scaffold(smiles: str) -> str:
    """The rings of a molecule and what joins them (Bemis and Murcko, 1996), as SMILES; empty without a ring."""
    from rdkit import Chem, rdBase
    from rdkit.Chem.Scaffolds.MurckoScaffold import GetScaffoldForMol

    with rdBase.BlockLogs():
        return str(Chem.MolToSmiles(GetScaffoldForMol(Chem.MolFromSmiles(smiles)), isomericSmiles=False))
