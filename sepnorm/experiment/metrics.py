"""Metrics: what a figure of a run is called, and whether more of it is better. Each is declared, none is guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

#: Sets that have a column of their own beside their average.
MOST_SETS = 6


@dataclass(frozen=True)
class Metric:
    """One figure that runs report.

    Args:
        key: its name in ``metrics.json``. One ``*`` stands for a part that the data decide, such as the name of a test set.
        name: its title in tables; ``{}`` is what ``*`` stands for.
        higher_is_better: None where neither is: then differences get no verdict.
        primary: arms are told apart by the first primary metric that the runs report.
        kind: a ``score`` says what embeddings are good for, ``geometry`` what shape they have, ``training`` how they were made.
        shown: whether it has a column in tables; ``results.json`` has all.
        beside: the key of what a reader wants to see next to it, such as the same score of the mean of tokens.
    """

    key: str
    name: str
    higher_is_better: bool | None = True
    primary: bool = False
    kind: Literal["score", "geometry", "training"] = "score"
    shown: bool = True
    beside: str = ""

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for several keys."""
        return "*" in self.key

    def named(self, key: str) -> Metric | None:
        """This metric for a key that a run reported; None where it is another."""
        before, _, after = self.key.partition("*")
        if not self.is_pattern:
            return self if key == self.key else None
        match = re.fullmatch(f"{re.escape(before)}(.+){re.escape(after)}", key)
        return None if match is None else replace(self, key=key, name=self.name.format(match[1].replace("_", " ")))


class Metrics:
    """The metrics of a domain, in the order of a table's columns. A key of its own comes before a pattern."""

    def __init__(self, declared: Iterable[Metric]) -> None:
        self.declared = tuple(declared)

    def find(self, key: str) -> Metric:
        """What is known of a key; of one that was not declared, nothing but its name."""
        return self._declared(key)[1] or Metric(key, key.replace("_", " "), None, shown=False)

    def order(self, keys: Sequence[str]) -> list[Metric]:
        """The metrics of these keys as they were declared, others at the end; what one pattern covers stays in its order."""
        places = {key: self._declared(key)[0] for key in keys}
        return [self.find(key) for key in sorted(keys, key=places.__getitem__)]

    def columns(self, keys: Sequence[str]) -> list[Metric]:
        """Those with a column in tables: of single sets all where there are few, none where their average says enough."""
        found = [metric for metric in self.order(keys) if metric.shown]
        single = [metric for metric in found if self.is_single(metric.key)]
        scores = [metric for metric in found if metric.kind == "score" and metric not in single]
        if scores and not 1 < len(single) <= MOST_SETS:
            found = [metric for metric in found if metric not in single]
        return found or self.order(keys)

    def is_single(self, key: str) -> bool:
        """Whether it is of one of several sets, which a pattern stands for."""
        place, metric = self._declared(key)
        return metric is not None and self.declared[place].is_pattern

    def _declared(self, key: str) -> tuple[int, Metric | None]:
        """The place of a key among the declared, and what was declared for it."""
        found = {place: named for place, each in enumerate(self.declared) if (named := each.named(key)) is not None}
        if not found:
            return len(self.declared), None
        place = min(found, key=lambda place: (self.declared[place].is_pattern, place))
        return place, found[place]


#: What every domain has: the shape of [CLS], and the loss at the end of training.
GEOMETRY = (
    Metric("cls_alignment", "[CLS] alignment", False, kind="geometry"),
    Metric("cls_uniformity", "[CLS] uniformity", False, kind="geometry"),
    Metric("cls_effective_rank", "[CLS] effective rank", True, kind="geometry"),
    Metric("cls_mean_cosine", "[CLS] mean cosine", False, kind="geometry", shown=False),
)
LOSS = Metric("loss", "final loss", False, kind="training")
