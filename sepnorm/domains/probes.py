"""What frozen features are worth: linear probes with and without a BatchNorm before the head, and weighted nearest neighbours.

Hyper-parameters are chosen on a part of the training set that is held out, never on the test set.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.errors import SepNormError
from sepnorm.geometry import summary

#: Inverse strengths of the penalty that a linear probe is chosen from.
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
_HELD_OUT = 5  # one training sample of a class in so many chooses the penalty
_NEIGHBOURS, _TEMPERATURE = 20, 0.07
_NEXT_TO_NOTHING = 1e-5  # of the largest variance


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
            if not bool(rows.isfinite().all()):
                raise SepNormError(
                    f"the {name} features hold NaN or infinity: the encoder is broken, nothing can be probed."
                )


def choosing(labels: Tensor) -> Tensor:
    """Which training samples (count,) choose hyper-parameters: one in five of each class, whatever their order."""
    found = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        found[(labels == label).nonzero()[1::_HELD_OUT, 0]] = True  # never all of a class
    if not bool(found.any()):
        raise SepNormError("a probe needs at least two training samples of some class.")
    return found


def probe(split: Split, kinds: Sequence[str] = ("linear", "knn")) -> dict[str, float]:
    """Both linear probes as ``linear_*`` and ``linear_bn_*``, and ``knn``."""
    found: dict[str, float] = {}
    if "linear" in kinds:
        for name, standardise in (("linear", False), ("linear_bn", True)):
            scores = linear_probe(split, standardise=standardise)
            found |= {f"{name}_{key}": value for key, value in scores.items() if key != "penalty"}
    if "knn" in kinds:
        found["knn"] = knn_probe(split)
    return found


def shape(rows: Tensor) -> dict[str, float]:
    """The figures of geometry that go beside a probe, of features (count, dim)."""
    found = summary(rows)
    return {
        "uniformity": found.uniformity,
        "effective_rank": found.effective_rank,
        "mean_cosine": found.mean_cosine,
    }


def linear_probe(split: Split, *, standardise: bool) -> dict[str, float]:
    """Accuracy of logistic regression: ``top1``, and ``top5`` where there are more than five classes.

    ``standardise`` scales each dimension by the training statistics first, as a BatchNorm without affine before the head
    does. Without it the features are scaled by one number in all, so that the penalty means the same for every encoder.
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    train, test = split.train.double(), split.test.double()
    if standardise:
        mean, std = train.mean(0), train.std(0).clamp(min=1e-8)
    else:
        mean = torch.zeros(train.shape[1], dtype=torch.float64)
        std = train.square().mean().sqrt().clamp(min=1e-12).expand(train.shape[1])
    train, test = (train - mean) / std, (test - mean) / std
    labels = split.train_labels
    held_out = choosing(labels)

    def fit(rows: Tensor, targets: Tensor, strength: float) -> LogisticRegression:
        # One thread: on products this small several wait for each other ten times longer than they work.
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")  # a probe that has not converged to the last digit is as good
            return LogisticRegression(C=strength, max_iter=300).fit(rows.numpy(), targets.numpy())

    scores = {}
    for c in STRENGTHS:
        chosen = fit(train[~held_out], labels[~held_out], c)
        scores[c] = chosen.score(train[held_out].numpy(), labels[held_out].numpy())
    best = max(STRENGTHS, key=lambda c: (scores[c], -c))
    head = fit(train, labels, best)
    guesses = torch.from_numpy(head.decision_function(test.numpy()))
    if guesses.dim() == 1:
        guesses = torch.stack([-guesses, guesses], dim=1)
    classes = torch.from_numpy(head.classes_)
    found = {"top1": _hits(guesses, classes, split.test_labels, 1)}
    if len(classes) > 5:
        found["top5"] = _hits(guesses, classes, split.test_labels, 5)
    return found | {"penalty": 1 / best}


def knn_probe(split: Split, k: int = _NEIGHBOURS) -> float:
    """Accuracy of the k nearest training samples by cosine, each voting with exp(cosine / 0.07) (Wu et al., CVPR 2018)."""
    train, test = F.normalize(split.train.float(), dim=1), F.normalize(split.test.float(), dim=1)
    k = min(k, len(train))
    classes, numbers = split.train_labels.unique(return_inverse=True)
    right = 0
    for rows, labels in zip(test.split(1024), split.test_labels.split(1024), strict=True):
        cosines, nearest = (rows @ train.T).topk(k, dim=1)
        votes = torch.zeros(len(rows), len(classes)).scatter_add_(1, numbers[nearest], (cosines / _TEMPERATURE).exp())
        right += int((classes[votes.argmax(1)] == labels).sum())
    return right / len(test)


def centred(fitted: Tensor, rows: Tensor) -> Tensor:
    """``rows`` (count, dim) without the mean of ``fitted`` (samples, dim): the least that can be done without training."""
    return rows - fitted.double().mean(0).to(rows.dtype)


def whitened(fitted: Tensor, rows: Tensor) -> Tensor:
    """``rows`` (count, dim) made free of correlation by the mean and covariance of ``fitted`` (samples, dim).

    What can be done for embeddings that have collapsed without any training (Su et al., 2021). Directions in which ``fitted``
    has next to no variance are left out, as whitening would only enlarge noise there.
    """
    mean = fitted.double().mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((fitted.double() - mean).T))
    kept = values > values[-1] * _NEXT_TO_NOTHING
    return ((rows.double() - mean) @ (vectors[:, kept] / values[kept].sqrt())).float()


def _hits(guesses: Tensor, classes: Tensor, labels: Tensor, k: int) -> float:
    best = classes[guesses.topk(k, dim=1).indices]
    return float((best == labels[:, None]).any(1).double().mean())
