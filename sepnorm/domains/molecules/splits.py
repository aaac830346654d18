"""Splits of molecules: as the data say, at random, or by scaffold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from sepnorm.data.tables import LONGEST_TEXT
from sepnorm.domains.molecules.config import MoleculeConfig
from sepnorm.domains.molecules.tables import SPLITS, Table
from sepnorm.errors import SepNormError

_SHARES = (0.8, 0.1)  # training and validation; the rest is the test split
_FEWEST = 2  # molecules of a split
_LOOKED_AT = 10_000  # molecules that are read before a run begins, in a few seconds


def kind_of_split(
    smiles: Sequence[str], given: Sequence[str] | None, config: MoleculeConfig, probed: bool = False
) -> str:
    """``given``, ``random`` or ``scaffold``: what ``split=auto`` stands for."""
    if config.split != "auto":
        return config.split
    if given is not None and (probed or config.task == "supervised"):
        return "given"
    return "scaffold" if config.task == "pretrain" and any(smiles) else "random"


def split_rows(
    smiles: Sequence[str], given: Sequence[str] | None, config: MoleculeConfig, probed: bool = False
) -> dict[str, list[int]]:
    """Rows of ``train``, ``valid`` and ``test``, the same for every seed."""
    how = kind_of_split(smiles, given, config, probed)
    if how == "given":
        return _given(given, config.data)
    if how == "random":
        return _shares(_shuffled(len(smiles)))
    if not all(smiles):
        raise SepNormError(
            f"a split by scaffold needs SMILES, and {config.data} has graphs: take split=given or random."
        )
    return _by_scaffold([scaffold(each) for each in smiles])


def require_rows(
    parts: Mapping[str, Sequence[int]],
    how: str,
    config: MoleculeConfig,
    labelled: Collection[str] = (),
    probed: bool = False,
) -> None:
    """Raises if a split is too small. Of the splits in ``labelled``, only molecules with a label are counted."""
    said = {"given": "by its own column or files", "random": "at random", "scaffold": "by scaffold"}[how]
    other = ", or give it a column 'split'" if probed else ", or --set split=random"
    other = "" if how == "random" or (probed and how == "given") else other
    for name, rows in parts.items():
        if len(rows) < _FEWEST:
            what = "labelled molecules" if name in labelled else "molecules"
            raise SepNormError(
                f"{config.data}, split {said}, has {len(rows)} {what} for {name}, and {_FEWEST} are needed: "
                f"use more molecules{other}."
            )


def look_at_split(table: Table, config: MoleculeConfig) -> None:
    """Raises if a table is too small for its split, before anything is trained.

    Scaffolds of a large table take too long for that: its runs find out.
    """
    if find_spec("rdkit") is None:  # the run says so
        return
    rows: Sequence[int] = range(len(table.smiles))
    if config.molecules is not None and config.molecules < len(rows):
        rows = [i * len(rows) // config.molecules for i in range(config.molecules)]  # as arrange takes them
    if not table.graphs and len(rows) <= _LOOKED_AT:
        count, rows = len(rows), _readable(table.smiles, rows)
        if count - len(rows) > config.max_rejected * count:  # that is refused first, with the rows
            return
    smiles = [str(table.smiles[row]).strip() for row in rows]
    given = None if table.splits is None else [table.splits[row] for row in rows]
    how = kind_of_split(smiles, given, config)
    if how == "scaffold" and len(rows) > _LOOKED_AT:
        return
    parts = _shares(list(rows)) if how == "random" else split_rows(smiles, given, config)
    require_rows(parts, how, config)


def _readable(smiles: Sequence[Any], rows: Sequence[int]) -> list[int]:
    """The rows that RDKit can read."""
    from rdkit import Chem, rdBase

    def reads(text: Any) -> bool:
        try:
            return isinstance(text, str) and len(text) <= LONGEST_TEXT and Chem.MolFromSmiles(text) is not None
        except UnicodeEncodeError:
            return False

    with rdBase.BlockLogs():
        return [row for row in rows if reads(smiles[row]) and smiles[row].strip()]


def _shuffled(count: int) -> list[int]:
    import torch

    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    return order


def _given(splits: Sequence[str] | None, source: str) -> dict[str, list[int]]:
    if splits is None:
        raise SepNormError(f"{source} has no column 'split': take split=random or split=scaffold.")
    names = {alias: name for name, aliases in SPLITS.items() for alias in aliases}
    found: dict[str, list[int]] = {name: [] for name in SPLITS}
    for row, split in enumerate(splits):
        if str(split).lower() not in names:
            raise SepNormError(f"a split is train, valid or test, found {split!r} in {source}.")
        found[names[str(split).lower()]].append(row)
    if not found["valid"]:  # then a tenth of the training molecules is for validation
        order = _shuffled(len(found["train"]))
        held_out = set(order[: len(order) // 10])
        found["valid"] = [row for i, row in enumerate(found["train"]) if i in held_out]
        found["train"] = [row for i, row in enumerate(found["train"]) if i not in held_out]
    return found


def _shares(rows: list[int]) -> dict[str, list[int]]:
    first, second = round(_SHARES[0] * len(rows)), round(sum(_SHARES) * len(rows))
    return {"train": rows[:first], "valid": rows[first:second], "test": rows[second:]}


def _by_scaffold(scaffolds: Sequence[str]) -> dict[str, list[int]]:
    """Splits by scaffold: molecules with frequent scaffolds are for training, those with rare ones for testing.

    Among equally frequent scaffolds, those that occur first come last, as in the published splits.
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
    """The Bemis-Murcko scaffold (1996), the rings of a molecule and their linkers, as SMILES; empty without a ring."""
    from rdkit import Chem, rdBase
    from rdkit.Chem.Scaffolds.MurckoScaffold import GetScaffoldForMol

    with rdBase.BlockLogs():
        return str(Chem.MolToSmiles(GetScaffoldForMol(Chem.MolFromSmiles(smiles)), isomericSmiles=False))
