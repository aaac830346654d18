"""Arms × seeds: every arm with the same seeds, compared with the baseline seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sepnorm._version import __version__
from sepnorm.errors import SepNormError
from sepnorm.experiment.intervals import Difference, Interval, difference, interval
from sepnorm.experiment.launchers import Job, run_jobs
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.experiment.runs import Recipe
from sepnorm.experiment.slugs import slug
from sepnorm.files import intact, read_json
from sepnorm.training.configs import RunConfig
from sepnorm.training.trainer import Report


@dataclass(eq=False)
class Arm:
    """One setting with its finished seeds: metrics and losses by seed, and the folder of each."""

    name: str
    config: RunConfig
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    losses: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    folders: dict[int, Path] = field(default_factory=dict)

    def values(self, metric: str) -> dict[int, float]:
        return {seed: found[metric] for seed, found in self.metrics.items() if metric in found}

    def interval(self, metric: str) -> Interval | None:
        values = list(self.values(metric).values())
        return interval(values) if values else None


@dataclass(eq=False)
class Comparison:
    """The arms of an experiment, the first being the baseline, and what is known of the metrics that they report."""

    arms: list[Arm]
    declared: Metrics

    @property
    def keys(self) -> list[str]:
        """Of all metrics, in the order in which runs report them."""
        return list(dict.fromkeys(name for arm in self.arms for found in arm.metrics.values() for name in found))

    @property
    def columns(self) -> list[Metric]:
        """The metrics that tables show."""
        return self.declared.columns(self.keys)

    @property
    def leading(self) -> list[Metric]:
        """What arms are told apart by: the primary metric; without one the first score, and without any the geometry."""
        found = self.declared.order(self.keys)
        primary = [metric for metric in found if metric.primary]
        scores = [metric for metric in self.columns if metric.kind == "score"]
        geometry = [metric for metric in self.columns if metric.kind == "geometry"]
        return (primary or scores)[:1] or geometry or found[:1]

    def difference(self, arm: Arm, metric: Metric, to: Arm | None = None) -> Difference | None:
        """Paired by seed, to the baseline or to another arm; None where that says nothing."""
        baseline = to or self.arms[0]
        if not comparable(arm, baseline, metric):
            return None
        return difference(arm.values(metric.key), baseline.values(metric.key), metric.higher_is_better)

    def ranked(self) -> list[Arm]:
        """The arms beside the baseline, the best by the leading metric first; one that was not measured comes last."""
        leading = self.leading[:1]

        def place(arm: Arm) -> float:
            found = arm.interval(leading[0].key) if leading else None
            if found is None or math.isnan(found.mean):
                return math.inf
            return found.mean if leading[0].higher_is_better is False else -found.mean

        return sorted(self.arms[1:], key=place)

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "baseline": self.arms[0].name,
            "arms": [self._arm(arm) for arm in self.arms],
        }

    def _arm(self, arm: Arm) -> dict[str, Any]:
        summary: dict[str, Any] = {}
        for key in self.keys:
            if (found := arm.interval(key)) is None:
                continue
            summary[key] = {"mean": found.mean, "half_width_95": found.half, "seeds": found.count}
            gap = None if arm is self.arms[0] else self.difference(arm, self.declared.find(key))
            if gap is not None:
                summary[key]["difference"] = {"mean": gap.mean, "half_width_95": gap.half, "verdict": gap.verdict}
        return {"name": arm.name, "config": arm.config.model_dump(), "metrics": summary, "seeds": arm.metrics}


def comparable(arm: Arm, other: Arm, metric: Metric) -> bool:
    """Whether a metric means the same for both: a loss with another uniformity term in it does not."""
    terms = [
        (each.uniformity_weight, each.uniformity_form, each.uniformity_on, each.uniformity_within)
        for each in (arm.config, other.config)
    ]
    return metric.kind != "training" or terms[0] == terms[1] or not (terms[0][0] or terms[1][0])


def compare(
    recipe: Callable[[Any], Recipe],
    metrics: Metrics,
    base: RunConfig,
    configs: Sequence[RunConfig],
    seeds: Sequence[int],
    folder: Path,
    launcher: str = "local",
    start: Callable[[str, int], Report | None] | None = None,
) -> Comparison:
    """Runs every config with every seed, or takes what is finished; the first config is the baseline.

    ``recipe(base)`` reads the data and runs configs; see ``launchers.run_jobs`` for where and how many at a time.
    ``start(arm, seed)`` gives what is called while that run trains.
    """
    names = [config.arm for config in configs]
    if len(set(names)) < len(names):
        raise SepNormError(f"arms must differ, found {', '.join(names)}.")
    arms = [Arm(config.arm, config) for config in configs]
    jobs = []
    for seed in seeds:  # seed by seed, so that an interrupted comparison has whole pairs
        for arm in arms:
            arm.folders[seed] = folder / "runs" / f"{slug(arm.name)}-seed{seed}"
            jobs.append(Job(recipe, base, arm.config.changed({"seed": seed}), arm.folders[seed]))
    run_jobs(jobs, launcher, start)
    for arm in arms:
        for seed, run in arm.folders.items():
            arm.metrics[seed] = read_json(run / "metrics.json")
            with intact(run / "losses.json"):
                arm.losses[seed] = [(int(step), float(loss)) for step, loss in read_json(run / "losses.json")]
    return Comparison(arms, metrics)
