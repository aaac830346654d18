"""Labelled sentences or pairs, for transfer tasks: from tables and from SentEval's files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sepnorm.domains.text.reading import clean, tab_rows, text_in, whole_lines
from sepnorm.errors import SepNormError

_SPLITS = {"all": "all", "train": "train", "test": "test"} | dict.fromkeys(("validation", "dev", "val"), "validation")


@dataclass(eq=False)
class Part:
    """Sentences, or pairs if ``second`` is not empty, with one label each."""

    first: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Classification:
    """A data set by its parts: ``all``, to be cross-validated; or ``train``, ``test`` and optionally ``validation``."""

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


def task_of(rows: Iterable[dict[str, Any]], source: str, texts: tuple[str, ...], label: str) -> Classification:
    """A data set from the rows of a table. The column ``split``, if there is one, names a row's part."""
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
    """Reads MR, CR, SUBJ or MPQA from SentEval: one file of sentences for each of two classes."""
    part = Part()
    for label, path in (("1", positive), ("0", negative)):
        texts = [text for text in map(clean, whole_lines(path)) if text]
        part.first += texts
        part.labels += [label] * len(texts)
    return Classification({"all": part})


def read_sst(folder: Path) -> Classification:
    """Reads SST2 from SentEval: ``sentiment-train``, ``-dev`` and ``-test``, with a sentence, a tab, a label a line."""
    parts = {}
    for name, file in (("train", "sentiment-train"), ("validation", "sentiment-dev"), ("test", "sentiment-test")):
        rows = tab_rows(folder / file, 2)
        parts[name] = Part([clean(row[0]) for row in rows], [], [row[1].strip() for row in rows])
    return Classification(parts)


def read_trec(folder: Path) -> Classification:
    """Reads TREC as distributed: ``COARSE:fine question`` on each line; the coarse label is used."""
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
    """Reads MRPC as distributed: tab-separated with a header; label, two numbers, two sentences."""
    parts = {}
    for name, file in (("train", "msr_paraphrase_train.txt"), ("test", "msr_paraphrase_test.txt")):
        rows = tab_rows(folder / file, 5, header=True)
        parts[name] = Part([clean(row[3]) for row in rows], [clean(row[4]) for row in rows], [row[0] for row in rows])
    return Classification(parts)
