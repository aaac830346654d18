"""Measures of the spectrum: how fast it decays, and how much of it separates groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sepnorm.arguments import number
from sepnorm.errors import SepNormError
from sepnorm.geometry.cloud import chunks, from_lists
from sepnorm.geometry.measures import entropy_rank, triangle_of

_NOTHING = 1e-10  # of the largest eigenvalue: smaller ones are rounding
_FEWEST = 3  # a slope is fitted to at least this many eigenvalues


def alpha_req(x: Any) -> float:
    """Decay of the spectrum: α in ``v_i ~ i^-α``, where v are the eigenvalues of the covariance, largest first.

    The slope of ``log v_i`` over ``log i`` is fitted by least squares with weights 1/i, so that each octave counts
    alike. Eigenvalues that are rounding are left out. 0 is a flat spectrum. Good encoders were found around 1. Above 1,
    few directions carry most of the variance. Agrawal et al., "α-ReQ: Assessing Representation Quality in
    Self-Supervised Learning by measuring eigenspectrum decay", NeurIPS 2022.

    Args:
        x: embeddings (samples, dimensions).

    Returns:
        α, a float. NaN if fewer than three directions vary.
    """
    return alpha_of(triangle_of(x).singular_values(center=True))


def alpha_of(singular: Tensor) -> float:
    """``alpha_req`` from centred singular values (count,), largest first."""
    if not len(singular) or not float(singular[0]):
        return math.nan
    values = (singular / singular[0]).square()
    values = values[values > _NOTHING]
    if len(values) < _FEWEST:
        return math.nan
    index = torch.arange(1, len(values) + 1, dtype=torch.float64)
    weight = (1 / index) / (1 / index).sum()
    a, b = index.log(), values.log()
    a, b = a - (weight * a).sum(), b - (weight * b).sum()
    return float(-(weight * a * b).sum() / (weight * a * a).sum())


def lidar(x: Any, groups: Sequence[Any] | Tensor, *, delta: float = 1e-4) -> float:
    """Number of dimensions that separate groups: labels, or views of the same sample.

    With B the covariance of group means and W the covariance within groups, it is the effective rank (by eigenvalues)
    of ``(W + delta I)^-1/2 B (W + delta I)^-1/2``. Unlike an effective rank, it does not count dimensions of noise. It
    is at most the number of groups minus one. Thilak et al., "LiDAR: Sensing Linear Probing Performance in Joint
    Embedding SSL Architectures", ICLR 2024.

    Args:
        x: embeddings (samples, dimensions).
        groups: group of each embedding (samples,): labels, or the number of the sample that each view belongs to.
        delta: added to the diagonal of W, so that it can be inverted.

    Returns:
        The rank, a float.

    Raises:
        SepNormError: if there is not one group per embedding, fewer than two groups, or no group with two embeddings.
    """
    delta = number(delta, "delta", 0)
    names = groups.tolist() if isinstance(groups, Tensor) else list(groups)
    rows = torch.cat([part.double() for part in chunks(from_lists(x))])
    if len(names) != len(rows):
        raise SepNormError(f"lidar needs one group for each embedding, found {len(names)} for {len(rows)}.")
    finite = rows.isfinite().all(1)
    rows, names = rows[finite], [name for name, kept in zip(names, finite.tolist(), strict=True) if kept]
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    if len(known) < 2 or len(known) == len(names):
        raise SepNormError(
            f"lidar compares groups of several embeddings, found {len(known)} groups of {len(names)} embeddings: give labels, or "
            "the number of the sample that each view is of."
        )
    which = torch.tensor([known[name] for name in names])
    counts = torch.bincount(which).double()
    means = torch.zeros(len(known), rows.shape[1], dtype=torch.float64).index_add_(0, which, rows) / counts[:, None]
    inner = rows - means[which]
    within = inner.T @ inner / (len(rows) - len(known))
    centre = (means * counts[:, None]).sum(0) / counts.sum()
    spread = (means - centre) * (counts / counts.sum()).sqrt()[:, None]
    values, vectors = torch.linalg.eigh(within)
    scaled = spread @ (vectors / (values.clamp(min=0) + max(delta, torch.finfo(torch.float64).tiny)).sqrt())
    return entropy_rank(torch.linalg.svdvals(scaled).square())
