"""Figures of a comparison: losses, uniformity against accuracy, accuracy against lambda."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.metrics import Metric
from sepnorm.report.figures import COLOURS, figure
from sepnorm.report.selection import MOST_ARMS, without_lambda

_TARGETS = {"cls": "[CLS]", "tokens": "tokens", "both": "[CLS] and tokens"}


def loss_curves(arms: Sequence[Arm]) -> Any:
    """Loss by step, a line for each arm: the mean over seeds."""
    term = ", with the uniformity term" if any(_weight(arm) for arm in arms) else ""
    found = figure(f"Loss of training{term}, mean over seeds", "step", "loss")
    for arm, colour in zip(arms, _colours(), strict=False):
        runs = list(arm.losses.values())
        length = min(len(run) for run in runs)
        means = [sum(run[i][1] for run in runs) / len(runs) for i in range(length)]
        steps = [runs[0][i][0] for i in range(length)]
        found.add_scatter(x=steps, y=means, name=arm.name, mode="lines", line={"color": colour})
    if all(value > 0 for line in found.data for value in line.y):
        found.update_yaxes(type="log")
    return found


def against_uniformity(comparison: Comparison) -> list[Any]:
    """The leading metric against uniformity of [CLS], a point for each seed; effective rank where there are no labels.

    Many arms are coloured by their norm, whatever their lambda.
    """
    x = "cls_uniformity"
    geometry = [metric for metric in comparison.columns if metric.kind == "geometry"]
    others = [metric for metric in (*comparison.leading, *geometry) if metric.key != x]
    if x not in comparison.keys or not others:
        return []
    y, name_of_y = others[0].key, others[0].name
    title = f"Uniformity against {name_of_y}: spread-out [CLS] to the left"
    found = figure(title, comparison.declared.find(x).name, name_of_y)
    found.update_layout(hovermode="closest")
    for (name, arms), colour in zip(_groups(comparison).items(), _colours(), strict=False):
        seeds = [(arm, seed) for arm in arms for seed in sorted(arm.values(x).keys() & arm.values(y).keys())]
        found.add_scatter(
            x=[arm.values(x)[seed] for arm, seed in seeds],
            y=[arm.values(y)[seed] for arm, seed in seeds],
            text=[f"{arm.name}, seed {seed}" for arm, seed in seeds],
            name=name,
            mode="markers",
            marker={"size": 9, "color": colour},
            hovertemplate="%{text}<br>%{x:.3f}, %{y:.3f}<extra></extra>",
        )
    return [found]


def against_lambda(comparison: Comparison, metrics: Sequence[Metric] = ()) -> list[Any]:
    """Metrics, by default the leading ones, against lambda, a figure for each target of the uniformity term.

    None where lambda is the same for all arms.
    """
    weights = {arm.config.uniformity_weight for arm in comparison.arms}
    if len(weights) < 2:
        return []
    present = {arm.config.uniformity_on for arm in comparison.arms if arm.config.uniformity_weight}
    targets = [target for target in _TARGETS if target in present]
    return [_lambda(comparison, target, metric) for metric in metrics or comparison.leading for target in targets]


def lambda_lines(comparison: Comparison, target: str) -> dict[str, list[Arm]]:
    """Arms by rising lambda for each norm and form of the term; those without the term belong to every target."""
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
    found = figure(f"{metric.name} against lambda on {_TARGETS[target]}", "lambda", metric.name)
    lines = lambda_lines(comparison, target)
    # Lambdas are spaced by powers of ten and one of them is 0, so each has a place of its own.
    order = sorted({_weight(arm) for arms in lines.values() for arm in arms})
    found.update_xaxes(type="category", categoryorder="array", categoryarray=[f"{weight:g}" for weight in order])
    for (name, arms), colour in zip(lines.items(), _colours(), strict=False):
        measured = [(arm, mean) for arm in arms if (mean := arm.interval(metric.key)) is not None]
        halves = [0.0 if math.isnan(mean.half) else mean.half for _, mean in measured]
        found.add_scatter(
            x=[f"{_weight(arm):g}" for arm, _ in measured],
            y=[mean.mean for _, mean in measured],
            error_y={"type": "data", "array": halves, "thickness": 1},
            text=[arm.name for arm, _ in measured],
            name=name,
            mode="lines+markers",
            line={"color": colour},
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


def _colours() -> tuple[str, ...]:
    return COLOURS * 9
