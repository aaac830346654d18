"""Arms × seeds: every run in a folder of its own, finished ones not repeated, and the arms compared seed by seed.

A run's folder holds ``config.json``, ``environment.json``, checkpoints while it is under way, and at the end ``losses.json``,
``embeddings.npz``, the model in ``model/`` and, written last, ``metrics.json``: where that is, the run is finished.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sepnorm._version import __version__
from sepnorm.configs import RunConfig
from sepnorm.errors import SepNormError
from sepnorm.files import write_whole
from sepnorm.paired import Difference, Interval, difference, interval
from sepnorm.training import Report


@dataclass(eq=False)
class Outcome:
    """What a recipe gives for one run; ``save`` writes the model to a folder."""

    metrics: dict[str, float]
    losses: list[tuple[int, float]]
    embeddings: dict[str, Tensor]
    save: Callable[[Path], Any]


class Recipe(Protocol):
    """A domain: how one run of a config is done."""

    def run(self, config: Any, folder: Path, report: Report | None) -> Outcome: ...


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
    """The arms of an experiment, the first being the baseline."""

    arms: list[Arm]

    @property
    def metrics(self) -> list[str]:
        """In the order in which runs report them."""
        return list(dict.fromkeys(name for arm in self.arms for found in arm.metrics.values() for name in found))

    def difference(self, arm: Arm, metric: str, to: Arm | None = None) -> Difference | None:
        """Paired by seed, to the baseline or to another arm."""
        baseline = to or self.arms[0]
        return difference(arm.values(metric), baseline.values(metric), higher_is_better(metric))

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "baseline": self.arms[0].name,
            "arms": [self._arm(arm) for arm in self.arms],
        }

    def _arm(self, arm: Arm) -> dict[str, Any]:
        summary: dict[str, Any] = {}
        for metric in self.metrics:
            if (found := arm.interval(metric)) is None:
                continue
            summary[metric] = {"mean": found.mean, "half_width_95": found.half, "seeds": found.count}
            gap = None if arm is self.arms[0] else self.difference(arm, metric)
            if gap is not None:
                summary[metric]["difference"] = {"mean": gap.mean, "half_width_95": gap.half, "verdict": gap.verdict}
        return {"name": arm.name, "config": arm.config.model_dump(), "metrics": summary, "seeds": arm.metrics}


def higher_is_better(metric: str) -> bool:
    return not any(word in metric for word in ("uniformity", "mean_cosine", "loss", "mae", "rmse"))


def compare(
    recipe: Recipe,
    configs: Sequence[RunConfig],
    seeds: Sequence[int],
    folder: Path,
    report: Callable[[str, int], Report | None] | None = None,
) -> Comparison:
    """Runs every config with every seed, or takes what is finished, one after another; the first config is the baseline.

    ``report(arm, seed)`` gives what is called while that run trains.
    """
    names = [config.arm for config in configs]
    if len(set(names)) < len(names):
        raise SepNormError(f"arms must differ, found {', '.join(names)}.")
    arms = [Arm(config.arm, config) for config in configs]
    for seed in seeds:  # seed by seed, so that an interrupted comparison has whole pairs
        for arm in arms:
            run = folder / "runs" / f"{slug(arm.name)}-seed{seed}"
            config = arm.config.changed({"seed": seed})
            perform(recipe, config, run, report(arm.name, seed) if report is not None else None)
            arm.metrics[seed] = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
            arm.losses[seed] = [tuple(pair) for pair in json.loads((run / "losses.json").read_text(encoding="utf-8"))]
            arm.folders[seed] = run
    return Comparison(arms)


def perform(recipe: Recipe, config: RunConfig, folder: Path, report: Report | None = None) -> None:
    """One run in its folder: nothing if it is finished, from its last checkpoint if it was interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    _same_config(config, folder / "config.json")
    if (folder / "metrics.json").is_file():
        return
    _write_json(folder / "environment.json", environment())
    outcome = recipe.run(config, folder / "checkpoints", report)
    outcome.save(folder / "model")
    _write_json(folder / "losses.json", outcome.losses)
    write_whole(folder / "embeddings.npz", lambda path: _write_arrays(path, outcome.embeddings))
    _write_json(folder / "metrics.json", outcome.metrics)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def environment() -> dict[str, Any]:
    """What a result may depend on beside its config."""
    import transformers

    return {
        "sepnorm": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def slug(name: str) -> str:
    """A name that can be a folder's."""
    return re.sub(r"[^A-Za-z0-9+.@=-]+", "-", name.replace("λ", "lambda"))


def _same_config(config: RunConfig, path: Path) -> None:
    if not path.is_file():
        _write_json(path, config.model_dump())
        return
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SepNormError(f"{path} is damaged: {error}. Remove the folder {path.parent} to run it again.") from error
    now = json.loads(json.dumps(config.model_dump()))
    changed = sorted(key for key in now.keys() | kept.keys() if now.get(key) != kept.get(key))
    if changed:
        raise SepNormError(
            f"{path.parent} holds a run of another config ({changed[0]} was {kept.get(changed[0])!r} and is now "
            f"{now.get(changed[0])!r}): name another folder by --out."
        )


def _write_json(path: Path, value: Any) -> None:
    write_whole(path, lambda scratch: Path(scratch).write_text(json.dumps(value, indent=1), encoding="utf-8"))


def _write_arrays(path: str, arrays: dict[str, Tensor]) -> None:
    import numpy

    with open(path, "wb") as file:
        numpy.savez(file, allow_pickle=False, **{name: rows.numpy() for name, rows in arrays.items()})
