"""The linear maps that ``heal`` tries, mild ones first. Each is made from the moments of a sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sepnorm.errors import SepNormError, require_known
from sepnorm.geometry.linear_maps import (
    LinearMap,
    Moments,
    all_but_the_top,
    centring,
    nothing,
    standardising,
    whitening,
)

#: Least number of samples for each dimension to estimate a map.
SAMPLES_PER_DIMENSION = 2
POWERS = (0.25, 0.5, 0.75, 1.0)


class Candidate(NamedTuple):
    """A map for one pooling; ``pooling`` is empty for bare vectors."""

    name: str
    make: Callable[[Moments], LinearMap]
    pooling: str = ""

    @property
    def title(self) -> str:
        return f"{self.pooling}: {self.name}" if self.pooling else self.name


def candidates(dim: int) -> list[Candidate]:
    """All candidates for ``dim`` dimensions; the first changes nothing."""
    tops = sorted({1, 2, max(3, dim // 100)})
    widths = sorted({dim // 2, dim // 4} - {0, 1}, reverse=True)
    found = [Candidate("nothing", nothing), Candidate("centre", centring), Candidate("standardise", standardising)]
    found += [Candidate(f"all but the top {k}", partial(all_but_the_top, count=k)) for k in tops if k < dim]
    found += [Candidate(f"whiten {power:g}", partial(whitening, power=power)) for power in POWERS]
    for width in widths:
        found += [
            Candidate(f"whiten {power:g} to {width}", partial(whitening, power=power, width=width))
            for power in (0.5, 1.0)
        ]
    return found


def chosen_by_name(name: str, dim: int) -> Candidate:
    """The candidate that the user named."""
    known = {candidate.name: candidate for candidate in candidates(dim)}
    return known[require_known("remedy", name, known)]


def require_enough(count: int, dim: int, source: str) -> None:
    """Refuses a sample that is too small to estimate a map."""
    need = SAMPLES_PER_DIMENSION * dim
    if count < need:
        raise SepNormError(
            f"{source} has {count:,} samples of {dim} dimensions, from which no map can be estimated: at least {need:,} are "
            f"needed, {SAMPLES_PER_DIMENSION} for each dimension. Whitening ruins vectors when there are fewer."
        )
