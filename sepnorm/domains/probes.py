"""Probes of frozen features: linear, with and without a BatchNorm before the head, and weighted nearest neighbours.

Hyper-parameters are chosen on a held-out part of the training set, never on the test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.domains.linear_heads import Heads, Rows
from sepnorm.domains.logistic import TOLERANCE, fit_classes
from sepnorm.errors import SepNormError
from sepnorm.geometry import summary

#: Inverse penalties from which a linear probe is chosen.
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
_HELD_OUT = 5  # one in this many training samples of a class is held out to choose the penalty
_NEIGHBOURS, _TEMPERATURE = 20, 0.07
_SCORED = 1024  # samples at a time
_WIDE = 1e-4  # tolerance of regressions on features of many dimensions
_NEXT_TO_NOTHING = 1e-5  # relative to the largest variance


@dataclass(eq=False)
class Split:
    """Features (count, dim) and labels (count,) for training and test."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        if len(self.train_labels.unique()) < 2:
            raise SepNormError("a probe needs at least two classes, and the training images have one.")
        for name, rows in (("training", self.train), ("test", self.test)):
            # in parts, since features may be a memory-mapped file
            if not all(bool(part.isfinite().all()) for part in rows.split(2**16)):
                raise SepNormError(
                    f"the {name} features hold NaN or infinity: the encoder is broken, nothing can be probed."
                )


def choosing(labels: Tensor) -> Tensor:
    """Mask (count,) of the training samples that choose hyper-parameters: one in five of each class."""
    found = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        found[(labels == label).nonzero()[1::_HELD_OUT, 0]] = True  # never all of a class
    if not bool(found.any()):
        raise SepNormError("a probe needs at least two training samples of some class.")
    return found


def probe(split: Split, kinds: Sequence[str] = ("linear", "knn"), wide: bool = False) -> dict[str, float]:
    """Scores of the probes in ``kinds``: ``linear_scores`` and ``knn``."""
    found: dict[str, float] = {}
    if "linear" in kinds:
        found |= linear_scores(split, wide)[0]
    if "knn" in kinds:
        found["knn"] = knn_probe(split)
    return found


def linear_scores(split: Split, wide: bool = False) -> tuple[dict[str, float], Tensor]:
    """Scores ``linear_*`` and ``linear_bn_*``, and whether the first probe is right on each test sample (count,).

    ``wide`` is for features of many dimensions, such as moments: no second probe, and a looser tolerance.
    """
    names = ["linear"] if wide else ["linear", "linear_bn"]
    probes = linear_probes(split, [name == "linear_bn" for name in names], _WIDE if wide else TOLERANCE)
    scores = {
        f"{name}_{key}": value
        for name, each in zip(names, probes, strict=True)
        for key, value in each.scores.items()
        if key != "penalty"
    }
    return scores, probes[0].right


def shape(rows: Tensor) -> dict[str, float]:
    """Measures of geometry to report beside a probe, for features (count, dim)."""
    found = summary(rows)
    return {
        "uniformity": found.uniformity,
        "effective_rank": found.effective_rank,
        "mean_cosine": found.mean_cosine,
    }


def linear_probe(split: Split, *, standardise: bool) -> dict[str, float]:
    """Accuracy of logistic regression: ``top1``, and ``top5`` with more than five classes.

    ``standardise`` first scales each dimension by training statistics, as a BatchNorm without affine before the head
    does. Without it one factor scales all features, so that the penalty means the same for every encoder.
    """
    return linear_probes(split, [standardise])[0].scores


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """Scores of ``linear_probe``, and whether each test sample (count,) is classified correctly."""

    scores: dict[str, float]
    right: Tensor


def linear_probes(split: Split, standardise: Sequence[bool], tolerance: float = TOLERANCE) -> list[LinearProbe]:
    """Fits ``linear_probe`` for each value of ``standardise``, in the same passes over the features.

    A regression ends when about the share ``tolerance`` of its objective remains to gain.
    """
    rows = Rows(split.train)
    classes, labels = split.train_labels.unique(return_inverse=True)
    held_out = choosing(labels)
    tried = [(each, strength) for each in standardise for strength in STRENGTHS]
    forms = torch.stack([rows.own_scale() if each else rows.overall_scale() for each, _ in tried])
    kept, left = (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]
    heads = fit_classes(rows, labels[kept], forms, [strength for _, strength in tried], kept, tolerance=tolerance)
    scores = _hits(heads, split.train[left], labels[left], 1).double().mean(1).tolist()
    best = [
        max((i for i, (form, _) in enumerate(tried) if form == each), key=lambda i: (scores[i], -tried[i][1]))
        for each in standardise
    ]
    heads = fit_classes(rows, labels, forms[best], [tried[i][1] for i in best], start=heads[best], tolerance=tolerance)
    known = torch.where(torch.isin(split.test_labels, classes), torch.searchsorted(classes, split.test_labels), -1)
    hits = {k: _hits(heads, split.test, known, k) for k in ((1, 5) if len(classes) > 5 else (1,))}
    return [
        LinearProbe(
            {"penalty": 1 / tried[i][1]} | {f"top{k}": float(right[head].double().mean()) for k, right in hits.items()},
            hits[1][head],
        )
        for head, i in enumerate(best)
    ]


def knn_probe(split: Split, k: int = _NEIGHBOURS) -> float:
    """Accuracy of ``nearest_votes``."""
    classes, numbers = split.train_labels.unique(return_inverse=True)
    found = classes[nearest_votes(split.train, numbers, split.test, k)]
    return int((found == split.test_labels).sum()) / len(found)


def nearest_votes(train: Tensor, labels: Tensor, test: Tensor, k: int = _NEIGHBOURS) -> Tensor:
    """The class (test,) by the votes of the k nearest ``train`` (count, dim) by cosine.

    ``labels`` (count,) are class indices. A vote weighs exp(cosine / 0.07) (Wu et al., CVPR 2018).
    """
    train, test = F.normalize(train.float(), dim=1), F.normalize(test.float(), dim=1)
    found = []
    for rows in test.split(_SCORED):
        cosines, nearest = (rows @ train.T).topk(min(k, len(train)), dim=1)
        votes = torch.zeros(len(rows), int(labels.max()) + 1)
        votes.scatter_add_(1, labels[nearest], (cosines / _TEMPERATURE).exp())
        found.append(votes.argmax(1))
    return torch.cat(found)


def centred(fitted: Tensor, rows: Tensor) -> Tensor:
    """``rows`` (count, dim) minus the mean of ``fitted`` (samples, dim): the simplest correction without training."""
    return rows - fitted.double().mean(0).to(rows.dtype)


def whitened(fitted: Tensor, rows: Tensor) -> Tensor:
    """Whitens ``rows`` (count, dim) by the mean and covariance of ``fitted`` (samples, dim).

    This repairs collapsed embeddings without training (Su et al., 2021). Directions in which ``fitted`` has almost no
    variance are dropped, since whitening would only amplify noise there.
    """
    mean = fitted.double().mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((fitted.double() - mean).T))
    kept = values > values[-1] * _NEXT_TO_NOTHING
    return ((rows.double() - mean) @ (vectors[:, kept] / values[kept].sqrt())).float()


def _hits(heads: Heads, features: Tensor, labels: Tensor, k: int) -> Tensor:
    """(heads, count): whether the label of a row is among the ``k`` highest outputs of a head."""
    found = []
    for rows, wanted in zip(features.split(_SCORED), labels.split(_SCORED), strict=True):
        best = heads.outputs(rows).topk(k, dim=2).indices
        found.append((best == wanted[:, None, None]).any(2).T)
    return torch.cat(found, 1)
