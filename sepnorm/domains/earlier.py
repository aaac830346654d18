"""The earlier report in a comparison's folder: what may replace it, and when that is a second look."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepnorm.errors import SecondLookWarning, SepNormError

if TYPE_CHECKING:
    from sepnorm.experiment.comparison import Comparison


@dataclass(frozen=True)
class _Earlier:
    """An earlier report: its arms, failed runs and number of seeds, what was set by then, and looks before it."""

    arms: list[str]
    failed: list[tuple[str, int]]
    seeds: int
    most: int | None
    planned: int
    looks: list[int]
    settings: dict[str, Any]  #: by name; of older reports some are unknown
    changed: list[str]

    def missing(self, arms: Sequence[str]) -> list[str]:
        """Arms that are gone now. One of which a run failed may go: it stays in the correction."""
        failed = {name for name, _ in self.failed}
        return [name for name in self.arms if name not in arms and name not in failed]


def keep_earlier(
    folder: Path, arms: Sequence[str], options: tuple[str, str] = ("--out", "--norms")
) -> list[tuple[str, int]]:
    """Refuses to overwrite a report that has arms which are missing now.

    Args:
        folder: the comparison's folder.
        arms: names of the arms now.
        options: how the caller names the folder and the arms.

    Returns:
        Arm and seed of failed runs of arms that are left out now.
    """
    found = _earlier(folder)
    if found is None:
        return []
    if gone := found.missing(arms):
        raise SepNormError(
            f"{folder} holds a report on {', '.join(found.arms)}, which would be overwritten without {', '.join(gone)}: choose "
            f"another folder with {options[0]}, or add the missing arms to {options[1]}. Only an arm with a failed run may be left "
            "out."
        )
    return [(name, seed) for name, seed in found.failed if name not in arms]


def _earlier(folder: Path) -> _Earlier | None:
    try:
        found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        seeds = max(len(arm.get("seeds", ())) for arm in found["arms"])
        names, most = [str(arm["name"]) for arm in found["arms"]], found.get("most_seeds")
        failed = [(str(run["arm"]), int(run["seed"])) for run in found.get("failed", [])]
        planned = int(found.get("planned_seeds") or most or seeds)  # older reports do not say it
        looks = [int(count) for count in found.get("earlier_looks", [])]
        settings = {"margin": found["given_margin"]} if "given_margin" in found else {}
        settings |= {"primary metric": found["primary"]} if found.get("primary") else {}
        return _Earlier(
            names, failed, seeds, most, planned, looks, settings, list(found.get("changed_after_report", []))
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # there is no readable report


def note_earlier(comparison: Comparison, folder: Path) -> None:
    """Notes in the comparison what it changes after an earlier report, and warns if verdicts come from a second look.

    These are more seeds than were planned, another margin, and another primary metric. The same call again, or one that
    finishes what failed, is no further look. The default margin moves with the data and is none either.
    """
    earlier = _earlier(folder)
    if earlier is None or earlier.missing([arm.name for arm in comparison.arms]):
        return
    same = (earlier.most, earlier.planned) == (comparison.most, comparison.budget)
    comparison.earlier = sorted({*earlier.looks, *([] if same else [earlier.seeds])})
    if not same and earlier.seeds in comparison.looks:
        _warn(
            f"{folder} held a report on {earlier.seeds} seed{'s' * (earlier.seeds > 1)} before, so verdicts on more come from a "
            "second look and their 95 % do not hold: set the number of seeds, or auto with its most, before the first run."
        )
    primary = comparison.primary
    now = {"margin": comparison.margin, "primary metric": None if primary is None else primary.key}
    changed = [name for name, value in earlier.settings.items() if value != now[name]]
    comparison.changed = list(dict.fromkeys([*earlier.changed, *changed]))
    if changed:
        _warn(
            f"{folder} held a report with another {' and another '.join(changed)} before, so verdicts come from a second look and "
            "their 95 % do not hold: set margin and primary metric before the first run."
        )


def _warn(text: str) -> None:
    warnings.warn(text, SecondLookWarning, stacklevel=5)
