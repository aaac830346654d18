"""Metrics: name and direction of the figures that runs report. They are declared, never guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

#: Largest number of test sets that get a column each, beside their average.
MOST_SETS = 6


@dataclass(frozen=True)
class Metric:
    """One figure that runs report.

    Args:
        key: its name in ``metrics.json``. A ``*`` stands for a part that depends on the data, such as a test set's
            name.
        name: its title in tables; ``{}`` is replaced by the part that ``*`` stands for.
        higher_is_better: whether more is better; None for neither, then differences get no verdict.
        primary: whether arms are judged by it. Of several, the first one that runs report decides.
        kind: ``score`` (quality of embeddings), ``geometry`` (their shape) or ``training`` (how they were made).
        shown: whether it has a column in tables. ``results.json`` contains all metrics.
        beside: key of the metric to show next to it, such as the same score for the mean of tokens.
    """

    key: str
    name: str
    higher_is_better: bool | None
    primary: bool = False
    kind: Literal["score", "geometry", "training"] = "score"
    shown: bool = True
    beside: str = ""

    @property
    def is_pattern(self) -> bool:
        """Whether the key contains ``*`` and so stands for several keys."""
        return "*" in self.key

    def named(self, key: str) -> Metric | None:
        """This metric for a reported key.

        Args:
            key: a key that a run reported.

        Returns:
            The metric with this key and the title filled in; None if the key does not match.
        """
        before, _, after = self.key.partition("*")
        if not self.is_pattern:
            return self if key == self.key else None
        match = re.fullmatch(f"{re.escape(before)}(.+){re.escape(after)}", key)
        return None if match is None else replace(self, key=key, name=self.name.format(match[1].replace("_", " ")))


class Metrics:
    """The metrics of a domain, in the order of table columns. An exact key takes precedence over a pattern.

    Args:
        declared: the metrics.
    """

    def __init__(self, declared: Iterable[Metric]) -> None:
        self.declared = tuple(declared)

    def find(self, key: str) -> Metric:
        """The metric of a key.

        Args:
            key: a key that a run reported.

        Returns:
            The declared metric; for an undeclared key one with its name only, no direction, and no column.
        """
        return self._declared(key)[1] or Metric(key, key.replace("_", " "), None, shown=False)

    def order(self, keys: Sequence[str]) -> list[Metric]:
        """The metrics of keys in the order of declaration; undeclared ones come last.

        Args:
            keys: keys that runs reported. Keys of one pattern stay in this order.

        Returns:
            The metrics.
        """
        places = {key: self._declared(key)[0] for key in keys}
        return [self.find(key) for key in sorted(keys, key=places.__getitem__)]

    def columns(self, keys: Sequence[str]) -> list[Metric]:
        """The metrics with a column in tables. Single test sets get columns only if they are few.

        Args:
            keys: keys that runs reported.

        Returns:
            The metrics.
        """
        found = [metric for metric in self.order(keys) if metric.shown]
        single = [metric for metric in found if self.is_single(metric.key)]
        scores = [metric for metric in found if metric.kind == "score" and metric not in single]
        if scores and not 1 < len(single) <= MOST_SETS:
            found = [metric for metric in found if metric not in single]
        return found or self.order(keys)

    def missing(self, keys: Iterable[str]) -> Metric | None:
        """A declared metric that was not reported. Of several primary metrics one is enough.

        Args:
            keys: keys that runs reported.

        Returns:
            The first such metric; None if all are there.
        """
        reported = list(keys)
        absent = [each for each in self.declared if not any(each.named(key) for key in reported)]
        judged = any(each.primary and each not in absent for each in self.declared)
        return next((each for each in absent if not (each.primary and judged)), None)

    def declares(self, key: str) -> bool:
        """Whether a key is that of a declared metric.

        Args:
            key: a key that a run reported.

        Returns:
            False for a key that no metric, and no pattern of one, has.
        """
        return self._declared(key)[1] is not None

    def is_single(self, key: str) -> bool:
        """Whether a key belongs to one of several test sets, which a pattern stands for.

        Args:
            key: a key that a run reported.

        Returns:
            True for a key of a pattern.
        """
        place, metric = self._declared(key)
        return metric is not None and self.declared[place].is_pattern

    def _declared(self, key: str) -> tuple[int, Metric | None]:
        """Position of a key among the declared metrics, and its metric."""
        found = {place: named for place, each in enumerate(self.declared) if (named := each.named(key)) is not None}
        if not found:
            return len(self.declared), None
        place = min(found, key=lambda place: (self.declared[place].is_pattern, place))
        return place, found[place]


#: Metrics of every domain: the geometry of [CLS], and the loss at the end of training.
GEOMETRY = (
    Metric("cls_alignment", "[CLS] alignment", False, kind="geometry"),
    Metric("cls_uniformity", "[CLS] uniformity", False, kind="geometry"),
    Metric("cls_effective_rank", "[CLS] effective rank", True, kind="geometry"),
    Metric("cls_mean_cosine", "[CLS] mean cosine", False, kind="geometry", shown=False),
)
#: Of these, what stands in a short table.
SHORT = ("cls_uniformity", "cls_effective_rank")
LOSS = Metric("loss", "final loss", False, kind="training")
