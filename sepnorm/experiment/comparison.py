"""Arms x seeds: every arm has the same seeds and is compared with the baseline seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sepnorm._version import __version__
from sepnorm.experiment.decisions import Decision, decide, default_margin
from sepnorm.experiment.intervals import Difference, Interval, difference, interval
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.experiment.sequential import FIRST
from sepnorm.training.configs import ArmConfig


@dataclass(eq=False)
class Arm:
    """One arm with its finished runs: metrics, losses and folder by seed."""

    name: str
    config: ArmConfig
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    losses: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    folders: dict[int, Path] = field(default_factory=dict)

    def values(self, metric: str) -> dict[int, float]:
        return {seed: found[metric] for seed, found in self.metrics.items() if metric in found}

    def interval(self, metric: str) -> Interval | None:
        """The mean over seeds with a finite value; None if there is none."""
        values = list(finite(self.values(metric)).values())
        return interval(values) if values else None


@dataclass(eq=False)
class Comparison:
    """The arms of an experiment and their metrics; the first arm is the baseline.

    Arms are judged by one metric, the primary one. Differences in other metrics are shown without a verdict.

    Args:
        arms: the arms, baseline first.
        declared: the metrics that runs report.
        margin: largest difference in the primary metric that counts as equal; default 1 % of the baseline's mean.
        most: largest number of seeds, if seeds were added until all arms were decided; None for a fixed number.
        planned: number of seeds, if it was fixed before the first run.
        earlier: numbers of seeds of earlier reports in the same folder, with another number planned.
        failed: arm and seed of runs that failed. These seeds are left out; and arms of which every run failed, or that
            were dropped afterwards.
        changed: what was set anew after an earlier report in the same folder, as ``margin``.
    """

    arms: list[Arm]
    declared: Metrics
    margin: float | None = None
    most: int | None = None
    planned: int | None = None
    earlier: list[int] = field(default_factory=list)
    failed: list[tuple[str, int]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def budget(self) -> int:
        """The largest number of seeds that was planned; of a table of scores, the number that it has."""
        return self.most or self.planned or max(len(arm.metrics) for arm in self.arms)

    @property
    def looks(self) -> list[int]:
        """Numbers of seeds of earlier looks: reports on some of these seeds, after which more were run."""
        return [count for count in self.earlier if count < self.budget]

    @property
    def keys(self) -> list[str]:
        """Keys of all metrics, in the order in which runs report them."""
        return list(dict.fromkeys(name for arm in self.arms for found in arm.metrics.values() for name in found))

    @property
    def columns(self) -> list[Metric]:
        """Metrics that tables show."""
        return self.declared.columns(self.keys)

    @property
    def leading(self) -> list[Metric]:
        """Metrics that distinguish arms: the primary one; else the first score; else the measures of geometry."""
        found = self.declared.order(self.keys)
        primary = [metric for metric in found if metric.primary]
        scores = [metric for metric in self.columns if metric.kind == "score"]
        geometry = [metric for metric in self.columns if metric.kind == "geometry"]
        return (primary or scores)[:1] or geometry or found[:1]

    @property
    def primary(self) -> Metric | None:
        """The metric that arms are judged by; None if no reported metric has a better direction."""
        return next((metric for metric in self.leading if metric.higher_is_better is not None), None)

    @property
    def beside(self) -> Metric | None:
        """The metric shown next to the primary one."""
        wanted = self.primary.beside if self.primary is not None else ""
        return self.declared.find(wanted) if wanted and wanted in self.keys else None

    def lacking(self, metric: Metric) -> list[tuple[str, int]]:
        """Runs without a metric, of seeds that other arms have it for: these seeds are left out.

        Args:
            metric: the metric. A value that is not finite is none, but for the primary metric: there its arm has no
                verdict.

        Returns:
            Arm and seed of each, for the arms that share a seed with the baseline.
        """
        found = {arm.name: arm.values(metric.key) for arm in self.arms}
        if metric != self.primary:
            found = {name: finite(values) for name, values in found.items()}
        baseline = found[self.arms[0].name]
        found = {name: values for name, values in found.items() if values.keys() & baseline.keys()}
        seeds = sorted({seed for values in found.values() for seed in values})
        return [(name, seed) for name, values in found.items() for seed in seeds if seed not in values]

    def judged(self, arm: Arm) -> list[dict[str, float]]:
        """What the runs of an arm measured in declared metrics of which one direction is better, by seed.

        Args:
            arm: the arm.

        Returns:
            These metrics of each run. Others, such as the time of a run, differ between copies of one run as well.
        """
        keys = {key for key in self.keys if self.declared.find(key).higher_is_better is not None}
        runs = [found for _, found in sorted(arm.metrics.items())]
        return [{key: found[key] for key in found.keys() & keys if math.isfinite(found[key])} for found in runs]

    @property
    def copies(self) -> bool:
        """Whether the seeds are most likely copies of one run: in each arm they measured the same, in three or more."""
        runs = [self.judged(arm) for arm in self.arms]
        return all(len(found) >= FIRST and found[0] and found.count(found[0]) == len(found) for found in runs)

    def difference(self, arm: Arm, metric: Metric, to: Arm | None = None) -> Difference | None:
        """The difference of two arms in a metric, paired by seed, with an interval and without a verdict.

        Args:
            arm: the arm.
            metric: the metric.
            to: the other arm; default the baseline.

        Returns:
            The difference ``arm - to`` over the seeds for which both have a finite value; None if there is none, or the
            metric is not comparable.
        """
        baseline = to or self.arms[0]
        if not comparable(arm, baseline, metric):
            return None
        return difference(finite(arm.values(metric.key)), finite(baseline.values(metric.key)), None)

    def margin_to(self) -> float:
        """The margin within which any difference of two arms in the primary metric counts as equal.

        Returns:
            The margin. By default it is 1 % of the baseline's mean; of its first three seeds, if seeds were added one
            by one.
        """
        values = list(self.arms[0].values(self.primary.key).values()) if self.primary is not None else []
        if self.margin is not None or not values:
            return self.margin or 0.0
        return default_margin(values if self.most is None else values[:FIRST])

    def family(self, to: Arm | None = None) -> set[str]:
        """Names of the arms that verdicts against an arm are corrected for: all that were planned, failed ones too.

        Args:
            to: the arm to compare with; default the baseline.

        Returns:
            The names.
        """
        planned = {arm.name for arm in self.arms} | {name for name, _ in self.failed}
        return planned - {self.arms[0].name, (to or self.arms[0]).name}

    def decisions(self, to: Arm | None = None) -> dict[str, Decision]:
        """The verdict on every arm by the primary metric, corrected for the number of arms that were planned.

        Verdicts against another arm than the baseline are a family of their own: the error rates hold for the arms
        against each ``to`` by itself. All are judged by the margin of the baseline. If seeds were added one by one, an
        arm keeps the first verdict that is not ``undecided``.

        Args:
            to: the arm to compare with; default the baseline.

        Returns:
            Decisions by name of the arm. ``to``, the baseline, and arms without finite differences are left out.
        """
        metric, baseline = self.primary, to or self.arms[0]
        if metric is None:
            return {}
        gaps = {
            arm.name: list(paired(arm.values(metric.key), baseline.values(metric.key)).values())
            for arm in self.arms[1:]
            if arm is not baseline
        }
        gaps = {name: found for name, found in gaps.items() if found and all(map(math.isfinite, found))}
        if self.copies:
            gaps = {name: found[:1] for name, found in gaps.items()}  # copies of one run count as one
        better, margin, others = bool(metric.higher_is_better), self.margin_to(), len(self.family(to)) - len(gaps)
        if self.most is None or not gaps:
            return decide(gaps, margin=margin, higher_is_better=better, others=others) if gaps else {}
        found: dict[str, Decision] = {}
        for count in range(1, max(map(len, gaps.values())) + 1):
            now = {name: values[:count] for name, values in gaps.items()}
            judged = decide(now, margin=margin, higher_is_better=better, most=self.most, others=others)
            for name, decision in judged.items():
                if name not in found or found[name].verdict == "undecided":
                    found[name] = decision
        return found

    @property
    def decided(self) -> bool:
        """Whether every arm is better, worse or equal."""
        found = self.decisions()
        return len(found) == len(self.arms) - 1 and all(each.verdict != "undecided" for each in found.values())

    def ranked(self) -> list[Arm]:
        """All arms except the baseline, best mean of the leading metric first; arms without a value come last."""
        leading = self.leading[:1]
        return by_mean(self.arms[1:], leading[0]) if leading else self.arms[1:]

    def as_dict(self) -> dict[str, Any]:
        """The comparison as a dictionary for JSON. Values may be infinite or NaN; write those as null."""
        primary, decisions = self.primary, self.decisions()
        return {
            "version": __version__,
            "baseline": self.arms[0].name,
            "primary": None if primary is None else primary.key,
            "margin": self.margin_to(),
            "given_margin": self.margin,
            "most_seeds": self.most,
            "planned_seeds": self.budget,
            "earlier_looks": self.earlier,
            "changed_after_report": self.changed,
            "failed": [{"arm": name, "seed": seed} for name, seed in self.failed],
            "decisions": {
                name: {
                    "mean": found.mean,
                    "low_95": found.low,
                    "high_95": found.high,
                    "seeds": found.count,
                    "verdict": found.verdict,
                    "more_seeds": found.more_seeds,
                }
                for name, found in decisions.items()
            },
            "arms": [self._arm(arm) for arm in self.arms],
        }

    def _arm(self, arm: Arm) -> dict[str, Any]:
        """One arm. Its difference in the primary metric stands in ``decisions`` alone, with the interval that holds."""
        summary: dict[str, Any] = {}
        for key in self.keys:
            if (found := arm.interval(key)) is None:
                continue
            summary[key] = {"mean": found.mean, "half_width_95": found.half, "seeds": found.count}
            metric = self.declared.find(key)
            gap = None if arm is self.arms[0] or metric == self.primary else self.difference(arm, metric)
            if gap is not None:
                summary[key]["difference"] = {"mean": gap.mean, "half_width_95": gap.half}
        return {"name": arm.name, "config": arm.config.model_dump(), "metrics": summary, "seeds": arm.metrics}


def by_mean(arms: Sequence[Arm], metric: Metric) -> list[Arm]:
    """Arms by mean, best first; arms that lack a finite value of a seed come last."""

    def place(arm: Arm) -> float:
        found = arm.interval(metric.key)
        if found is None or found.count < len(arm.values(metric.key)):
            return math.inf
        return found.mean if metric.higher_is_better is False else -found.mean

    return sorted(arms, key=place)


def finite(values: Mapping[int, float]) -> dict[int, float]:
    """The values that are finite, by seed."""
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def paired(values: Mapping[int, float], baseline: Mapping[int, float]) -> dict[int, float]:
    """Differences by seed, for the seeds that both have, in order."""
    return {seed: values[seed] - baseline[seed] for seed in sorted(values.keys() & baseline.keys())}


def comparable(arm: Arm, other: Arm, metric: Metric) -> bool:
    """Whether a metric means the same for both arms. A loss with another uniformity term in it does not."""
    terms = [
        (each.uniformity_weight, each.uniformity_form, each.uniformity_on, each.uniformity_within)
        for each in (arm.config, other.config)
    ]
    return metric.kind != "training" or terms[0] == terms[1] or not (terms[0][0] or terms[1][0])
