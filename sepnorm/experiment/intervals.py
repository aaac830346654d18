"""Means over seeds with intervals, and paired differences to a baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDING = 1e-9  # a half-width this small relative to the mean comes from rounding


def decimals(half: float) -> int:
    """Decimals that a half-width supports: one digit of it, two if it begins with 1.

    >>> [decimals(half) for half in (0.004, 0.0015, 57.0)]
    [3, 4, 0]
    """
    size = math.floor(math.log10(half))
    return max(0, (1 if half < 2 * 10**size else 0) - size)


def _shown(mean: float, half: float, sign: str = "") -> str:
    """``0.823 ± 0.008``: the decimals that the half-width supports; three if it is 0 or unknown."""
    if math.isnan(half) or half <= _ROUNDING * abs(mean):
        kind = ".3f" if mean == 0 or 1e-3 <= abs(mean) < 1e3 else ".3g"
        return f"{mean:{sign}{kind}}" + ("" if math.isnan(half) else f" ± {0:{kind}}")
    if math.isinf(half):
        return f"{mean:{sign}.3g}"
    places = decimals(half)
    return f"{round(mean, places) + 0.0:{sign}.{places}f} ± {half:.{places}f}"


@dataclass(eq=False)
class Interval:
    """A mean over ``count`` seeds and the half-width of its 95 % interval (Student's t), NaN for one seed."""

    mean: float
    half: float
    count: int

    def __str__(self) -> str:
        return _shown(self.mean, self.half)

    @property
    def rounded(self) -> str:
        """The mean alone, with the decimals that its interval supports."""
        return str(self).partition(" ")[0]


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval of values, one for each seed.

    >>> str(interval([1.0, 2.0, 3.0]))
    '2 ± 2'
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
        return _shown(self.mean, self.half, "+")


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
