"""Which columns of a table are its targets, if they are not named."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from sepnorm.data.tables import NULLS
from sepnorm.errors import GuessWarning, SepNormError

_USUAL = (
    *"y target label expt exp p_np HIV_active homolumogap solubility activity class Class".split(),
    "measured log solubility in mols per litre",
)
_NUMBER = re.compile(r"\s*[<>~=≤≥]*\s*[-+]?[\d.,]*\d[\d.,]*(?:[eE][-+]?\d+)?\s*")


def usual_targets(
    source: str,
    columns: Mapping[str, Sequence[Any]],
    smiles: str,
    labelled: bool | None,
    naming: str,
    several: bool = False,
) -> list[str]:
    """The target columns: one with a usual name, or the only numeric one, or all that hold classes, as in Tox21.

    A column of distinct whole numbers beside classes is an ID and not a target.

    Args:
        source: where the table comes from, for messages.
        columns: its columns by name.
        smiles: the column with SMILES.
        labelled: raise if the targets are not clear; None to return an empty list if no column can be a target, False
            to return one in any doubt.
        naming: how to name the target, for the error message.
        several: take all columns of numbers, without IDs, where it is not clear which one is the target.
    """
    others = {name: values for name, values in columns.items() if name not in (smiles, "split")}
    numbers = [name for name, values in others.items() if _are_numbers(values)]
    usual = [name for name in _USUAL if name in others and (labelled is not False or name in numbers)]
    if usual:
        return usual[:1]
    without_ids = [name for name in numbers if not _is_id(others[name])]
    if without_ids and all(_are_classes(others[name]) for name in without_ids):
        return without_ids
    possible = numbers if labelled is False else [*numbers, *(name for name in others if _are_written(others[name]))]
    if len(possible) == 1:
        return possible
    if labelled is False or (labelled is None and not possible):
        return []
    if several and without_ids:
        warnings.warn(
            f"all {len(without_ids)} columns of numbers in {source} are its targets, such as {without_ids[0]!r}, and their mean "
            f"score is given. To choose one, {naming}.",
            GuessWarning,
            stacklevel=2,
        )
        return without_ids
    raise SepNormError(f"which column of {source} is the target is not clear (it has {', '.join(columns)}): {naming}.")


def _are_numbers(values: Sequence[Any]) -> bool:
    return isinstance(next((value for value in values if value is not None), None), int | float)


def _are_written(values: Sequence[Any]) -> bool:
    """Whether texts are numbers for the most part, some of them in a form that is none, as ``>10`` or ``3,9``."""
    known = [value for value in values if value is not None and value not in NULLS]
    if not known or not all(isinstance(value, str) for value in known):
        return False
    return 2 * sum(_NUMBER.fullmatch(value) is not None for value in known) >= len(known)


def _are_classes(values: Sequence[Any]) -> bool:
    """Whether all known values are 0 or 1."""
    return all(value in (0, 1, None) or value != value for value in values)


def _is_id(values: Sequence[Any]) -> bool:
    """Whether these are more than two whole numbers that are all different, and none is missing."""
    if len(values) < 3 or not all(isinstance(value, int | float) and value % 1 == 0 for value in values):
        return False
    return len(set(values)) == len(values)
