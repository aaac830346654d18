"""Number of steps after which an arm is as good as another one at its best."""

from __future__ import annotations

import math

from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.intervals import interval
from sepnorm.report.progress_figures import readings
from sepnorm.report.tables import Table

#: Arms whose best the others should reach: BatchNorm, as in the paper of Mixture Normalisation, and with one for [CLS].
REFERENCES = ("bn@final", "bn+bn@final")
PROBES = {
    "cls_linear_top1": ("Linear probe of [CLS] over training, some images", "accuracy"),
    "cls_knn": ("Nearest neighbours of [CLS] over training, some images", "accuracy"),
}


def first_step(steps: list[float], values: list[float], target: float) -> float | None:
    """The step at which readings first reach ``target``, interpolated linearly; None if they never do.

    >>> first_step([1, 10, 20], [0.1, 0.4, 0.6], 0.5)
    15.0
    """
    for number, value in enumerate(values):
        if value < target:
            continue
        if not number:
            return steps[0]
        before, low = steps[number - 1], values[number - 1]
        return before + (steps[number] - before) * (target - low) / (value - low)
    return None


def steps_tables(name: str, comparison: Comparison) -> list[Table]:
    """A table for each probe and reference with a row for each arm; none if runs were not probed during training."""
    if not all(_probed(arm) for arm in comparison.arms):
        return []
    found: list[Table] = []
    for key in PROBES:
        axis = comparison.declared.find(key).name
        for reference in (arm for arm in comparison.arms if arm.name in REFERENCES):
            reach = f"seeds that reach {reference.name}"
            head = [f"{name}, {axis}, on the way", "best", reach, "at step", "share of its steps"]
            found.append((head, [_row(arm, reference, key) for arm in comparison.arms]))
    return found


def _probed(arm: Arm) -> bool:
    kept = readings(arm)
    return bool(kept) and all(set(PROBES) <= set(each) for each in kept.values())


def _row(arm: Arm, reference: Arm, key: str) -> list[str]:
    """Means over seeds of steps and shares, if all seeds reach the target."""
    ours, theirs = readings(arm), readings(reference)
    best, steps, shares = [], [], []
    for seed in sorted(ours.keys() & theirs.keys()):
        target = float(theirs[seed][key].max())
        lines = [(each[seed]["steps"].tolist(), each[seed][key].tolist()) for each in (ours, theirs)]
        reached, needed = (first_step(*line, target) for line in lines)
        best.append(max(lines[0][1]))
        if reached is not None and needed is not None:
            steps.append(reached)
            shares.append(reached / needed)
    cells = [arm.name, _shown(best, 3), f"{len(steps)} of {len(best)}"]
    if len(steps) < len(best):
        return [*cells, "", ""]
    return [*cells, _shown(steps, 0), _shown(shares, 2)]


def _shown(values: list[float], digits: int) -> str:
    found = interval(values)
    return f"{found.mean:.{digits}f}" + ("" if math.isnan(found.half) else f" ± {found.half:.{digits}f}")
