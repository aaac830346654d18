"""Measures of how evenly embeddings are spread: against a Gaussian, by nearest neighbours, and by length."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sepnorm.arguments import number, whole
from sepnorm.errors import SepNormError
from sepnorm.geometry.cloud import SAMPLE, Sample, finite_chunks
from sepnorm.geometry.pairs import Estimate, compare_pairs, directions_of

_CLOSEST = 1e-8  # a distance that is taken for that of equal ones, as the authors of DINOv2 do
_DIRECTIONS = 64
_FURTHEST, _NODES = 5.0, 21  # the integral is from 0 to this, by the trapezoidal rule


def epps_pulley(x: Any, *, directions: int = _DIRECTIONS, max_samples: int = SAMPLE, seed: int = 0) -> float:
    """How far the embeddings are from an isotropic Gaussian around 0: none is 0, a single point gives 0.27 or more.

    ``x`` is (samples, dimensions), scaled here by one number, so that the mean square of all values is 1. They are projected
    on random directions; for each the squared distance of the characteristic function to that of a standard normal is
    integrated with a normal density as weight (as the number of samples grows that is 0 for a Gaussian alone, so it sees an
    offset, few dimensions, loud ones and clusters); the result is the mean over directions. Times the number of samples it is
    the statistic of Epps and Pulley, "A test for normality based on the empirical characteristic function", Biometrika 1983,
    and its mean over directions the SIGReg of Balestriero and LeCun, "LeJEPA", 2025.
    """
    sample = Sample(max_samples, seed)
    for rows in finite_chunks(x):
        sample.add(rows)
    return epps_pulley_of(sample.rows, whole(directions, "directions", 1), seed)


def epps_pulley_of(rows: Tensor, directions: int = _DIRECTIONS, seed: int = 0) -> float:
    """The same of rows (samples, dimensions) that are all finite; NaN where all are zero."""
    rows = rows.double()
    largest = float(rows.abs().max())
    if not largest:
        return math.nan
    rows = rows / largest
    rows = rows / rows.square().mean().sqrt()
    generator = torch.Generator().manual_seed(seed % 2**63)
    to = torch.randn(rows.shape[1], directions, generator=generator, dtype=torch.float64)
    projected = rows @ (to / to.norm(dim=0))
    nodes = torch.linspace(0, _FURTHEST, _NODES, dtype=torch.float64)
    normal = (-nodes.square() / 2).exp()
    gaps = torch.stack(
        [
            ((projected * t).cos().mean(0) - phi).square() + (projected * t).sin().mean(0).square()
            for t, phi in zip(nodes.tolist(), normal.tolist(), strict=True)
        ]
    )
    weight = 2 * normal / math.sqrt(2 * math.pi)  # the integrand is even
    return float(torch.trapezoid(gaps * weight[:, None], nodes, dim=0).mean())


def koleo(x: Any, *, max_samples: int = SAMPLE, seed: int = 0) -> Estimate:
    """Mean logarithm of the distance to the nearest other embedding, on the unit sphere; higher is more evenly spread.

    ``x`` is (samples, dimensions). Up to a constant and the factor of the dimension it is the estimate of the differential
    entropy by Kozachenko and Leonenko, and minus the loss KoLeo: Sablayrolles et al., "Spreading vectors for similarity
    search", ICLR 2019. Distances below 1e-8, of duplicates, count as that. It falls as samples are added: compare figures
    from equal numbers.

    >>> round(koleo(torch.eye(3)), 4)  # all at the distance of the root of two
    0.3466
    """
    sample = Sample(max_samples, seed)
    for rows in finite_chunks(x):
        sample.add(rows)
    unit = directions_of(sample.rows)
    return koleo_of(compare_pairs(unit, 2, sample.seen, seed).nearest, sample.seen, seed)


def koleo_of(nearest: Tensor, total: int, seed: int) -> Estimate:
    """From the distances (samples,) to the nearest other one."""
    logs = nearest.clamp(min=_CLOSEST).log()
    return Estimate(float(logs.mean()), float(logs.std()) / math.sqrt(len(logs)), len(logs), total, seed)


def high_norm_share(x: Any, times: float = 3) -> float:
    """The share of vectors that are more than ``times`` as long as the median one.

    ``x`` is (samples, dimensions): token vectors where they enter a norm. Large vision transformers store what belongs to the
    whole image in a few patches without content, which become several times as long as the others and spoil maps of features.
    Darcet et al., "Vision Transformers Need Registers", ICLR 2024.
    """
    times = number(times, "times", 1)
    lengths = torch.cat([rows.double().norm(dim=1) for rows in finite_chunks(x)])
    return high_norm_share_of(lengths, times)


def high_norm_share_of(lengths: Tensor, times: float = 3) -> float:
    """The same from lengths (samples,)."""
    if not len(lengths):
        raise SepNormError("there is no vector to take the length of.")
    return float((lengths > times * lengths.median()).double().mean())
