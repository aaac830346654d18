"""Means over seeds with intervals, and paired differences to a baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(eq=False)
class Interval:
    """A mean over ``count`` seeds and the half-width of its 95 % interval (Student's t), NaN for one seed."""

    mean: float
    half: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if math.isnan(self.half) else f"{self.mean:.3f} ± {self.half:.3f}"


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval of values, one for each seed.

    >>> str(interval([1.0, 2.0, 3.0]))
    '2.000 ± 2.484'
    """
    from scipy.stats import t

    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Interval(mean, math.nan, n)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Interval(mean, float(t.ppf(0.975, n - 1)) * deviation / math.sqrt(n), n)


@dataclass(eq=False)
class Difference(Interval):
    """A paired difference to the baseline. ``verdict`` is better or worse if the interval excludes 0, else undecided.

    ``verdict`` is None for a metric without a better direction.
    """

    verdict: str | None = "undecided"

    def __str__(self) -> str:
        return f"{self.mean:+.3f}" if math.isnan(self.half) else f"{self.mean:+.3f} ± {self.half:.3f}"


def difference(
    values: dict[int, float], baseline: dict[int, float], higher_is_better: bool | None
) -> Difference | None:
    """The difference paired by seed, over the seeds that both have; None if they share none."""
    seeds = sorted(values.keys() & baseline.keys())
    if not seeds:
        return None
    found = interval([values[seed] - baseline[seed] for seed in seeds])
    verdict = None if higher_is_better is None else "undecided"
    if higher_is_better is not None and not math.isnan(found.half) and abs(found.mean) > found.half:
        verdict = "better" if (found.mean > 0) == higher_is_better else "worse"
    return Difference(found.mean, found.half, found.count, verdict)
