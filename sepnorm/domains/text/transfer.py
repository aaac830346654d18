"""Transfer tasks: logistic regression on frozen sentence embeddings.

The protocol of SentEval: a set's own split, else ten folds. The penalty is chosen on the validation part, or without
one on a tenth of the training part, never on test data.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from sepnorm.domains.linear_heads import Rows
from sepnorm.domains.logistic import fit_classes
from sepnorm.domains.probes import STRENGTHS
from sepnorm.domains.text.classification import Classification
from sepnorm.domains.text.embedding import Embed, embed_distinct
from sepnorm.errors import SepNormError

_FOLDS = 10


def transfer_scores(task: Classification, embed: Embed) -> dict[str, float]:
    """``accuracy``, and for pairs with the classes 0 and 1 the ``f1`` of class 1."""
    features, labels, classes = _features(task, embed)
    if "all" in features:
        guesses, truth = _cross_validated(features["all"], labels["all"])
    else:
        train, train_labels = features["train"], labels["train"]
        if "validation" in features:
            best = _choose(train, train_labels, features["validation"], labels["validation"])
        else:
            best = _choose_inside(train, train_labels)
        truth = labels["test"]
        guesses = _guesses(train, train_labels, [best], features["test"])[:, 0]
    scores = {"accuracy": float((guesses == truth).double().mean())}
    if task.in_pairs and classes == ["0", "1"]:
        hits = int(((guesses == 1) & (truth == 1)).sum())
        scores["f1"] = 2 * hits / max(1, int((guesses == 1).sum() + (truth == 1).sum()))
    return scores


def _features(task: Classification, embed: Embed) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
    """Features (count, dim) of mean square 1 over the training part, class indices (count,), and the classes."""
    names = list(task.parts)
    rows = embed_distinct(embed, *(texts for part in task.parts.values() for texts in (part.first, part.second)))
    features = {}
    for name, first, second in zip(names, rows[::2], rows[1::2], strict=True):
        features[name] = torch.cat([(first - second).abs(), first * second], dim=1) if task.in_pairs else first
    training = "all" if "all" in task.parts else "train"
    scale = features[training].double().square().mean().sqrt().clamp(min=1e-12).float()
    classes = sorted({label for part in task.parts.values() for label in part.labels})
    number = {label: i for i, label in enumerate(classes)}
    labels = {name: torch.tensor([number[label] for label in part.labels]) for name, part in task.parts.items()}
    return {name: part / scale for name, part in features.items()}, labels, classes


def _cross_validated(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions for every sample by a regression on the folds without it, and the labels."""
    guesses = torch.empty_like(labels)
    for train, test in _folds(labels, _FOLDS):
        best = _choose_inside(features[train], labels[train])
        guesses[test] = _guesses(features[train], labels[train], [best], features[test])[:, 0]
    return guesses, labels


def _choose_inside(features: Tensor, labels: Tensor) -> float:
    train, held_out = next(iter(_folds(labels, _FOLDS)))
    return _choose(features[train], labels[train], features[held_out], labels[held_out])


def _choose(train: Tensor, train_labels: Tensor, held_out: Tensor, held_out_labels: Tensor) -> float:
    """The best strength on held-out data; the stronger penalty of several equal ones."""
    guesses = _guesses(train, train_labels, STRENGTHS, held_out)
    hits = (guesses == held_out_labels[:, None]).sum(0).tolist()
    return STRENGTHS[hits.index(max(hits))]


def _folds(labels: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """Indices of training and test samples for each fold; every class is spread over the folds."""
    from sklearn.model_selection import StratifiedKFold

    if len(labels) < 2 * count:
        raise SepNormError(f"{len(labels)} samples are too few to be split in {count}: give {2 * count} or more.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class with fewer samples than folds is missing in some
        folds = StratifiedKFold(count, shuffle=True, random_state=0).split(labels, labels)
        return [(torch.from_numpy(train), torch.from_numpy(test)) for train, test in folds]


def _guesses(train: Tensor, labels: Tensor, strengths: Sequence[float], test: Tensor) -> Tensor:
    """Predictions (count, strengths) for ``test`` by logistic regressions on ``train``."""
    classes, numbers = labels.unique(return_inverse=True)
    if len(classes) < 2:  # a rare class may be missing in a fold
        return labels[:1].expand(len(test), len(strengths))
    scales = torch.ones(len(strengths), train.shape[1], dtype=torch.float64)
    return classes[fit_classes(Rows(train), numbers, scales, strengths).outputs(test).argmax(2)]
