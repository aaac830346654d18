"""Measures over pairs of embeddings, with standard errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sepnorm.errors import SepNormError
from sepnorm.geometry.cloud import Directions, to_unit

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_PAIRS = 200_000  # number of random pairs for quantiles of cosines


class Estimate(float):
    """A float with its standard error and the sample that it was computed from.

    Args:
        value: the number itself.
        stderr: standard error, as an estimate for the population that the embeddings were drawn from.
        samples: number of embeddings used.
        total: number of usable embeddings.
        seed: seed that chose the sample.
    """

    stderr: float
    samples: int
    total: int
    seed: int

    def __new__(cls, value: float, stderr: float = 0.0, samples: int = 0, total: int = 0, seed: int = 0) -> Estimate:
        self = super().__new__(cls, value)
        self.stderr, self.samples, self.total, self.seed = stderr, samples, total, seed
        return self


class Anisotropy(Estimate):
    """The mean cosine, an ``Estimate`` with quantiles.

    Attributes:
        quantiles: quantiles of the cosine over pairs, by probability from 0.01 to 0.99.
    """

    quantiles: dict[float, float]


class Pairs(NamedTuple):
    """Results over all pairs of a sample."""

    uniformity: Estimate
    cosine_stderr: float
    quantiles: dict[float, float]
    nearest: Tensor  #: distance of each unit vector to its nearest neighbour (count,)
    partner: Tensor  #: number of that neighbour (count,)


def directions_of(rows: Tensor) -> Tensor:
    """Rows at unit length; raises if fewer than two are nonzero."""
    unit, _ = to_unit(rows)
    if unit.shape[0] < 2:
        raise SepNormError(
            f"pairs are compared, so at least two embeddings that are not zero are needed, found {unit.shape[0]}."
        )
    return unit


def compare_pairs(unit: Tensor, t: float, total: int, seed: int) -> Pairs:
    """Uniformity, cosine statistics and nearest neighbours over all pairs of unit vectors (count, dim), in blocks."""
    n = unit.shape[0]
    potential, cosine = unit.new_zeros(n), unit.new_zeros(n)  # sums over the partners of each vector
    nearest, partner = unit.new_zeros(n), torch.zeros(n, dtype=torch.long)
    squares = torch.zeros(2, dtype=torch.float64)
    block = max(1, 2**22 // n)
    for start in range(0, n, block):
        cos = unit[start : start + block] @ unit.T
        rows = torch.arange(cos.shape[0])
        cos[rows, start + rows] = -1
        best = cos.max(1)
        nearest[start : start + block] = (2 - 2 * best.values).clamp(min=0).sqrt()
        partner[start : start + block] = best.indices
        cos[rows, start + rows] = 0
        kernel = (cos - 1).mul_(2 * t).exp_()  # -t |u - v|² = 2t (cos - 1)
        kernel[rows, start + rows] = 0
        potential[start : start + block], cosine[start : start + block] = kernel.sum(1), cos.sum(1)
        squares += torch.stack([kernel.square().sum(), cos.square().sum()])
    mean, error = _u_statistic(potential, squares[0], n)
    value = min(math.log(mean), 0.0) if mean > 0 else -math.inf
    estimate = Estimate(value, error / mean if mean > 0 else math.nan, n, total, seed)
    # the mean cosine is over all embeddings, not only the sample: hence the error for ``total`` rows
    return Pairs(estimate, _u_statistic(cosine, squares[1], total)[1], _quantiles(unit, seed), nearest, partner)


def _u_statistic(sums: Tensor, squares: Tensor, size: int) -> tuple[float, float]:
    """Mean of a kernel over ordered pairs, from row sums and the sum of squares, and its error over ``size`` rows.

    The variance of such a mean is ``(4 (n-2) z1 + 2 z2) / (n (n-1))`` (Hoeffding 1948). z2 is the variance of the
    kernel, and z1 the variance of its mean given one of the two. The part of z2 in the estimate of z1 is subtracted.
    """
    n = sums.shape[0]
    mean = float(sums.sum()) / (n * (n - 1))
    z2 = max(float(squares) / (n * (n - 1)) - mean**2, 0.0)
    z1 = max(float((sums / (n - 1)).var()) - z2 / (n - 1), 0.0)
    return mean, math.sqrt((4 * (size - 2) * z1 + 2 * z2) / (size * (size - 1)))


def _quantiles(unit: Tensor, seed: int) -> dict[float, float]:
    n = unit.shape[0]
    if n * (n - 1) // 2 <= _PAIRS:
        first, second = torch.triu_indices(n, n, 1)
    else:
        generator = torch.Generator().manual_seed(seed % 2**63)
        first = torch.randint(n, (_PAIRS,), generator=generator)
        second = (first + torch.randint(1, n, (_PAIRS,), generator=generator)) % n
    parts = zip(first.split(2**14), second.split(2**14), strict=True)
    cosines = torch.cat([(unit[a] * unit[b]).sum(1) for a, b in parts]).clamp(-1, 1)
    found = cosines.quantile(torch.tensor(QUANTILES, dtype=torch.float64))
    return dict(zip(QUANTILES, found.tolist(), strict=True))


def anisotropy_of(directions: Directions, pairs: Pairs) -> Anisotropy:
    """``anisotropy`` from sums over unit vectors and results over pairs."""
    estimate = pairs.uniformity
    found = Anisotropy(directions.mean_cosine, pairs.cosine_stderr, estimate.samples, directions.count, estimate.seed)
    found.quantiles = pairs.quantiles
    return found
