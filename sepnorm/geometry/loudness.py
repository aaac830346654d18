"""A few dimensions of far larger scale than the others: which they are, and how the rest looks without them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sepnorm.geometry.cloud import Triangle, to_unit
from sepnorm.geometry.measures import entropy_rank

LOUD = 6.0  # times the median scale: the largest of a thousand normal numbers is five times their median
_SHARE = 0.01  # of the dimensions may be loud, or three of them
_LEAST = 8  # dimensions that there are to be
_SAME = 1e-5  # of the length: single precision leaves less
_DEAD = 1e-3  # of the root mean square: others that are below have no scale to compare with


class Loudness(NamedTuple):
    """Loud dimensions, their share of the sum of squares, and what is left: the mean cosine and the centred rank."""

    dimensions: list[int]
    share: float
    rest_cosine: float
    rest_rank: float


def loudness_of(triangle: Triangle, sample: Tensor, mean_cosine: float) -> Loudness:
    """A dimension is loud where its root mean square is six times the median one, and few are.

    Their mean counts as their spread does: both drown the others in a cosine. Where a common mean hides them, they are looked
    for by their standard deviations. ``sample`` (samples, dim) is what the mean cosine without them is computed from.
    """
    scales = triangle.scales()
    loud = _loud(scales)
    if not loud:
        scales = triangle.scales(center=True)
        loud = _loud(scales)
    power = scales.square()
    share = float(power[loud].sum() / power.sum()) if loud else 0.0
    if not loud:
        return Loudness([], 0.0, mean_cosine, entropy_rank(triangle.singular_values(center=True)))
    kept = [i for i in range(len(scales)) if i not in set(loud)]
    return Loudness(
        loud, share, _mean_cosine(sample[:, kept]), entropy_rank(triangle.singular_values(center=True, dimensions=kept))
    )


def _loud(scales: Tensor) -> list[int]:
    """Numbers of the loud dimensions of these scales (dim,), the loudest first."""
    dim = len(scales)
    median = float(scales.median())
    if dim < _LEAST or median <= _DEAD * float(scales.square().mean().sqrt()):
        return []
    found = (scales >= LOUD * median).nonzero()[:, 0]
    if not 0 < len(found) <= max(3, int(_SHARE * dim)):
        return []
    return found[scales[found].argsort(descending=True)].tolist()


def _mean_cosine(rows: Tensor) -> float:
    unit, _ = to_unit(rows)
    n = len(unit)
    return float((unit.sum(0).square().sum() - n) / (n * (n - 1))) if n > 1 else 0.0


def same_share(rows: Tensor, partner: Tensor) -> float:
    """The share of vectors (samples, dim) that differ from the one with the number in ``partner`` by rounding alone."""
    rows = rows.double()
    gap = (rows - rows[partner]).norm(dim=1)
    return float((gap <= _SAME * rows.norm(dim=1)).double().mean())
