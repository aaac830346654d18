"""Linear maps that improve embeddings without training: centring, standardising, all-but-the-top, whitening.

Each is ``x -> W x + b``, computed from the mean and covariance of a sample. It can be appended to any encoder as one
linear layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sepnorm.errors import SepNormError
from sepnorm.geometry.cloud import chunks, from_lists

_ROWS = 16_384  # rows processed at a time
_LEAST = 1e-6  # of the mean variance: smaller variances are rounding and are not scaled up


@dataclass(frozen=True, eq=False)
class LinearMap:
    """``x -> W x + b`` with ``weight`` (out, in) and ``bias`` (out,) in double precision."""

    name: str
    weight: Tensor
    bias: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Maps (count, in) to (count, out). Computes in double precision and returns the dtype of ``rows``."""
        if self.scales is not None:
            return (rows.double() * self.scales + self.bias).to(rows.dtype)
        return (rows.double() @ self.weight.T + self.bias).to(rows.dtype)

    @cached_property
    def scales(self) -> Tensor | None:
        """The diagonal (in,) of a diagonal weight, which saves the matrix product; None for other weights."""
        square = self.weight.shape[0] == self.weight.shape[1]
        diagonal = self.weight.diagonal()
        return diagonal if square and torch.equal(self.weight, diagonal.diag()) else None

    def in_single_precision(self) -> Callable[[Tensor], Tensor]:
        """The map as a function for many rows (count, in) in float32. A centre is subtracted in double first."""
        if self.scales is not None:
            return lambda rows: self(rows.float())
        centre = torch.linalg.lstsq(self.weight, -self.bias[:, None]).solution[:, 0]
        weight, bias = self.weight.float().T.contiguous(), (self.weight @ centre + self.bias).float()
        return lambda rows: (rows.double() - centre).float() @ weight + bias

    def transform(self, x: Any) -> Any:
        """Maps one vector (in,) or many (count, in), in parts. Returns a tensor for a tensor, an array for an array."""
        given = from_lists(x)
        shape = tuple(getattr(given, "shape", ()))
        if len(shape) not in (1, 2) or shape[-1] != self.weight.shape[1]:
            raise SepNormError(
                f"the map takes vectors of {self.weight.shape[1]} dimensions, one or (count, {self.weight.shape[1]}), found the "
                f"shape {shape}."
            )
        rows = given[None] if len(shape) == 1 else given
        if not len(rows):
            return rows[:, :0].reshape(0, len(self.bias))
        found = torch.cat([self(part) for part in chunks(rows)])
        found = found[0] if len(shape) == 1 else found
        return found if isinstance(given, Tensor) else found.numpy()


class Moments:
    """Count, mean and covariance of rows that arrive in parts. Rows can be removed again."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self._shift: Tensor | None = None  # near the mean, to avoid cancellation between large sums
        self._sum = torch.zeros(dim, dtype=torch.float64)
        self._products = torch.zeros(dim, dim, dtype=torch.float64)

    def add(self, rows: Tensor, sign: int = 1) -> None:
        """Adds rows (count, dim), or removes them with ``sign=-1``."""
        if self._shift is None:
            self._shift = rows[:_ROWS].double().mean(0)
        for part in rows.split(_ROWS):
            centred = part.double() - self._shift
            self.count += sign * len(part)
            self._sum += sign * centred.sum(0)
            self._products.addmm_(centred.T, centred, alpha=sign)

    def without(self, rows: Tensor) -> Moments:
        """Moments of all rows except ``rows``."""
        found = Moments(len(self._sum))
        found.count, found._shift = self.count, self._shift
        found._sum, found._products = self._sum.clone(), self._products.clone()
        found.add(rows, -1)
        return found

    @property
    def dim(self) -> int:
        """Dimension of the rows."""
        return len(self._sum)

    @property
    def mean(self) -> Tensor:
        """Mean (dim,)."""
        assert self._shift is not None
        return self._shift + self._sum / self.count

    @property
    def covariance(self) -> Tensor:
        """Biased covariance (dim, dim)."""
        mean = self._sum / self.count
        return self._products / self.count - mean[:, None] * mean

    def directions(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (dim,) of the covariance, largest first, and its eigenvectors as columns (dim, dim)."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return values.flip(0).clamp(min=0), vectors.flip(1)


def nothing(moments: Moments) -> LinearMap:
    """The identity: leaves embeddings as they are."""
    return LinearMap("nothing", torch.eye(moments.dim, dtype=torch.float64), torch.zeros_like(moments.mean))


def centring(moments: Moments) -> LinearMap:
    """Subtracts the mean."""
    return LinearMap("centre", torch.eye(moments.dim, dtype=torch.float64), -moments.mean)


def standardising(moments: Moments) -> LinearMap:
    """Scales every dimension to mean 0 and standard deviation 1. Dimensions that hardly vary stay small."""
    variance = moments.covariance.diagonal()
    scale = variance.clamp(min=_LEAST * float(variance.mean())).rsqrt()
    return LinearMap("standardise", scale.diag(), -scale * moments.mean)


def all_but_the_top(moments: Moments, count: int) -> LinearMap:
    """Removes the mean and the ``count`` strongest principal directions.

    Mu and Viswanath, "All-but-the-Top: Simple and Effective Postprocessing for Word Representations", ICLR 2018.
    """
    top = moments.directions()[1][:, :count]
    weight = torch.eye(moments.dim, dtype=torch.float64) - top @ top.T
    return LinearMap(f"all but the top {count}", weight, -weight @ moments.mean)


def whitening(moments: Moments, power: float = 1.0, width: int | None = None) -> LinearMap:
    """Divides each principal direction by its standard deviation to the ``power``: 1 whitens, 0 only centres.

    The covariance is shrunk first (see ``shrinkage``), so that directions which few samples leave uncertain are not
    blown up. With ``width`` only the strongest directions are kept, as coordinates; otherwise the axes stay in place.
    Su et al., "Whitening Sentence Representations for Better Semantics and Faster Retrieval", 2021.
    """
    values, vectors = moments.directions()
    share, mean_variance = shrinkage(moments), float(values.mean())
    values = (1 - share) * values + share * mean_variance
    scale = values.clamp(min=_LEAST * mean_variance) ** (-power / 2)
    scale = scale * math.sqrt(mean_variance) ** power  # keeps lengths about the same
    if width is None:
        weight = (vectors * scale) @ vectors.T
    else:
        weight = (vectors[:, :width] * scale[:width]).T
    what = f"whiten {power:g}" + ("" if width is None else f" to {width}")
    return LinearMap(what, weight, -weight @ moments.mean)


def shrinkage(moments: Moments) -> float:
    """Weight of the mean variance in the shrunk covariance, by oracle approximating shrinkage (OAS).

    From 0 for many samples to 1 for few. Chen et al., "Shrinkage Algorithms for MMSE Covariance Estimation", IEEE
    Transactions on Signal Processing 2010.
    """
    covariance, n, dim = moments.covariance, moments.count, moments.dim
    alpha = float(covariance.square().mean())
    mu = float(covariance.diagonal().mean())
    denominator = (n + 1) * (alpha - mu**2 / dim)
    return 1.0 if denominator <= 0 else min((alpha + mu**2) / denominator, 1.0)
