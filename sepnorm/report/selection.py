"""Selects the arms shown in figures, and the references of differences."""

from __future__ import annotations

from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.report.arms import kind_of

#: Number of arms shown in figures.
MOST_ARMS = 8


def shown_arms(comparison: Comparison) -> list[Arm]:
    """The arms shown in figures, in order: all, or if there are too many the baseline and the best others."""
    kept = comparison.ranked()[: MOST_ARMS - 1]
    return [arm for arm in comparison.arms if arm is comparison.arms[0] or arm in kept]


def references(comparison: Comparison) -> list[Arm]:
    """The arms to subtract: the baseline and, with three or more arms, another with the same lambda.

    It is the first with a shared norm, such as ``bn@final``, since separate norms are compared with shared ones; else
    the first.
    """
    baseline, *others = comparison.arms
    alike = [arm for arm in others if arm.config.uniformity_weight == baseline.config.uniformity_weight]
    alike.sort(key=lambda arm: kind_of(arm.name) != "shared")
    return [baseline, *alike[:1]] if len(others) > 1 else [baseline]


def without_lambda(arm: Arm) -> str:
    """The norm and sites of an arm, without its lambda."""
    return arm.config.changed({"uniformity_weight": 0.0}).arm
