"""Reads training sentences and triples: text files, tables, Hugging Face datasets, or the Lee corpus of gensim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepnorm.data.records import choose_column, require_texts, rows_of
from sepnorm.data.tables import TABLES, TEXT, suffix_of, text_lines
from sepnorm.domains.text.lee import lee_sentences
from sepnorm.domains.text.reading import clean
from sepnorm.errors import SepNormError, nearest

#: Usual columns of triples: a sentence, one that it entails, one that contradicts it.
TRIPLES = (
    ("sent0", "sent1", "hard_neg"),
    ("premise", "entailment", "contradiction"),
    ("anchor", "positive", "negative"),
)
_TEXTS = ("text", "sentence", "sentence1", "sent0", "content")
_FEW, _MOST_BROKEN = 10, 0.1  # number, or share, of broken rows that may be skipped


@dataclass(eq=False)
class Sentences:
    """Sentences without labels, and the number of empty lines or rows that were skipped."""

    texts: list[str]
    skipped: int

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(eq=False)
class Triples:
    """For each sentence one that it entails and one that contradicts it; and the number of incomplete rows."""

    anchors: list[str]
    positives: list[str]
    negatives: list[str]
    skipped: int

    def __len__(self) -> int:
        return len(self.anchors)


def load_sentences(
    source: str = "lee", *, column: str | None = None, split: str = "train", most: int | None = None
) -> Sentences:
    """Reads sentences, one on each line or row, up to ``most``; skips and counts empty ones.

    ``source``: ``lee``, a text file (may be compressed), a table with a column of sentences, or a Hugging Face dataset.
    """
    if most is not None and most < 2:
        raise SepNormError(f"training needs two sentences or more, and most={most} was asked for.")
    texts: list[str] = []
    skipped = 0
    for text in lee_sentences() if source == "lee" else _texts(source, column, split):
        if len(texts) == most:
            break
        if text:
            texts.append(text)
        else:
            skipped += 1
    if len(texts) < 2:
        found = "one sentence" if texts else "no sentence"
        raise SepNormError(
            f"{source} holds {found} ({skipped} empty ones were left out): training needs two sentences or more."
        )
    return Sentences(texts, skipped)


def load_triples(
    source: str, *, columns: Sequence[str] | None = None, split: str = "train", most: int | None = None
) -> Triples:
    """Reads triples from a table or a Hugging Face dataset, up to ``most``; skips incomplete rows.

    ``columns`` names the three columns; default the usual names (``TRIPLES``).
    """
    if suffix_of(Path(source)) in TEXT:
        raise SepNormError(
            f"{source} is a text file, which has no columns: triples need a table, one of {', '.join(TABLES)}."
        )
    triples: list[list[str]] = []
    broken = 0
    for number, row in enumerate(rows_of(source, split), 1):
        if len(triples) == most:
            break
        if columns is None or number == 1:
            columns = triple_columns(row, columns, source)
        parts = [clean(row.get(column)) for column in columns]
        if all(parts):
            triples.append(parts)
            continue
        broken += 1
        if broken > max(_FEW, _MOST_BROKEN * number):
            missing = next(column for column, part in zip(columns, parts, strict=True) if not part)
            raise SepNormError(
                f"{broken} of the first {number} rows of {source} lack a part of their triple, such as row {number} its "
                f"{missing}: check the columns."
            )
    if len(triples) < 2:
        raise SepNormError(f"{source} holds {len(triples)} whole triples: training needs two or more.")
    anchors, positives, negatives = (list(part) for part in zip(*triples, strict=True))
    return Triples(anchors, positives, negatives, broken)


def _texts(source: str, column: str | None, split: str) -> Iterator[str]:
    """Yields the sentences of a source, empty ones included."""
    if suffix_of(Path(source)) in TEXT:
        for number, line in enumerate(text_lines(Path(source)), 1):
            if "\0" in line:
                raise SepNormError(f"{source} is no text in UTF-8: line {number} holds a zero byte. Save it as UTF-8.")
            yield clean(line)
        return
    require_texts(source)
    chosen = None
    for row in rows_of(source, split):
        if chosen is None:
            chosen = sentence_column(row, column, source)
        yield clean(row.get(chosen))


def sentence_column(row: dict[str, Any], column: str | None, source: str) -> str:
    """The column of sentences: the one asked for, else the one that fits in the first row."""
    return choose_column(row, column, _TEXTS, lambda value: isinstance(value, str), "text", source)


def triple_columns(row: dict[str, Any], columns: Sequence[str] | None, source: str) -> Sequence[str]:
    """The three columns of triples: those asked for, else the usual names in the first row."""
    names = [name for name in row if name is not None]
    if columns is None:
        found = next((known for known in TRIPLES if set(known) <= set(names)), None)
        if found is None:
            usual = " or ".join(", ".join(known) for known in TRIPLES)
            raise SepNormError(
                f"{source} has the columns {', '.join(names)}: name the three of a triple, or use {usual}."
            )
        return found
    if len(columns) != 3:
        raise SepNormError(f"a triple has three columns, found {', '.join(columns) or 'none'}.")
    for column in columns:
        if column not in row:
            raise SepNormError(f"{source} has no column {column!r}: it has {', '.join(names)}.{nearest(column, names)}")
    return columns
