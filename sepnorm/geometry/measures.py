"""The measures, one function each. Functions named ``*_of`` compute them from streamed statistics."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sepnorm.arguments import flag, number, whole
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.geometry.cloud import SAMPLE, Directions, Sample, Triangle, chunks, finite_chunks, from_lists, to_unit
from sepnorm.geometry.pairs import Anisotropy, Estimate, anisotropy_of, compare_pairs, directions_of

_DEAD = 1e-3  # of the root mean square: dimensions with a smaller standard deviation are dead


class Dominance(NamedTuple):
    """How much of the mean cosine the strongest dimensions carry.

    Attributes:
        one: share of the strongest dimension.
        three: share of the three strongest dimensions together.
        dimensions: numbers of these three, strongest first.
    """

    one: float
    three: float
    dimensions: tuple[int, ...]


class Variance(NamedTuple):
    """Variance between samples.

    Attributes:
        per_dimension: unbiased variance (dimensions,), a tensor for a tensor and an array otherwise.
        dead: number of dimensions that hardly vary.
    """

    per_dimension: Any
    dead: int


def uniformity(x: Any, t: float = 2, *, max_samples: int = SAMPLE, seed: int = 0) -> Estimate:
    """Log of the mean Gaussian potential over pairs; lower is more evenly spread.

    ``log mean_{n<m} exp(-t ||u_n - u_m||²)`` over pairs of embeddings, scaled to unit length here. 0 means that all
    embeddings are one point. Evenly spread on the sphere, it is near -2t in many dimensions (see
    ``uniform_uniformity``). Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and
    Uniformity on the Hypersphere", ICML 2020.

    Args:
        x: embeddings (samples, dimensions).
        t: inverse width of the Gaussian potential. The paper uses 2.
        max_samples: with more embeddings than this (8,192 by default), a random sample of this size is used.
        seed: seed of the sample.

    Returns:
        The value as a float, with its standard error as ``.stderr``.

    >>> uniformity(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    -4.0
    """
    t, sample, zeros = number(t, "t"), Sample(max_samples, seed), 0
    for rows in finite_chunks(x):
        sample.add(rows)
        zeros += int((rows == 0).all(1).sum())
    return compare_pairs(directions_of(sample.rows), t, sample.seen - zeros, seed).uniformity


def uniform_uniformity(dim: int, t: float = 2) -> float:
    """The best ``uniformity`` possible: its limit for points spread evenly on the sphere.

    The mean potential is ``exp(-2t) 0F1(; dim/2; t²)``, the integral of ``exp(2t cos)`` over the sphere.

    Args:
        dim: dimension of the embeddings.
        t: inverse width of the Gaussian potential, as in ``uniformity``.

    Returns:
        The limit, a float.

    >>> round(uniform_uniformity(384), 3)
    -3.979
    """
    dim, t = whole(dim, "dim", 1), number(t, "t")
    term = total = 1.0
    k = 0
    while term > 1e-18 * total:
        k += 1
        term *= t * t / (k * (dim / 2 + k - 1))
        total += term
    return -2 * t + math.log(total)


def alignment(x: Any, y: Any, alpha: float = 2) -> float:
    """Mean distance between positive pairs; lower is closer.

    ``mean ||u_n - v_n||^alpha`` over rows, scaled to unit length here. Pairs with NaN, infinity or a zero vector are
    left out with a warning. Wang and Isola, ICML 2020, as for ``uniformity``.

    Args:
        x: embeddings (samples, dimensions).
        y: embeddings (samples, dimensions). Row n of ``y`` is the positive partner of row n of ``x``.
        alpha: exponent of the distance.

    Returns:
        The mean, a float.

    Raises:
        SepNormError: if the shapes differ or no pair is usable.

    >>> alignment(torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
    0.0
    """
    x, y, alpha = from_lists(x), from_lists(y), number(alpha, "alpha")
    shapes = tuple(getattr(x, "shape", ())), tuple(getattr(y, "shape", ()))
    if shapes[0] != shapes[1]:
        raise SepNormError(
            f"alignment compares row by row, so shapes must be equal, found {shapes[0]} and {shapes[1]}."
        )
    total, count, left_out = 0.0, 0, 0
    for a, b in zip(chunks(x), chunks(y), strict=True):
        usable = a.isfinite().all(1) & b.isfinite().all(1) & (a != 0).any(1) & (b != 0).any(1)
        u, v = to_unit(a[usable])[0], to_unit(b[usable])[0]
        total += float((u - v).norm(dim=1).pow(alpha).sum())
        count += u.shape[0]
        left_out += a.shape[0] - u.shape[0]
    if not count:
        raise SepNormError("no pair is left for alignment: every one holds NaN, infinity or a vector of length zero.")
    if left_out:
        _warn(f"{left_out} of {left_out + count} pairs hold NaN, infinity or a zero vector and were left out.")
    return total / count


def singular_values(x: Any, *, center: bool = False) -> Any:
    """All min(samples, dimensions) singular values of the embeddings, largest first.

    Args:
        x: embeddings (samples, dimensions).
        center: whether the mean is subtracted first.

    Returns:
        A tensor for a tensor, a NumPy array otherwise, in double precision.
    """
    values = triangle_of(x).singular_values(flag(center, "center"))
    return values if isinstance(x, Tensor) else values.numpy()


def effective_rank(x: Any, *, center: bool = False) -> float:
    """Number of dimensions that the embeddings fill: ``exp(-sum p log p)``, ``p = s / sum(s)``, of singular values s.

    Between 1 (all on one line) and min(samples, dimensions). Definitions by eigenvalues (s²) or of centred embeddings
    give other numbers: compare only like with like. With fewer samples than dimensions the rank is bounded by the
    samples, and a warning says so. Roy and Vetterli, "The effective rank", EUSIPCO 2007.

    Args:
        x: embeddings (samples, dimensions).
        center: whether the mean is subtracted first.

    Returns:
        The rank, a float. 0 if all values are zero.

    >>> round(effective_rank(torch.eye(3)), 4)
    3.0
    """
    triangle = triangle_of(x)
    warn_of_few(triangle)
    return entropy_rank(triangle.singular_values(flag(center, "center")))


def rankme(x: Any, *, eps: float = 1e-7) -> float:
    """The effective rank as RankMe defines it: ``exp(-sum p log p)`` with ``p = s / sum(s) + eps``, not centred.

    It differs from ``effective_rank`` by ``eps`` only. Garrido et al., "RankMe: Assessing the downstream performance of
    pretrained self-supervised representations by their rank", ICML 2023.

    Args:
        x: embeddings (samples, dimensions).
        eps: added to each p.

    Returns:
        The rank, a float.
    """
    triangle = triangle_of(x)
    warn_of_few(triangle)
    return rankme_of(triangle.singular_values(), number(eps, "eps", 0))


def participation_ratio(x: Any, *, center: bool = True) -> float:
    """Number of dimensions that carry the *variance*: ``(sum v)² / sum v²`` of the eigenvalues v of the covariance.

    Stricter than ``effective_rank``: a long tail of small directions hardly counts. Gao et al., "A theory of
    multineuronal dimensionality, dynamics and measurement", 2017.

    Args:
        x: embeddings (samples, dimensions).
        center: whether the mean is subtracted first, as a covariance requires.

    Returns:
        The ratio, a float. 0 for embeddings that do not vary.
    """
    triangle = triangle_of(x)
    warn_of_few(triangle)
    return participation_of(triangle.singular_values(flag(center, "center")))


def isoscore(x: Any) -> float:
    """How evenly the variance uses all dimensions: 1 if equal in all directions, 0 if all along one.

    The eigenvalues of the covariance are scaled to the length of a vector of ones and compared with it. Unlike the mean
    cosine, it does not change when a constant is added to all embeddings. Rudman et al., "IsoScore: Measuring the
    Uniformity of Embedding Space Utilization", ACL 2022.

    Args:
        x: embeddings (samples, dimensions).

    Returns:
        The score, a float. 0 for embeddings that do not vary.
    """
    triangle = triangle_of(x)
    warn_of_few(triangle)
    return isoscore_of(triangle)


def anisotropy(x: Any, *, max_samples: int = SAMPLE, seed: int = 0) -> Anisotropy:
    """Mean cosine between two different embeddings: 0 if they point everywhere, near 1 in a narrow cone.

    The mean is exact, over all pairs (from the sum of unit vectors). The quantiles are over random pairs of a sample
    and show what a mean hides: if the 0.01 quantile is 0.6, almost no two embeddings are unlike. Ethayarajh, "How
    Contextual are Contextualized Word Representations?", EMNLP 2019.

    Args:
        x: embeddings (samples, dimensions).
        max_samples: largest size of the sample for quantiles and standard error. By default 8,192.
        seed: seed of the sample.

    Returns:
        The mean cosine as a float, with ``.stderr`` and ``.quantiles``.
    """
    directions: Directions | None = None
    sample = Sample(max_samples, seed)
    for rows in finite_chunks(x):
        directions = directions or Directions(rows.shape[1])
        directions.add(rows)
        sample.add(rows)
    assert directions is not None
    return anisotropy_of(directions, compare_pairs(directions_of(sample.rows), 2, directions.count, seed))


def dominance(x: Any) -> Dominance:
    """Which dimensions make up the mean cosine, and the shares of the strongest one and three.

    Dimension i adds the mean over pairs of ``u_ni u_mi`` to the mean cosine. A share near 1 means that cosines compare
    one "rogue" dimension: standardise the dimensions before you compare. Timkey and van Schijndel, "All Bark and No
    Bite: Rogue Dimensions in Transformer Language Models Obscure Representational Quality", EMNLP 2021.

    Args:
        x: embeddings (samples, dimensions).

    Returns:
        The shares and the three strongest dimensions. Shares are NaN if the mean cosine does not differ from zero.
    """
    directions: Directions | None = None
    for rows in finite_chunks(x):
        directions = directions or Directions(rows.shape[1])
        directions.add(rows)
    assert directions is not None
    return dominance_of(directions)


def variance(x: Any) -> Variance:
    """Unbiased variance of each dimension between samples, and the number of dead dimensions.

    A dimension is dead if its standard deviation is below a thousandth of the root mean square of all values.

    Args:
        x: embeddings (samples, dimensions).

    Returns:
        Variances (dimensions,) and the number of dead dimensions.
    """
    triangle = triangle_of(x)
    found = triangle.variance
    return Variance(found if isinstance(x, Tensor) else found.numpy(), dead_of(triangle))


def dominance_of(directions: Directions) -> Dominance:
    """``dominance`` from sums over unit vectors."""
    if directions.count < 2:
        raise SepNormError(
            f"pairs are compared, so at least two embeddings that are not zero are needed, found {directions.count}."
        )
    parts = directions.contributions()
    mean, n, dim = float(parts.sum()), directions.count, parts.shape[0]
    order = parts.argsort(descending=True)[:3]
    if mean <= 3 * math.sqrt(2 / (n * (n - 1) * dim)):  # 3 standard errors of the mean cosine of random directions
        return Dominance(math.nan, math.nan, tuple(order.tolist()))
    return Dominance(float(parts[order[0]]) / mean, float(parts[order].sum()) / mean, tuple(order.tolist()))


def triangle_of(x: Any) -> Triangle:
    """The triangular factor of all finite rows (see ``Triangle``)."""
    triangle = Triangle()
    for rows in finite_chunks(x):
        triangle.add(rows)
    return triangle


def entropy_rank(values: Tensor) -> float:
    """``exp(-sum p log p)`` with ``p = values / sum(values)``; 0 if all are zero."""
    if not (total := float(values.sum())):
        return 0.0
    return float(torch.special.entr(values / total).sum().exp())


def rankme_of(values: Tensor, eps: float = 1e-7) -> float:
    """``rankme`` from singular values."""
    if not (total := float(values.sum())):
        return 0.0
    return float(torch.special.entr(values / total + eps).sum().exp())


def participation_of(values: Tensor) -> float:
    """``participation_ratio`` from singular values."""
    v = (values / values.max().clamp(min=torch.finfo(torch.float64).tiny)).square()
    return float(v.sum().square() / v.square().sum()) if float(v.sum()) > 0 else 0.0


def isoscore_of(triangle: Triangle) -> float:
    """``isoscore`` from the triangular factor."""
    dim = triangle.mean.shape[0]
    values = triangle.singular_values(center=True)
    v = (values / values.max().clamp(min=torch.finfo(torch.float64).tiny)).square()
    if dim == 1 or not float(v.sum()):
        return 1.0 if dim == 1 and float(v.sum()) else 0.0
    v = torch.cat([v, v.new_zeros(dim - v.shape[0])])
    defect = (v * math.sqrt(dim) / v.norm() - 1).norm() / math.sqrt(2 * (dim - math.sqrt(dim)))
    share = (dim - float(defect) ** 2 * (dim - math.sqrt(dim))) ** 2 / dim**2
    return (dim * share - 1) / (dim - 1)


def dead_of(triangle: Triangle) -> int:
    """The number of dead dimensions."""
    return triangle.dead(_DEAD)


def warn_of_few(triangle: Triangle) -> None:
    """Warns if there are fewer samples than dimensions."""
    dim = triangle.mean.shape[0]
    if triangle.count < dim:
        _warn(
            f"there are fewer samples ({triangle.count}) than dimensions ({dim}): a rank is then bounded by the number of "
            "samples, so compare it only with ranks from as many."
        )


def _warn(message: str) -> None:
    warnings.warn(message, SepNormWarning, stacklevel=3)
