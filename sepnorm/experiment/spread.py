"""Separates the spread over seeds into two parts: the models, and the finite test set."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spread:
    """Standard deviations over seeds of a score's paired difference.

    ``low`` and ``high`` are the 95 % interval of ``total`` for normal differences. ``test`` is the part of a finite
    test set, and ``models`` what would remain of ``total`` with an infinite test set.
    """

    total: float
    low: float
    high: float
    test: float
    models: float


def spread_of(gaps: Tensor) -> Spread:
    """Splits the spread of ``gaps`` (seeds, samples): the part of each test sample in the difference of each seed.

    For right and wrong answers the parts are 1, 0 and -1. This is a two-way layout without repetition (Scheffé, The
    Analysis of Variance, 1959, chapter 4): the variance of the seeds' means is that of the models plus the residual
    variance over the number of samples. All seeds share the samples.
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
    """Differences (seeds, samples), for the seeds that both have."""
    seeds = sorted(rights.keys() & baseline.keys())
    return torch.stack([rights[seed].double() - baseline[seed].double() for seed in seeds])
