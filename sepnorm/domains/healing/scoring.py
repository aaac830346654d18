"""Scores of candidates on held-out items, with maps fitted without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.domains.healing.candidates import Candidate
from sepnorm.domains.healing.choice import FOLDS, fold_of
from sepnorm.domains.probes import nearest_votes
from sepnorm.geometry.linear_maps import LinearMap, Moments

_BLOCK = 1024
#: Largest number of samples for a choice.
SCORED = 5000


def label_hits(
    rows: Mapping[str, Tensor],
    labels: Tensor,
    all_moments: Mapping[str, Moments],
    tried: Sequence[Candidate],
    seed: int,
) -> Tensor:
    """Whether the kNN vote of the other folds is right (candidates, samples), for rows (samples, dim) by pooling."""
    folds = fold_of(len(labels), seed)
    hits = torch.zeros(len(tried), len(labels), dtype=torch.bool)
    for fold in range(FOLDS):
        here = folds == fold
        for number, healed in _mapped(rows, here, all_moments, tried):
            hits[number, here] = nearest_votes(healed[~here], labels[~here], healed[here]) == labels[here]
    return hits


def view_hits(
    views: Mapping[str, tuple[Tensor, Tensor]],
    rows: Mapping[str, Tensor],
    all_moments: Mapping[str, Moments],
    tried: Sequence[Candidate],
    seed: int,
) -> Tensor:
    """Whether one view of a sample (samples, dim) is nearest to its other view (candidates, samples)."""
    count = len(next(iter(views.values()))[0])
    folds = fold_of(count, seed)
    hits = torch.zeros(len(tried), count, dtype=torch.bool)
    for fold in range(FOLDS):
        here = folds == fold
        maps = _maps(rows, here, all_moments, tried)
        for number, (candidate, found) in enumerate(zip(tried, maps, strict=True)):
            first, second = views[candidate.pooling]
            a, b = F.normalize(found(first[here]), dim=1), F.normalize(found(second), dim=1)
            nearest = torch.cat([(part @ b.T).argmax(1) for part in a.split(_BLOCK)])
            hits[number, here] = nearest == here.nonzero()[:, 0]
    return hits


def pair_cosines(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], maps: Sequence[LinearMap], tried: Sequence[Candidate]
) -> Tensor:
    """Cosines of pairs (candidates, pairs) from their vectors (pairs, dim) by pooling."""
    found = []
    for candidate, each in zip(tried, maps, strict=True):
        a, b = each(first[candidate.pooling].double()), each(second[candidate.pooling].double())
        found.append(torch.cosine_similarity(a, b))
    return torch.stack(found)


def _maps(
    rows: Mapping[str, Tensor], here: Tensor, all_moments: Mapping[str, Moments], tried: Sequence[Candidate]
) -> list[LinearMap]:
    """Maps of the candidates, fitted without the rows ``here``."""
    moments = {pooling: all_moments[pooling].without(rows[pooling][here]) for pooling in rows}
    return [candidate.make(moments[candidate.pooling]) for candidate in tried]


def _mapped(
    rows: Mapping[str, Tensor], here: Tensor, all_moments: Mapping[str, Moments], tried: Sequence[Candidate]
) -> list[tuple[int, Tensor]]:
    maps = _maps(rows, here, all_moments, tried)
    return [
        (number, found(rows[candidate.pooling]))
        for number, (candidate, found) in enumerate(zip(tried, maps, strict=True))
    ]
