"""Transfer: what classes of sentences a logistic regression reads off frozen embeddings.

The protocol of SentEval: ten folds where a set has no split of its own, otherwise its split. The penalty is chosen on the
validation part or, where there is none, on a tenth of the training part, never on what is tested.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.domains.linear_heads import Rows
from sepnorm.domains.logistic import fit_classes
from sepnorm.domains.probes import STRENGTHS
from sepnorm.domains.text.embedding import Embed, embed_distinct
from sepnorm.domains.text.reading import clean, tab_rows, text_in, whole_lines
from sepnorm.errors import SepNormError

_FOLDS = 10
_SPLITS = {"all": "all", "train": "train", "test": "test"} | dict.fromkeys(("validation", "dev", "val"), "validation")


@dataclass(eq=False)
class Part:
    """Sentences, or pairs of them if ``second`` is not empty, with a label each."""

    first: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Classification:
    """A set by its parts: ``all`` to be cross-validated, or ``train``, ``test`` and perhaps ``validation``."""

    parts: dict[str, Part]

    def __post_init__(self) -> None:
        names = set(self.parts)
        if names != {"all"} and names not in ({"train", "test"}, {"train", "validation", "test"}):
            raise SepNormError(
                f"a set has one part, all, or the parts train and test and perhaps validation, found {', '.join(sorted(names))}."
            )
        if len({bool(part.second) for part in self.parts.values()}) > 1:
            raise SepNormError("some parts of this set hold sentences and some pairs of them.")
        training = set(self.parts["all" if "all" in names else "train"].labels)
        if len(training) < 2:
            raise SepNormError(f"a classification needs two classes or more, found {', '.join(training) or 'none'}.")
        for name, part in self.parts.items():
            if not part.labels:
                raise SepNormError(f"the {name} part of this set is empty.")
            if unknown := sorted(set(part.labels) - training):
                raise SepNormError(f"the {name} part has a class that the training part does not have: {unknown[0]!r}.")

    @property
    def in_pairs(self) -> bool:
        return any(part.second for part in self.parts.values())


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


def task_of(rows: Iterable[dict[str, Any]], source: str, texts: tuple[str, ...], label: str) -> Classification:
    """A set from the rows of a table; the column ``split`` says which part a row belongs to, if it is there."""
    parts: dict[str, Part] = {}
    for number, row in enumerate(rows, 1):
        where = f"row {number} of {source}"
        split = str(row.get("split") or "all").lower()
        if split not in _SPLITS:
            raise SepNormError(f"{where} is of the split {split!r}: there are {', '.join(_SPLITS)}.")
        if row.get(label) is None or not str(row[label]).strip():
            raise SepNormError(f"{where} has no label in {label!r}, found {row.get(label)!r}.")
        part = parts.setdefault(_SPLITS[split], Part())
        part.labels.append(str(row[label]).strip())
        part.first.append(text_in(row.get(texts[0]), texts[0], where))
        if len(texts) == 2:
            part.second.append(text_in(row.get(texts[1]), texts[1], where))
    return Classification(parts)


def read_polarity(positive: Path, negative: Path) -> Classification:
    """MR, CR, SUBJ and MPQA as SentEval has them: a file of sentences for each of two classes."""
    part = Part()
    for label, path in (("1", positive), ("0", negative)):
        texts = [text for text in map(clean, whole_lines(path)) if text]
        part.first += texts
        part.labels += [label] * len(texts)
    return Classification({"all": part})


def read_sst(folder: Path) -> Classification:
    """SST2 as SentEval has it: a sentence, a tab and a label on each line of ``sentiment-train``, ``-dev`` and ``-test``."""
    parts = {}
    for name, file in (("train", "sentiment-train"), ("validation", "sentiment-dev"), ("test", "sentiment-test")):
        rows = tab_rows(folder / file, 2)
        parts[name] = Part([clean(row[0]) for row in rows], [], [row[1].strip() for row in rows])
    return Classification(parts)


def read_trec(folder: Path) -> Classification:
    """TREC as distributed: ``COARSE:fine question`` on each line; the coarse label counts."""
    parts = {}
    for name, file in (("train", "train_5500.label"), ("test", "TREC_10.label")):
        part = parts[name] = Part()
        for number, line in enumerate(whole_lines(folder / file), 1):
            label, colon, rest = line.partition(":")
            _, blank, question = rest.partition(" ")
            if not colon or not blank:
                raise SepNormError(
                    f"line {number} of {folder / file} does not begin with COARSE:fine, found {line[:30]!r}."
                )
            part.labels.append(label.strip())
            part.first.append(clean(question))
    return Classification(parts)


def read_mrpc(folder: Path) -> Classification:
    """MRPC as distributed: tab-separated with a header; label, two numbers, two sentences."""
    parts = {}
    for name, file in (("train", "msr_paraphrase_train.txt"), ("test", "msr_paraphrase_test.txt")):
        rows = tab_rows(folder / file, 5, header=True)
        parts[name] = Part([clean(row[3]) for row in rows], [clean(row[4]) for row in rows], [row[0] for row in rows])
    return Classification(parts)


def _features(task: Classification, embed: Embed) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
    """Features (count, dim) of mean square 1 over the training part, numbers of classes (count,), and the classes."""
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
    """Guesses for every sample by a regression on the folds that it is not in, and the labels."""
    guesses = torch.empty_like(labels)
    for train, test in _folds(labels, _FOLDS):
        best = _choose_inside(features[train], labels[train])
        guesses[test] = _guesses(features[train], labels[train], [best], features[test])[:, 0]
    return guesses, labels


def _choose_inside(features: Tensor, labels: Tensor) -> float:
    train, held_out = next(iter(_folds(labels, _FOLDS)))
    return _choose(features[train], labels[train], features[held_out], labels[held_out])


def _choose(train: Tensor, train_labels: Tensor, held_out: Tensor, held_out_labels: Tensor) -> float:
    """The strength that is best on what is held out, the stronger penalty if several are."""
    guesses = _guesses(train, train_labels, STRENGTHS, held_out)
    hits = (guesses == held_out_labels[:, None]).sum(0).tolist()
    return STRENGTHS[hits.index(max(hits))]


def _folds(labels: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """Numbers of the samples to train on and to test on, for each fold; every class is spread over the folds."""
    from sklearn.model_selection import StratifiedKFold

    if len(labels) < 2 * count:
        raise SepNormError(f"{len(labels)} samples are too few to be split in {count}: give {2 * count} or more.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class with fewer samples than folds is in some of them only
        folds = StratifiedKFold(count, shuffle=True, random_state=0).split(labels, labels)
        return [(torch.from_numpy(train), torch.from_numpy(test)) for train, test in folds]


def _guesses(train: Tensor, labels: Tensor, strengths: Sequence[float], test: Tensor) -> Tensor:
    """For ``test``, by logistic regressions on ``train``: (count, strengths)."""
    classes, numbers = labels.unique(return_inverse=True)
    if len(classes) < 2:  # a rare class may be missing in a fold
        return labels[:1].expand(len(test), len(strengths))
    scales = torch.ones(len(strengths), train.shape[1], dtype=torch.float64)
    return classes[fit_classes(Rows(train), numbers, scales, strengths).outputs(test).argmax(2)]
