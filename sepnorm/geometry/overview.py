"""``summary``: all measures of one set of embeddings together."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from sepnorm.errors import SepNormError
from sepnorm.geometry.cloud import SAMPLE, Cloud, chunks, refuse_or_warn_of_nonfinite
from sepnorm.geometry.loudness import loudness_of, same_share
from sepnorm.geometry.measures import (
    dead_of,
    dominance_of,
    entropy_rank,
    isoscore_of,
    participation_of,
    rankme_of,
    uniform_uniformity,
    warn_of_few,
)
from sepnorm.geometry.pairs import anisotropy_of, compare_pairs, directions_of
from sepnorm.geometry.spectra import alpha_of
from sepnorm.geometry.spread import epps_pulley_of, koleo_of

_SCALE = 1000  # a dimension at this many times the scale of the others gets a note


@dataclass(eq=False)
class Summary:
    """All measures of one set of embeddings. ``print`` it to read them; ``as_dict`` returns them for programs.

    Attributes:
        count: number of finite embeddings.
        dim: number of dimensions.
        nonfinite: number of embeddings left out because they hold NaN or infinity.
        zeros: number of zero vectors.
        duplicates: number of embeddings that equal an earlier one.
        sample: number of embeddings used for measures over pairs.
        seed: seed of that sample.
        uniformity: see ``uniformity``.
        uniformity_stderr: its standard error.
        uniformity_ideal: the best value possible in these dimensions, see ``uniform_uniformity``.
        mean_cosine: see ``anisotropy``.
        mean_cosine_stderr: its standard error.
        cosine_quantiles: quantiles of the cosine over pairs, by probability as a string (``"0.01"`` to ``"0.99"``).
        dominance_one: share of the mean cosine that the strongest dimension carries, see ``dominance``.
        dominance_three: share of the three strongest.
        dominant_dimensions: numbers of these three, strongest first.
        effective_rank: see ``effective_rank``.
        effective_rank_centered: the same with the mean subtracted.
        rankme: see ``rankme``.
        participation_ratio: see ``participation_ratio``.
        isoscore: see ``isoscore``.
        mean_length: mean Euclidean length.
        std_length: standard deviation of the length.
        mean_variance: mean of ``variances``.
        dead_dimensions: number of dimensions that hardly vary, see ``variance``.
        loud_dimensions: numbers of dimensions of far larger scale than the others.
        loud_share: their share of the sum of squares.
        rest_mean_cosine: mean cosine without loud dimensions.
        rest_effective_rank_centered: centred effective rank without loud dimensions.
        near_duplicates: share of the sample that differs from its nearest neighbour by rounding alone.
        alpha_req: see ``alpha_req``.
        epps_pulley: see ``epps_pulley``.
        koleo: see ``koleo``.
        singular_values: singular values of the embeddings, not centred, largest first.
        variances: unbiased variance of each dimension.
        notes: sentences on what was unusual in the input.
    """

    count: int
    dim: int
    nonfinite: int
    zeros: int
    duplicates: int
    sample: int
    seed: int
    uniformity: float
    uniformity_stderr: float
    uniformity_ideal: float
    mean_cosine: float
    mean_cosine_stderr: float
    cosine_quantiles: dict[str, float]
    dominance_one: float
    dominance_three: float
    dominant_dimensions: list[int]
    effective_rank: float
    effective_rank_centered: float
    rankme: float
    participation_ratio: float
    isoscore: float
    mean_length: float
    std_length: float
    mean_variance: float
    dead_dimensions: int
    loud_dimensions: list[int]
    loud_share: float
    rest_mean_cosine: float
    rest_effective_rank_centered: float
    near_duplicates: float
    alpha_req: float
    epps_pulley: float
    koleo: float
    singular_values: list[float] = field(repr=False)
    variances: list[float] = field(repr=False)
    notes: list[str] = field(default_factory=list, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """All attributes by name, ready for JSON."""
        return asdict(self)

    @property
    def available(self) -> int:
        """The largest effective rank possible: min(count, dim)."""
        return min(self.count, self.dim)

    def __str__(self) -> str:
        q = self.cosine_quantiles
        rows = {
            "embeddings": f"{self.count:,} x {self.dim}",
            "uniformity": f"{self.uniformity:.3f} ± {self.uniformity_stderr:.3f} (best {self.uniformity_ideal:.2f})",
            "mean cosine": f"{self.mean_cosine:.3f} ± {self.mean_cosine_stderr:.3f} (1 % of pairs below {q['0.01']:.2f})",
            "effective rank": f"{self.effective_rank:.1f} of {self.available}",
            "centred, RankMe": f"{self.effective_rank_centered:.1f}, {self.rankme:.1f}",
            "participation ratio": f"{self.participation_ratio:.1f}",
            "IsoScore": f"{self.isoscore:.3f}",
            "dominance, 1 and 3": f"{self.dominance_one:.2f}, {self.dominance_three:.2f} of the mean cosine",
            "dead dimensions": f"{self.dead_dimensions} of {self.dim}",
            "alpha-ReQ, KoLeo": f"{self.alpha_req:.2f}, {self.koleo:.2f}",
            "Epps-Pulley": f"{self.epps_pulley:.3g}",
            "length": f"{self.mean_length:.3g} ± {self.std_length:.2g}",
        }
        return "\n".join([*(f"{name:20} {value}" for name, value in rows.items()), *self.notes])


def summary(x: Any, *, max_samples: int = SAMPLE, seed: int = 0) -> Summary:
    """Computes all measures in one pass over the embeddings.

    A million embeddings of 768 dimensions need a few hundred megabytes beside the embeddings themselves.

    Args:
        x: embeddings (samples, dimensions).
        max_samples: with more embeddings than this (8,192 by default), measures over pairs use a random sample.
        seed: seed of the sample.

    Returns:
        A ``Summary``; ``print`` it.

    Raises:
        SepNormError: if ``x`` has another shape, is empty, or holds no two finite nonzero embeddings.

    >>> found = summary(torch.eye(4).repeat(8, 1))
    >>> found.count, found.duplicates, round(found.effective_rank, 3)
    (32, 28, 4.0)
    """
    cloud = Cloud(max_samples, seed)
    for rows in chunks(x):
        cloud.add(rows)
    result = summarise(cloud)
    refuse_or_warn_of_nonfinite(result.nonfinite, result.count)
    if result.count < result.dim:
        warn_of_few(cloud.triangle)
    return result


def summarise(cloud: Cloud) -> Summary:
    """Computes all measures of embeddings that were fed to a ``Cloud`` part by part, for data that arrives in batches.

    Args:
        cloud: a ``sepnorm.geometry.cloud.Cloud`` after its last ``add``.

    Returns:
        A ``Summary``.

    >>> from sepnorm.geometry.cloud import Cloud
    >>> cloud = Cloud()
    >>> for batch in torch.randn(3, 100, 8):
    ...     _ = cloud.add(batch)
    >>> summarise(cloud).count
    300
    """
    if not isinstance(cloud, Cloud):
        raise SepNormError(f"summarise takes a Cloud, found a {type(cloud).__name__}: summary takes embeddings.")
    if not cloud.count:
        refuse_or_warn_of_nonfinite(cloud.nonfinite, cloud.count)
    triangle, directions = cloud.triangle, cloud.directions
    rows, _ = cloud.sampled()
    pairs = compare_pairs(directions_of(rows), 2, directions.count, cloud.sample.seed)
    cone = anisotropy_of(directions, pairs)
    strongest = dominance_of(directions)
    values, centred = triangle.singular_values(), triangle.singular_values(center=True)
    loud = loudness_of(triangle, rows, float(cone))
    lengths = directions.lengths / cloud.count
    result = Summary(
        count=cloud.count,
        dim=cloud.dim,
        nonfinite=cloud.nonfinite,
        zeros=directions.zeros,
        duplicates=cloud.duplicates,
        sample=pairs.uniformity.samples,
        seed=cloud.sample.seed,
        uniformity=float(pairs.uniformity),
        uniformity_stderr=pairs.uniformity.stderr,
        uniformity_ideal=uniform_uniformity(cloud.dim),
        mean_cosine=float(cone),
        mean_cosine_stderr=cone.stderr,
        cosine_quantiles={str(p): value for p, value in cone.quantiles.items()},
        dominance_one=strongest.one,
        dominance_three=strongest.three,
        dominant_dimensions=list(strongest.dimensions),
        effective_rank=entropy_rank(values),
        effective_rank_centered=entropy_rank(centred),
        rankme=rankme_of(values),
        participation_ratio=participation_of(centred),
        isoscore=isoscore_of(triangle),
        mean_length=float(lengths[0]),
        std_length=math.sqrt(max(float(lengths[1] - lengths[0] ** 2), 0.0)),
        mean_variance=float(triangle.variance.mean()),
        dead_dimensions=dead_of(triangle),
        loud_dimensions=loud.dimensions,
        loud_share=loud.share,
        rest_mean_cosine=loud.rest_cosine,
        rest_effective_rank_centered=loud.rest_rank,
        near_duplicates=same_share(rows[(rows != 0).any(1)], pairs.partner),
        alpha_req=alpha_of(centred),
        epps_pulley=epps_pulley_of(rows, seed=cloud.sample.seed),
        koleo=float(koleo_of(pairs.nearest, directions.count, cloud.sample.seed)),
        singular_values=values.tolist(),
        variances=triangle.variance.tolist(),
    )
    result.notes = [*_notes(result), *_scale_notes(triangle.scales())]
    return result


def _scale_notes(scales: Tensor) -> list[str]:
    """A note on a dimension of far larger scale than the others; ``scales`` is (dim,)."""
    if len(scales) < 3:
        return []
    largest = int(scales.argmax())
    usual = float(torch.cat([scales[:largest], scales[largest + 1 :]]).median())
    if not usual or not float(scales[largest]) >= _SCALE * usual:
        return []
    return [
        f"Dimension {largest} has {float(scales[largest]) / usual:,.0f} times the scale of the others, so it alone decides the "
        "cosines: is it a part of the embedding, or a column of something else?"
    ]


def _notes(s: Summary) -> list[str]:
    """Sentences on what was unusual in the input."""
    notes = []
    if s.nonfinite:
        notes.append(f"{s.nonfinite} of {s.nonfinite + s.count} embeddings hold NaN or infinity and were left out.")
    if s.zeros:
        notes.append(
            f"{s.zeros} embeddings are zero: they have no direction and were left out of cosines and uniformity."
        )
    if s.duplicates:
        notes.append(f"{s.duplicates} embeddings are equal to an earlier one.")
    if not s.participation_ratio:
        notes.append("The embeddings are constant: no dimension varies between samples.")
    if s.count < s.dim:
        notes.append(
            f"There are fewer embeddings ({s.count}) than dimensions ({s.dim}): ranks are bounded by the number of "
            "embeddings, compare them only with ranks from as many."
        )
    if s.sample < s.count - s.zeros:
        notes.append(
            f"Uniformity and quantiles are over all pairs of {s.sample} embeddings, chosen by the seed {s.seed}."
        )
    return notes
