"""Which arms of a comparison have figures of their own, and what the others are subtracted from."""

from __future__ import annotations

from sepnorm.experiment.comparison import Arm, Comparison

#: Arms that have figures of their own.
MOST_ARMS = 6


def shown_arms(comparison: Comparison) -> list[Arm]:
    """The arms that have figures of their own, in their order: all, or else the baseline and the best others."""
    kept = comparison.ranked()[: MOST_ARMS - 1]
    return [arm for arm in comparison.arms if arm is comparison.arms[0] or arm in kept]


def references(comparison: Comparison) -> list[Arm]:
    """What the others are subtracted from: the baseline, and of three arms or more the next with the same lambda."""
    baseline, *others = comparison.arms
    alike = [arm for arm in others if arm.config.uniformity_weight == baseline.config.uniformity_weight]
    return [baseline, *alike[:1]] if len(others) > 1 else [baseline]


def without_lambda(arm: Arm) -> str:
    """The name of an arm's norm and sites alone."""
    return arm.config.changed({"uniformity_weight": 0.0}).arm
