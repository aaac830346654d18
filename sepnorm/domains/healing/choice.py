"""The choice between candidates: one is taken only if held-out data show that it beats the unchanged vectors.

Every candidate is scored on items (labelled samples, rated pairs, or two views of a sample) on which its map was not
fitted. The difference of its score to that of the first candidate, which changes nothing, has an interval that holds
for all candidates at once (95 %, Bonferroni). Of the candidates whose interval is above 0, the one with the highest
score is taken; without any, nothing is changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from sepnorm.errors import SepNormError

_LEVEL = 0.05
_RESAMPLES = 400
FOLDS = 5


@dataclass(frozen=True)
class Scored:
    """A candidate's score, and its difference to changing nothing with the interval's half-width."""

    name: str
    score: float
    difference: float
    half: float

    @property
    def better(self) -> bool:
        """Whether the interval of the difference is above 0."""
        return self.difference - self.half > 0

    def __str__(self) -> str:
        return f"{self.name}: {self.score:.4f} ({self.difference:+.4f} ± {self.half:.4f})"


def by_hits(hits: Tensor, names: Sequence[str]) -> list[Scored]:
    """Scores from right answers (candidates, items) as 0 and 1; the score is their share."""
    z, items = critical(len(names)), hits.shape[1]
    found = []
    for name, own in zip(names, hits.double(), strict=True):
        gap = own - hits[0].double()
        half = z * float(gap.std()) / math.sqrt(items) if items > 1 else math.inf
        found.append(Scored(name, float(own.mean()), float(gap.mean()), half))
    return found


def by_ranks(cosines: Tensor, ratings: Tensor, names: Sequence[str], seed: int = 0) -> list[Scored]:
    """Scores from cosines of rated pairs (candidates, pairs): Spearman's correlation with the ratings (pairs,).

    The error of a difference is estimated by resampling pairs, the same for both candidates.
    """
    scores = _spearman(cosines, ratings)
    generator = torch.Generator().manual_seed(seed)
    pairs = len(ratings)
    drawn = []
    for _ in range(_RESAMPLES):
        some = torch.randint(pairs, (pairs,), generator=generator)
        found = _spearman(cosines[:, some], ratings[some])
        drawn.append(found - found[0])
    errors = torch.stack(drawn).nan_to_num().std(0)
    z = critical(len(names))
    return [
        Scored(name, float(score), float(score - scores[0]), z * float(error))
        for name, score, error in zip(names, scores, errors, strict=True)
    ]


def best_of(scored: Sequence[Scored]) -> int:
    """Index of the candidate to take; 0 if none beats changing nothing."""
    better = [number for number, each in enumerate(scored) if number and each.better]
    return max(better, key=lambda number: scored[number].score, default=0)


def critical(count: int) -> float:
    """Standard errors to either side of an interval, so that all ``count - 1`` intervals hold at once."""
    return NormalDist().inv_cdf(1 - _LEVEL / (2 * max(count - 1, 1)))


def fold_of(count: int, seed: int = 0) -> Tensor:
    """The fold (count,) of each sample: ``FOLDS`` random folds of equal size."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return torch.empty(count, dtype=torch.long).index_copy_(0, order, torch.arange(count) % FOLDS)


def _spearman(values: Tensor, ratings: Tensor) -> Tensor:
    """Correlations (candidates,) of (candidates, pairs) with (pairs,); 0 if all values are equal."""
    a, b = _ranks(values), _ranks(ratings[None])
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    scale = (a.square().sum(1) * b.square().sum(1)).sqrt()
    return torch.where(scale > 0, (a * b).sum(1) / scale.clamp(min=1e-300), 0.0)


def _ranks(values: Tensor) -> Tensor:
    """Ranks along the second dimension; equal values get their mean rank."""
    found = torch.empty(values.shape, dtype=torch.float64)
    for row, out in zip(values, found, strict=True):
        _, inverse, counts = row.unique(return_inverse=True, return_counts=True)
        ends = counts.cumsum(0).double()
        out.copy_((ends - (counts.double() - 1) / 2)[inverse])
    return found


def numbers_of(labels: Sequence[str]) -> Tensor:
    """Labels as class indices (count,). Labels that cannot be used for a choice are refused."""
    known = {label: number for number, label in enumerate(sorted(set(labels)))}
    found = torch.tensor([known[label] for label in labels])
    if len(known) < 2:
        raise SepNormError(
            f"all labels are {labels[0]!r}: a choice by labels needs at least two classes. Leave them out."
        )
    if int(torch.bincount(found).max()) < 2:
        raise SepNormError(
            "every label occurs once: a choice by labels needs several samples of a class. Leave them out."
        )
    return found
