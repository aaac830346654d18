"""Training data of a run, the sentences held out of it, and the rated pairs that choose its best step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sepnorm.data.records import rows_of
from sepnorm.data.tables import TABLES, TEXT, suffix_of
from sepnorm.domains.text.config import TextConfig
from sepnorm.domains.text.data import TRIPLES, load_sentences, load_triples
from sepnorm.domains.text.sts import Pairs, pairs_of, read_benchmark
from sepnorm.errors import SepNormError

# sentences that are measured and not trained on: this many, or one in five of a small corpus
_HELD_OUT, _SHARE = 1000, 5
_LEAST = 20
_DEVELOPMENT = ("dev", "validation", "val")


@dataclass(eq=False)
class Corpus:
    """Training texts and held-out sentences.

    The texts are ``samples`` sentences; or as many anchors, then as many positives, then as many negatives.
    """

    texts: list[str]
    samples: int
    held_out: list[str]

    @classmethod
    def of(cls, parts: Sequence[Sequence[str]], held_out: list[str]) -> Corpus:
        """A corpus of sentences, or of anchors, positives and negatives."""
        return cls([text for part in parts for text in part], len(parts[0]), held_out)

    @property
    def supervised(self) -> bool:
        return len(self.texts) > self.samples

    def views(self, hard_negatives: bool) -> list[int]:
        """Offsets from a sample's index to its views: the same sentence twice, or the parts of a triple."""
        if not self.supervised:
            return [0, 0]
        return [part * self.samples for part in range(3 if hard_negatives else 2)]


def load_corpus(config: TextConfig) -> Corpus:
    """Reads triples if ``column`` names three or the data has their usual columns, else sentences."""
    columns = columns_of(config)
    parts: list[list[str]]
    if (columns is not None and len(columns) > 1) or (columns is None and _has_triples(config.data)):
        triples = load_triples(config.data, columns=columns, most=config.sentences)
        parts = [triples.anchors, triples.positives, triples.negatives]
    else:
        parts = [load_sentences(config.data, column=config.column, most=config.sentences).texts]
    return hold_out(parts, config.data)


def columns_of(config: TextConfig) -> list[str] | None:
    return None if config.column is None else [name.strip() for name in config.column.split(",")]


def hold_out(parts: Sequence[Sequence[str]], source: str) -> Corpus:
    """A corpus of sentences or of the parts of triples, with some held out."""
    count = len(parts[0])
    if count < _LEAST:
        raise SepNormError(
            f"{source} holds {count} sentences or triples: {_LEAST} or more are needed, of which some are held out."
        )
    held = min(_HELD_OUT, count // _SHARE)
    out = {number * count // held for number in range(held)}
    kept = [[text for number, text in enumerate(part) if number not in out] for part in parts]
    return Corpus.of(kept, list(dict.fromkeys(parts[0][number] for number in sorted(out))))


def _has_triples(source: str) -> bool:
    path = Path(source)
    suffix = suffix_of(path)
    if source == "lee" or suffix in TEXT or (path.is_file() and suffix not in TABLES) or path.is_dir():
        return False
    row = next(iter(rows_of(source)))
    return any(set(names) <= set(row) for names in TRIPLES)


def load_development(source: str) -> Pairs:
    """Reads STS-B's development set from SentEval's folder, a table or a Hugging Face dataset.

    Of a table, the rows of that split are used; all rows if it has no splits.
    """
    path = Path(source)
    if path.is_dir():
        found = next(iter(sorted(path.rglob("sts-dev.csv"))), None)
        if found is None:
            raise SepNormError(f"{source} holds no sts-dev.csv: name a table with sentence1, sentence2 and score.")
        return read_benchmark(found)
    rows = list(rows_of(source, "validation"))
    chosen = [row for row in rows if str(row.get("split", "dev")).lower() in _DEVELOPMENT]
    if not chosen:
        splits = sorted({str(row["split"]) for row in rows})
        raise SepNormError(
            f"{source} has no rows of the split {' or '.join(_DEVELOPMENT)}: it has {', '.join(splits)}."
        )
    return pairs_of(chosen, source, ("sentence1", "sentence2", "score"))
