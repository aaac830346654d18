"""Measures of even spread: distance from a Gaussian, nearest neighbours, and lengths."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sepnorm.arguments import number, whole
from sepnorm.errors import SepNormError
from sepnorm.geometry.cloud import SAMPLE, Sample, finite_chunks
from sepnorm.geometry.pairs import Estimate, compare_pairs, directions_of

_CLOSEST = 1e-8  # smaller distances count as this, as in DINOv2
_DIRECTIONS = 64
_FURTHEST, _NODES = 5.0, 21  # end of the integral from 0, and nodes of the trapezoidal rule


def epps_pulley(x: Any, *, directions: int = _DIRECTIONS, max_samples: int = SAMPLE, seed: int = 0) -> float:
    """Distance of embeddings from an isotropic Gaussian around 0: 0 for a Gaussian, at least 0.27 for a single point.

    It detects an offset, few used dimensions, loud dimensions and clusters. The embeddings are scaled by one number to
    a mean square of 1, and projected on random directions. For each direction, the squared distance between the
    empirical characteristic function and that of a standard normal is integrated under a normal density. The result is
    the mean over directions. Times the number of samples, it is the statistic of Epps and Pulley, "A test for normality
    based on the empirical characteristic function", Biometrika 1983; its mean over directions is the SIGReg of
    Balestriero and LeCun, "LeJEPA", 2025.

    Args:
        x: embeddings (samples, dimensions).
        directions: number of random directions. By default 64.
        max_samples: with more embeddings than this (8,192 by default), a random sample of this size is used.
        seed: seed of the sample and of the directions.

    Returns:
        The distance, a float. NaN if all embeddings are zero.
    """
    sample = Sample(max_samples, seed)
    for rows in finite_chunks(x):
        sample.add(rows)
    return epps_pulley_of(sample.rows, whole(directions, "directions", 1), seed)


def epps_pulley_of(rows: Tensor, directions: int = _DIRECTIONS, seed: int = 0) -> float:
    """``epps_pulley`` of finite rows (samples, dimensions); NaN if all are zero."""
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
    """Mean log distance to the nearest other embedding on the unit sphere; higher is more evenly spread.

    Up to a constant and a factor, it is the entropy estimate of Kozachenko and Leonenko, and the negative of the KoLeo
    loss: Sablayrolles et al., "Spreading vectors for similarity search", ICLR 2019. Distances below 1e-8, as of
    duplicates, count as 1e-8. The value falls as samples are added: compare only values from equal numbers of samples.

    Args:
        x: embeddings (samples, dimensions).
        max_samples: with more embeddings than this (8,192 by default), a random sample of this size is used.
        seed: seed of the sample.

    Returns:
        The mean as a float, with its standard error as ``.stderr``.

    >>> round(koleo(torch.eye(3)), 4)  # every distance is the root of two
    0.3466
    """
    sample = Sample(max_samples, seed)
    for rows in finite_chunks(x):
        sample.add(rows)
    unit = directions_of(sample.rows)
    return koleo_of(compare_pairs(unit, 2, sample.seen, seed).nearest, sample.seen, seed)


def koleo_of(nearest: Tensor, total: int, seed: int) -> Estimate:
    """``koleo`` from distances (samples,) to the nearest neighbour."""
    logs = nearest.clamp(min=_CLOSEST).log()
    return Estimate(float(logs.mean()), float(logs.std()) / math.sqrt(len(logs)), len(logs), total, seed)


def high_norm_share(x: Any, times: float = 3) -> float:
    """Share of vectors that are more than ``times`` as long as the median one.

    Large vision transformers store global information in a few patches without content. These become several times as
    long as the others and spoil feature maps. Darcet et al., "Vision Transformers Need Registers", ICLR 2024.

    Args:
        x: token vectors (samples, dimensions), as they enter a norm.
        times: factor of the median length, at least 1.

    Returns:
        The share, from 0 to 1.

    >>> high_norm_share(torch.tensor([[1.0], [1.0], [1.0], [9.0]]))
    0.25
    """
    times = number(times, "times", 1)
    lengths = torch.cat([rows.double().norm(dim=1) for rows in finite_chunks(x)])
    return high_norm_share_of(lengths, times)


def high_norm_share_of(lengths: Tensor, times: float = 3) -> float:
    """``high_norm_share`` from lengths (samples,)."""
    if not len(lengths):
        raise SepNormError("there is no vector to take the length of.")
    return float((lengths > times * lengths.median()).double().mean())
