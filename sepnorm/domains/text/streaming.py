"""Sentences or triples that are read during training."""

from __future__ import annotations

from typing import Any

from sepnorm.data.streams import Stream, open_rows, some_rows
from sepnorm.domains.text.config import TextConfig
from sepnorm.domains.text.corpus import Corpus, columns_of, hold_out
from sepnorm.domains.text.data import TRIPLES, sentence_column, triple_columns
from sepnorm.domains.text.reading import clean
from sepnorm.errors import SepNormError

_SOME = 10_000  # samples for calibration or a new tokeniser, of which some are held out


class TextStream:
    """The stream of a config; ``corpus`` holds some of its sentences or triples."""

    def __init__(self, config: TextConfig) -> None:
        if config.data == "lee":
            raise SepNormError("lee is small and is read whole: leave stream out, or name other data.")
        self._source, self._rows = config.data, open_rows(config.data)
        some = some_rows(config.data, self._rows, _SOME)
        columns = columns_of(config)
        if (columns is not None and len(columns) > 1) or any(set(names) <= set(some[0]) for names in TRIPLES):
            self._columns = list(triple_columns(some[0], columns, config.data))
        else:
            self._columns = [sentence_column(some[0], config.column, config.data)]
        whole = [parts for row in some if all(parts := self._parts(row))]
        self.corpus = hold_out([list(part) for part in zip(*whole, strict=True)] or [[]], config.data)
        self._held_out = frozenset(self.corpus.held_out)

    def open(self, seed: int) -> Stream:
        """Opens the stream at its beginning. A sample is a list: one sentence, or the parts of a triple."""
        return Stream(self._source, self._rows, self._samples, seed)

    def _parts(self, row: dict[str, Any]) -> list[str]:
        return [clean(row.get(column)) for column in self._columns]

    def _samples(self, row: dict[str, Any]) -> list[list[str]] | None:
        parts = self._parts(row)
        if not all(parts):
            return None
        return [] if parts[0] in self._held_out else [parts]


def corpus_of(samples: list[list[str]]) -> Corpus:
    return Corpus.of([list(part) for part in zip(*samples, strict=True)], [])
