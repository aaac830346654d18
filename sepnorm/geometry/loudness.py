"""Loud dimensions: a few of far larger scale than the others, and the measures without them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sepnorm.geometry.cloud import Triangle, to_unit
from sepnorm.geometry.measures import entropy_rank

LOUD = 6.0  # times the median scale; the largest of a thousand normal numbers is at five times their median
_SHARE = 0.01  # at most this share of the dimensions, or three, can be loud
_LEAST = 8  # with fewer dimensions none is loud
_SAME = 1e-5  # relative distance of equal vectors: more than rounding in float32
_DEAD = 1e-3  # a median scale below this share of the root mean square is no scale to compare with


class Loudness(NamedTuple):
    """Loud dimensions, their share of the sum of squares, and mean cosine and centred rank of the other dimensions."""

    dimensions: list[int]
    share: float
    rest_cosine: float
    rest_rank: float


def loudness_of(triangle: Triangle, sample: Tensor, mean_cosine: float) -> Loudness:
    """Finds loud dimensions: few, with a root mean square of at least six times the median.

    A large mean makes a dimension loud as a large spread does, since both drown the others in a cosine. If a common
    mean hides them, they are found by standard deviation. The mean cosine without them is computed from ``sample``
    (samples, dim).
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
    """Numbers of the loud dimensions given their scales (dim,), loudest first."""
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
    """Share of vectors (samples, dim) that differ from vector number ``partner`` by rounding alone."""
    rows = rows.double()
    gap = (rows - rows[partner]).norm(dim=1)
    return float((gap <= _SAME * rows.norm(dim=1)).double().mean())
