"""Figures of a comparison: losses, uniformity against accuracy, accuracy against lambda."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.metrics import Metric
from sepnorm.report.arms import styles
from sepnorm.report.figures import figure, log_axis
from sepnorm.report.selection import MOST_ARMS, without_lambda

_TARGETS = {"cls": "[CLS]", "tokens": "tokens", "both": "[CLS] and tokens"}


def loss_curves(arms: Sequence[Arm]) -> Any:
    """Loss by step: one line per arm, the mean over seeds."""
    term = ", with the uniformity term" if any(_weight(arm) for arm in arms) else ""
    caption = "Loss by step of training, mean over seeds, in the unit of the loss."
    found = figure(f"Loss of training{term}", "step", "loss", caption)
    looks = styles(arm.name for arm in arms)
    for arm in arms:
        runs = list(arm.losses.values())
        length = min(len(run) for run in runs)
        means = [sum(run[i][1] for run in runs) / len(runs) for i in range(length)]
        steps = [runs[0][i][0] for i in range(length)]
        look = looks[arm.name]
        found.add_scatter(x=steps, y=means, name=arm.name, mode="lines", line=look.line, meta=look.kind)
    if all(value > 0 for line in found.data for value in line.y):
        log_axis(found)
    return found


def against_uniformity(comparison: Comparison) -> list[Any]:
    """The primary metric against uniformity of [CLS], one point per seed; without labels, effective rank.

    If there are many arms, colours show only the norm.
    """
    x = "cls_uniformity"
    geometry = [metric for metric in comparison.columns if metric.kind == "geometry"]
    others = [metric for metric in (*comparison.leading, *geometry) if metric.key != x]
    if x not in comparison.keys or not others:
        return []
    y, name_of_y = others[0].key, others[0].name
    title = f"Uniformity against {name_of_y}: [CLS] is more evenly spread to the left"
    caption = f"Each point is a seed: its {name_of_y} by the uniformity of its [CLS] (no unit)."
    found = figure(title, comparison.declared.find(x).name, name_of_y, caption)
    found.update_layout(hovermode="closest")
    groups = _groups(comparison)
    looks = styles(groups)
    for name, arms in groups.items():
        seeds = [(arm, seed) for arm in arms for seed in sorted(arm.values(x).keys() & arm.values(y).keys())]
        found.add_scatter(
            x=[arm.values(x)[seed] for arm, seed in seeds],
            y=[arm.values(y)[seed] for arm, seed in seeds],
            text=[f"{arm.name}, seed {seed}" for arm, seed in seeds],
            name=name,
            mode="markers",
            marker=looks[name].marker | {"size": 9},
            meta=looks[name].kind,
            hovertemplate="%{text}<br>%{x:.3f}, %{y:.3f}<extra></extra>",
        )
    return [found]


def against_lambda(comparison: Comparison, metrics: Sequence[Metric] = ()) -> list[Any]:
    """Metrics, by default the leading ones, against lambda: one figure per target of the uniformity term.

    The list is empty if all arms have the same lambda.
    """
    weights = {arm.config.uniformity_weight for arm in comparison.arms}
    if len(weights) < 2:
        return []
    present = {arm.config.uniformity_on for arm in comparison.arms if arm.config.uniformity_weight}
    targets = [target for target in _TARGETS if target in present]
    return [_lambda(comparison, target, metric) for metric in metrics or comparison.leading for target in targets]


def lambda_lines(comparison: Comparison, target: str) -> dict[str, list[Arm]]:
    """Arms by ascending lambda, for each norm and form of the term. Arms without the term appear for every target."""
    lines: dict[tuple[str, str], list[Arm]] = {}
    for arm in comparison.arms:
        if _weight(arm) and arm.config.uniformity_on == target:
            lines.setdefault((without_lambda(arm), arm.config.uniformity_form), []).append(arm)
    for arm in comparison.arms:
        if not _weight(arm):
            norm = without_lambda(arm)
            for key in [key for key in lines if key[0] == norm] or [(norm, "squared")]:
                lines.setdefault(key, []).append(arm)
    return {
        norm if form == "squared" else f"{norm}, {form}": sorted(arms, key=_weight)
        for (norm, form), arms in lines.items()
    }


def _lambda(comparison: Comparison, target: str, metric: Metric) -> Any:
    title = f"{metric.name} against lambda on {_TARGETS[target]}"
    found = figure(
        title, "lambda", metric.name, f"Mean {metric.name} over seeds with 95 % intervals, by lambda (no unit)."
    )
    lines = lambda_lines(comparison, target)
    # A categorical axis, because lambdas are powers of ten and one of them is 0.
    order = sorted({_weight(arm) for arms in lines.values() for arm in arms})
    found.update_xaxes(type="category", categoryorder="array", categoryarray=[f"{weight:g}" for weight in order])
    looks = styles(lines)
    for name, arms in lines.items():
        measured = [(arm, mean) for arm in arms if (mean := arm.interval(metric.key)) is not None]
        halves = [0.0 if math.isnan(mean.half) else mean.half for _, mean in measured]
        found.add_scatter(
            x=[f"{_weight(arm):g}" for arm, _ in measured],
            y=[mean.mean for _, mean in measured],
            error_y={"type": "data", "array": halves, "thickness": 1},
            text=[arm.name for arm, _ in measured],
            name=name,
            mode="lines+markers",
            line=looks[name].line,
            marker=looks[name].marker,
            meta=looks[name].kind,
            hovertemplate="%{text}<br>%{y:.3f}<extra></extra>",
        )
    return found


def _groups(comparison: Comparison) -> dict[str, list[Arm]]:
    found: dict[str, list[Arm]] = {}
    for arm in comparison.arms:
        name = arm.name if len(comparison.arms) <= MOST_ARMS else without_lambda(arm)
        found.setdefault(name, []).append(arm)
    return found


def _weight(arm: Arm) -> float:
    return arm.config.uniformity_weight
