"""Linear maps that better the geometry of embeddings without training: centring, standardising, all-but-the-top, whitening.

Each is made from the mean and covariance of a sample, ``x -> W x + b``, and so can be one linear layer behind any encoder.
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

_ROWS = 16_384  # at a time
_LEAST = 1e-6  # of the mean variance: smaller ones are rounding, and are not enlarged


@dataclass(frozen=True, eq=False)
class LinearMap:
    """``x -> W x + b`` with ``weight`` (out, in) and ``bias`` (out,) in double precision."""

    name: str
    weight: Tensor
    bias: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """(count, in) to (count, out), in double precision and given back in the precision of ``rows``."""
        if self.scales is not None:
            return (rows.double() * self.scales + self.bias).to(rows.dtype)
        return (rows.double() @ self.weight.T + self.bias).to(rows.dtype)

    @cached_property
    def scales(self) -> Tensor | None:
        """The diagonal of the weight (in,) where nothing else is in it, which needs no product of matrices."""
        square = self.weight.shape[0] == self.weight.shape[1]
        diagonal = self.weight.diagonal()
        return diagonal if square and torch.equal(self.weight, diagonal.diag()) else None

    def in_single_precision(self) -> Callable[[Tensor], Tensor]:
        """The same for many rows (count, in) in single precision; what is common to all is taken away in double first."""
        if self.scales is not None:
            return lambda rows: self(rows.float())
        centre = torch.linalg.lstsq(self.weight, -self.bias[:, None]).solution[:, 0]
        weight, bias = self.weight.float().T.contiguous(), (self.weight @ centre + self.bias).float()
        return lambda rows: (rows.double() - centre).float() @ weight + bias

    def transform(self, x: Any) -> Any:
        """One vector (in,) or many (count, in), a tensor for a tensor and an array for an array, in parts."""
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
    """Count, mean and covariance of rows that come part by part; rows can be taken out again."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self._shift: Tensor | None = None  # near the mean, so that little is lost in the difference of large sums
        self._sum = torch.zeros(dim, dtype=torch.float64)
        self._products = torch.zeros(dim, dim, dtype=torch.float64)

    def add(self, rows: Tensor, sign: int = 1) -> None:
        """Takes (count, dim) into account, or with ``sign=-1`` out."""
        if self._shift is None:
            self._shift = rows[:_ROWS].double().mean(0)
        for part in rows.split(_ROWS):
            centred = part.double() - self._shift
            self.count += sign * len(part)
            self._sum += sign * centred.sum(0)
            self._products.addmm_(centred.T, centred, alpha=sign)

    def without(self, rows: Tensor) -> Moments:
        """Those of all other rows."""
        found = Moments(len(self._sum))
        found.count, found._shift = self.count, self._shift
        found._sum, found._products = self._sum.clone(), self._products.clone()
        found.add(rows, -1)
        return found

    @property
    def dim(self) -> int:
        return len(self._sum)

    @property
    def mean(self) -> Tensor:
        assert self._shift is not None
        return self._shift + self._sum / self.count

    @property
    def covariance(self) -> Tensor:
        """(dim, dim), over the number of rows."""
        mean = self._sum / self.count
        return self._products / self.count - mean[:, None] * mean

    def directions(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (dim,) of the covariance, largest first, and its eigenvectors as columns (dim, dim)."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return values.flip(0).clamp(min=0), vectors.flip(1)


def nothing(moments: Moments) -> LinearMap:
    """Leaves embeddings as they are."""
    return LinearMap("nothing", torch.eye(moments.dim, dtype=torch.float64), torch.zeros_like(moments.mean))


def centring(moments: Moments) -> LinearMap:
    """Takes the mean away."""
    return LinearMap("centre", torch.eye(moments.dim, dtype=torch.float64), -moments.mean)


def standardising(moments: Moments) -> LinearMap:
    """Every dimension to mean 0 and deviation 1; one that hardly varies is left small."""
    variance = moments.covariance.diagonal()
    scale = variance.clamp(min=_LEAST * float(variance.mean())).rsqrt()
    return LinearMap("standardise", scale.diag(), -scale * moments.mean)


def all_but_the_top(moments: Moments, count: int) -> LinearMap:
    """Takes away the mean and the ``count`` strongest directions.

    Mu and Viswanath, "All-but-the-Top: Simple and Effective Postprocessing for Word Representations", ICLR 2018.
    """
    top = moments.directions()[1][:, :count]
    weight = torch.eye(moments.dim, dtype=torch.float64) - top @ top.T
    return LinearMap(f"all but the top {count}", weight, -weight @ moments.mean)


def whitening(moments: Moments, power: float = 1.0, width: int | None = None) -> LinearMap:
    """Divides every direction by its deviation to the ``power``: 1 makes all alike, 0 only centres.

    The covariance is shrunk first (see ``shrinkage``), so that directions that few samples leave uncertain are not enlarged
    by far. With ``width`` the strongest directions alone are kept, as coordinates; else the axes stay where they were. Su et
    al., "Whitening Sentence Representations for Better Semantics and Faster Retrieval", 2021.
    """
    values, vectors = moments.directions()
    share, mean_variance = shrinkage(moments), float(values.mean())
    values = (1 - share) * values + share * mean_variance
    scale = values.clamp(min=_LEAST * mean_variance) ** (-power / 2)
    scale = scale * math.sqrt(mean_variance) ** power  # so that lengths stay about what they were
    if width is None:
        weight = (vectors * scale) @ vectors.T
    else:
        weight = (vectors[:, :width] * scale[:width]).T
    what = f"whiten {power:g}" + ("" if width is None else f" to {width}")
    return LinearMap(what, weight, -weight @ moments.mean)


def shrinkage(moments: Moments) -> float:
    """How much of the covariance is replaced by its mean variance: the oracle approximating shrinkage (OAS).

    Between 0 for many samples and 1 for few. Chen et al., "Shrinkage Algorithms for MMSE Covariance Estimation", IEEE
    Transactions on Signal Processing 2010.
    """
    covariance, n, dim = moments.covariance, moments.count, moments.dim
    alpha = float(covariance.square().mean())
    mu = float(covariance.diagonal().mean())
    denominator = (n + 1) * (alpha - mu**2 / dim)
    return 1.0 if denominator <= 0 else min((alpha + mu**2) / denominator, 1.0)
