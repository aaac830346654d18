"""Forecasts how many more seeds an undecided paired difference needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

PROBABLY = 0.8
_FUTURES = 2000
_GOLDEN = (math.sqrt(5) - 1) / 2


def seeds_to_decide(
    mean: float, deviation: float, count: int, limits: Sequence[float], margin: float, sequential: bool
) -> int | None:
    """The least number of further seeds that gives a decision with a probability of 80 %; None if there is none.

    ``mean`` and ``deviation`` (sample standard deviation) are those of the ``count`` differences so far, at least two.
    ``limits[n]`` is the critical value of |t| with n seeds in all; numbers of seeds beyond its length are not
    considered. Decided means that the interval with that limit excludes 0 or lies within ``margin`` of it: at that
    number of seeds, or with ``sequential`` at any number up to it.

    The differences so far are kept, and future ones are drawn from their predictive distribution, as Herson (Biometrics
    35:775, 1979) predicts the end of a trial. The prior is dμ dσ / σ²: uniform in the spread's logarithm and in the
    difference in units of σ. So the answer accounts for the uncertainty of mean and spread. It remains a forecast: the
    true mean is as likely on either side of the observed one, and many more seeds are needed if it is nearer to 0 or to
    the margin. The 80 % hold on average over comparisons with any true difference; they are no promise for a single
    one.

    2,000 futures are simulated, from an even grid of true means and spreads and with a fixed seed, so the answer is
    reproducible.
    """
    import numpy as np
    from scipy.special import chdtri, ndtri

    steps = np.arange(1, len(limits) - count)
    if count < 2 or not len(steps):
        return None
    at = np.arange(_FUTURES)[:, None] + 0.5  # Fibonacci lattice in the unit square
    sigma = deviation * np.sqrt((count - 1) / chdtri(count, at / _FUTURES))
    shift = sigma * ndtri(at * _GOLDEN % 1) / math.sqrt(count)  # shift of the true mean from the observed one
    coming = shift + sigma * np.random.default_rng(0).standard_normal((_FUTURES, len(steps)))
    total = count + steps
    added = coming.cumsum(1)
    squares = (count - 1) * deviation**2 + (coming**2).cumsum(1) - added**2 / total
    means = np.abs(abs(mean) + added / total)
    half = np.asarray(limits)[total] * np.sqrt(np.maximum(squares, 0) / (total - 1) / total)
    decided = (means > half) | (means + half <= margin)
    if sequential:
        decided = np.logical_or.accumulate(decided, axis=1)
    enough = decided.mean(0) >= PROBABLY
    return int(steps[enough.argmax()]) if enough.any() else None
