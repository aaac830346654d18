"""Semantic textual similarity: does the cosine of two sentence vectors rank pairs as people do?

The protocol of SimCSE: no training, all subsets of a year together, Spearman's rank correlation over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepnorm.domains.text.reading import clean, number_in, tab_rows, text_in, whole_lines
from sepnorm.errors import SepNormError

if TYPE_CHECKING:
    from sepnorm.domains.text.embedding import Embed

#: Subsets of each year, as in SentEval's file names.
YEARS = {
    "sts12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "sts13": ("FNWN", "headlines", "OnWN"),
    "sts14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "sts15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "sts16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}


@dataclass(eq=False)
class Pairs:
    """Pairs of sentences with people's ratings of their similarity.

    Args:
        first: first sentences.
        second: second sentences.
        scores: ratings, higher is more similar.
    """

    first: list[str]
    second: list[str]
    scores: list[float]

    def __len__(self) -> int:
        return len(self.scores)


def sts_score(pairs: Pairs, embed: Embed) -> float:
    """Spearman's correlation of the cosines of sentence vectors with people's scores.

    Args:
        pairs: rated pairs.
        embed: function from n sentences to vectors (n, dim).

    Returns:
        The correlation; 0 if all cosines are equal.

    Raises:
        SepNormError: if all pairs have the same score, or embeddings are not finite.
    """
    import torch
    from scipy.stats import spearmanr

    from sepnorm.domains.text.embedding import embed_distinct

    if len(set(pairs.scores)) < 2:
        raise SepNormError("all pairs have the same score: a rank correlation needs different ones.")
    first, second = embed_distinct(embed, pairs.first, pairs.second)
    cosines = torch.cosine_similarity(first.double(), second.double())
    if bool((cosines == cosines[0]).all()):
        return 0.0
    return float(spearmanr(cosines.numpy(), pairs.scores).statistic)


def pairs_of(rows: Iterable[dict[str, Any]], source: str, columns: tuple[str, str, str]) -> Pairs:
    """Pairs from the rows of a table; ``columns`` names the two sentences and the score."""
    found: list[tuple[str, str, float]] = []
    for number, row in enumerate(rows, 1):
        where = f"row {number} of {source}"
        first, second = (text_in(row.get(column), column, where) for column in columns[:2])
        found.append((first, second, number_in(row.get(columns[2]), columns[2], where)))
    return _pairs(found, source)


def read_year(folder: Path, name: str) -> Pairs:
    """Reads a year from SentEval: ``STS.input.SUBSET.txt`` and ``STS.gs.SUBSET.txt``; skips pairs without a score."""
    found: list[tuple[str, str, float]] = []
    for subset in YEARS[name]:
        texts, scores = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
        rows, gold = tab_rows(texts, 2), whole_lines(scores)
        if len(rows) != len(gold):
            raise SepNormError(
                f"{texts} has {len(rows)} lines and {scores} has {len(gold)}: they do not belong together."
            )
        for number, (row, score) in enumerate(zip(rows, gold, strict=True), 1):
            if score.strip():
                found.append((clean(row[0]), clean(row[1]), number_in(score, "score", f"line {number} of {scores}")))
    return _pairs(found, str(folder))


def read_benchmark(path: Path) -> Pairs:
    """Reads a part of STS-B as distributed: tab-separated without a header, score and sentences in columns 5 to 7."""
    rows = [dict(zip(("score", "sentence1", "sentence2"), cells[4:7], strict=True)) for cells in tab_rows(path, 7)]
    return pairs_of(rows, str(path), ("sentence1", "sentence2", "score"))


def read_sick(path: Path) -> Pairs:
    """Reads a part of SICK as distributed: tab-separated with a header, sentences and relatedness in columns 2 to 4."""
    names = ("sentence_A", "sentence_B", "relatedness_score")
    rows = [dict(zip(names, cells[1:4], strict=True)) for cells in tab_rows(path, 4, header=True)]
    return pairs_of(rows, str(path), names)


def _pairs(found: list[tuple[str, str, float]], source: str) -> Pairs:
    if len(found) < 2:
        raise SepNormError(f"{source} holds {len(found)} pairs with a score: a rank correlation needs two or more.")
    return Pairs([pair[0] for pair in found], [pair[1] for pair in found], [pair[2] for pair in found])
