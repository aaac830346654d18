"""Where the spread from seed to seed comes from: the models, or that the test set is finite."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spread:
    """Standard deviations over seeds of a score's paired difference.

    ``low`` and ``high`` are the 95 % interval of ``total`` for normal differences. ``test`` is what a finite test set adds, and
    ``models`` what would be left of ``total`` with a test set without end.
    """

    total: float
    low: float
    high: float
    test: float
    models: float


def spread_of(gaps: Tensor) -> Spread:
    """From (seeds, samples): what each test sample adds to the difference of each seed, such as 1, 0 or -1 for right and wrong.

    A two-way layout without repetition (Scheffé, The Analysis of Variance, 1959, chapter 4): the variance of the seeds' means is
    that of the models plus the residual variance over the number of samples. The samples themselves are common to all seeds.
    """
    seeds, samples = gaps.shape
    if seeds < 2 or samples < 2:
        return Spread(*[math.nan] * 5)
    from scipy.stats import chi2

    x = gaps.double()
    variance = float(x.mean(1).var())
    residual = x - x.mean(1, keepdim=True) - x.mean(0, keepdim=True) + x.mean()
    test = float(residual.square().sum()) / ((seeds - 1) * (samples - 1)) / samples
    low, high = (math.sqrt(variance * (seeds - 1) / chi2.ppf(share, seeds - 1)) for share in (0.975, 0.025))
    return Spread(math.sqrt(variance), low, high, math.sqrt(test), math.sqrt(max(0.0, variance - test)))


def stacked(rights: dict[int, Tensor], baseline: dict[int, Tensor]) -> Tensor:
    """(seeds, samples) of differences, of the seeds that both have."""
    seeds = sorted(rights.keys() & baseline.keys())
    return torch.stack([rights[seed].double() - baseline[seed].double() for seed in seeds])
