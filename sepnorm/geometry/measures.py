"""The measures, one function each."""

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

_DEAD = 1e-3


class Dominance(NamedTuple):
    """Shares of the mean cosine carried by the strongest and the three strongest dimensions, and which these are."""

    one: float
    three: float
    dimensions: tuple[int, ...]


class Variance(NamedTuple):
    """Variance (dimensions,) between samples, and how many dimensions are dead."""

    per_dimension: Any
    dead: int


def uniformity(x: Any, t: float = 2, *, max_samples: int = SAMPLE, seed: int = 0) -> Estimate:
    """Logarithm of the mean Gaussian potential of pairs of embeddings; lower is more evenly spread.

    ``log mean_{n<m} exp(-t ||u_n - u_m||²)`` over different rows of ``x`` (samples, dimensions), scaled to length one
    here. 0 means that all are one point; evenly spread on the sphere in many dimensions is -2t (see
    ``uniform_uniformity``). Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and
    Uniformity on the Hypersphere", ICML 2020.

    >>> uniformity(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    -4.0
    """
    t, sample, zeros = number(t, "t"), Sample(max_samples, seed), 0
    for rows in finite_chunks(x):
        sample.add(rows)
        zeros += int((rows == 0).all(1).sum())
    return compare_pairs(directions_of(sample.rows), t, sample.seen - zeros, seed).uniformity


def uniform_uniformity(dim: int, t: float = 2) -> float:
    """What ``uniformity`` tends to for points spread evenly on the sphere in ``dim`` dimensions: the best there is.

    The potential is ``exp(-2t) 0F1(; dim/2; t²)``, by integrating ``exp(2t cos)`` over the sphere.

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
    """Mean distance of positive pairs ``mean ||u_n - v_n||^alpha``, rows scaled to length one here; lower is closer.

    ``x`` and ``y`` are (samples, dimensions), row n of one being the partner of row n of the other. Pairs with NaN,
    infinity or a zero vector are left out with a warning. Wang and Isola, as for ``uniformity``.
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
    """All min(samples, dimensions) singular values, largest first, of the embeddings as they are or minus their mean.

    ``x`` is (samples, dimensions). A tensor for a tensor, an array for an array.
    """
    values = triangle_of(x).singular_values(flag(center, "center"))
    return values if isinstance(x, Tensor) else values.numpy()


def effective_rank(x: Any, *, center: bool = False) -> float:
    """How many dimensions the embeddings fill: ``exp(-sum p log p)`` with ``p = s / sum(s)`` of the *singular* values s.

    ``x`` is (samples, dimensions); between 1 (a line) and the smaller of the two. Roy and Vetterli, "The effective
    rank", EUSIPCO 2007. Definitions by eigenvalues (s²) or of centred embeddings (``center=True``) give other figures:
    compare only like with like. With fewer samples than dimensions the figure is bounded by the samples, and a warning
    says so.
    """
    triangle = triangle_of(x)
    warn_of_few(triangle)
    return entropy_rank(triangle.singular_values(flag(center, "center")))


def rankme(x: Any, *, eps: float = 1e-7) -> float:
    """The effective rank in the form of RankMe: ``exp(-sum p log p)`` with ``p = s / sum(s) + eps``, not centred.

    ``x`` is (samples, dimensions). Garrido et al., "RankMe: Assessing the downstream performance of pretrained
    self-supervised representations by their rank", ICML 2023. Differs from ``effective_rank`` by ``eps`` only.
    """
    triangle = triangle_of(x)
    warn_of_few(triangle)
    return rankme_of(triangle.singular_values(), number(eps, "eps", 0))


def participation_ratio(x: Any, *, center: bool = True) -> float:
    """``(sum v)² / sum v²`` of the eigenvalues v of the covariance: dimensions that carry the *variance*.

    ``x`` is (samples, dimensions). Strict where ``effective_rank`` is lenient: a long tail of small directions hardly
    counts. Gao et al., "A theory of multineuronal dimensionality, dynamics and measurement", 2017. 0 for embeddings
    that do not vary.
    """
    triangle = triangle_of(x)
    warn_of_few(triangle)
    return participation_of(triangle.singular_values(flag(center, "center")))


def isoscore(x: Any) -> float:
    """How evenly the variance uses all dimensions: 1 if alike in all directions, 0 if all along one.

    From the eigenvalues of the covariance of ``x`` (samples, dimensions), scaled to the length of a vector of ones and
    compared with it. Rudman et al., "IsoScore: Measuring the Uniformity of Embedding Space Utilization", ACL 2022.
    Unlike the mean cosine it does not change when a constant is added to all embeddings. 0 for embeddings that do not
    vary.
    """
    triangle = triangle_of(x)
    warn_of_few(triangle)
    return isoscore_of(triangle)


def anisotropy(x: Any, *, max_samples: int = SAMPLE, seed: int = 0) -> Anisotropy:
    """Mean cosine between two different embeddings: 0 if they point everywhere, near 1 in a narrow cone.

    The mean is over all pairs of rows of ``x`` (samples, dimensions), exactly (from the sum of unit vectors);
    ``.quantiles`` are over random pairs of a sample, and show what a mean hides: with the 0.01 quantile at 0.6, *no*
    two embeddings are ever unlike. Ethayarajh, "How Contextual are Contextualized Word Representations?", EMNLP 2019.
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
    """Which dimensions make up the mean cosine, and the share of the strongest one and three.

    Dimension i of ``x`` (samples, dimensions) adds the mean over pairs of ``u_ni u_mi`` to the mean cosine. A share
    near 1 says that cosines compare one "rogue" dimension: standardise the dimensions before comparing. NaN where the
    mean cosine does not differ from zero, so that there is nothing to share. Timkey and van Schijndel, "All Bark and No
    Bite: Rogue Dimensions in Transformer Language Models Obscure Representational Quality", EMNLP 2021.
    """
    directions: Directions | None = None
    for rows in finite_chunks(x):
        directions = directions or Directions(rows.shape[1])
        directions.add(rows)
    assert directions is not None
    return dominance_of(directions)


def variance(x: Any) -> Variance:
    """Variance of each dimension between samples (unbiased), and the number of dead ones.

    ``x`` is (samples, dimensions). A dimension is dead when its standard deviation is below a thousandth of the root
    mean square of all values.
    """
    triangle = triangle_of(x)
    found = triangle.variance
    return Variance(found if isinstance(x, Tensor) else found.numpy(), dead_of(triangle))


def dominance_of(directions: Directions) -> Dominance:
    if directions.count < 2:
        raise SepNormError(
            f"pairs are compared, so at least two embeddings that are not zero are needed, found {directions.count}."
        )
    parts = directions.contributions()
    mean, n, dim = float(parts.sum()), directions.count, parts.shape[0]
    order = parts.argsort(descending=True)[:3]
    if mean <= 3 * math.sqrt(2 / (n * (n - 1) * dim)):  # three standard errors of the mean cosine of random directions
        return Dominance(math.nan, math.nan, tuple(order.tolist()))
    return Dominance(float(parts[order[0]]) / mean, float(parts[order].sum()) / mean, tuple(order.tolist()))


def triangle_of(x: Any) -> Triangle:
    triangle = Triangle()
    for rows in finite_chunks(x):
        triangle.add(rows)
    return triangle


def entropy_rank(values: Tensor) -> float:
    if not (total := float(values.sum())):
        return 0.0
    return float(torch.special.entr(values / total).sum().exp())


def rankme_of(values: Tensor, eps: float = 1e-7) -> float:
    if not (total := float(values.sum())):
        return 0.0
    return float(torch.special.entr(values / total + eps).sum().exp())


def participation_of(values: Tensor) -> float:
    v = (values / values.max().clamp(min=torch.finfo(torch.float64).tiny)).square()
    return float(v.sum().square() / v.square().sum()) if float(v.sum()) > 0 else 0.0


def isoscore_of(triangle: Triangle) -> float:
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
    return triangle.dead(_DEAD)


def warn_of_few(triangle: Triangle) -> None:
    dim = triangle.mean.shape[0]
    if triangle.count < dim:
        _warn(
            f"there are fewer samples ({triangle.count}) than dimensions ({dim}): a rank is then bounded by the number of "
            "samples, so compare it only with ranks from as many."
        )


def _warn(message: str) -> None:
    warnings.warn(message, SepNormWarning, stacklevel=3)
