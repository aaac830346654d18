"""Arms × seeds: every run in a folder of its own, finished ones not repeated, and the arms compared seed by seed.

A run's folder holds ``config.json``, ``environment.json``, checkpoints while it is under way, and at the end ``losses.json``,
``embeddings.npz``, ``layers.json`` and other arrays where the recipe gives them, the model in ``model/`` and, written last,
``metrics.json``: where that is, the run is finished.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sepnorm._version import __version__
from sepnorm.distributed import rank, world
from sepnorm.errors import OthersDoneError, SepNormError
from sepnorm.experiment.intervals import Difference, Interval, difference, interval
from sepnorm.files import intact, locked, read_json, sync_below, write_arrays, write_text, writing
from sepnorm.surgery.inspection import Inspection
from sepnorm.training.configs import RunConfig
from sepnorm.training.trainer import Report


@dataclass(eq=False)
class Outcome:
    """What a recipe gives for one run; ``save`` writes the model to a folder.

    ``embeddings`` are of test samples, by name: ``cls`` (samples, dim), and if there are some ``mean`` of tokens alike,
    ``labels`` (samples), ``tokens`` (some of all samples, dim). ``names`` are what a reader knows the samples by. ``layers``
    is what ``inspect`` found on test samples, and ``arrays`` are more files of a domain for sections of its own, each by
    its name without ``.npz``.
    """

    metrics: dict[str, float]
    losses: list[tuple[int, float]]
    embeddings: dict[str, Tensor]
    save: Callable[[Path], Any]
    layers: Inspection | None = None
    arrays: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    names: list[str] | None = None


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
        """Paired by seed, to the baseline or to another arm; None where that says nothing."""
        baseline = to or self.arms[0]
        if not comparable(arm, baseline, metric):
            return None
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


def comparable(arm: Arm, other: Arm, metric: str) -> bool:
    """Whether a metric means the same for both: a loss with another uniformity term in it does not."""
    terms = [[value for key, value in a.config if key.startswith("uniformity_")] for a in (arm, other)]
    weights = [a.config.uniformity_weight for a in (arm, other)]
    return metric != "loss" or terms[0] == terms[1] or not any(weights)


def higher_is_better(metric: str) -> bool:
    return not any(word in metric for word in ("uniformity", "alignment", "mean_cosine", "loss", "mae", "rmse"))


def compare(
    recipe: Callable[[Any], Recipe],
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
    from sepnorm.experiment.launchers import Job, run_jobs

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
    return Comparison(arms)


def finished(config: RunConfig, folder: Path) -> bool:
    """Whether a folder holds a finished run of this config; one of another config is refused."""
    if (folder / "config.json").is_file():
        _same_config(config, folder / "config.json")
    if not (folder / "metrics.json").is_file():
        return False
    with intact(folder / "metrics.json"):
        for name, value in read_json(folder / "metrics.json").items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} is {value!r}, which is no number")
    return True


def perform(recipe: Recipe, config: RunConfig, folder: Path, report: Report | None = None) -> None:
    """One run in its folder: nothing if it is finished, from its last checkpoint if it was interrupted.

    Of several processes the first writes, measures and saves; the others help it to train.
    """
    if finished(config, folder):
        return
    if rank():
        with using_threads(config), suppress(OthersDoneError):
            recipe.run(config, folder / "checkpoints", None)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not finished(config, folder):  # by another process, in the meantime
            _run(recipe, config, folder, report)


def _run(recipe: Recipe, config: RunConfig, folder: Path, report: Report | None) -> None:
    _write_json(folder / "config.json", config.model_dump())
    with using_threads(config), writing(folder):
        _write_json(folder / "environment.json", environment())
        outcome = recipe.run(config, folder / "checkpoints", report)
        outcome.save(folder / "model")
        sync_below(folder / "model")  # before the checkpoints go, from which it could be made again
    _write_json(folder / "losses.json", outcome.losses)
    for name, arrays in ({"embeddings": outcome.embeddings} | outcome.arrays).items():
        write_arrays(folder / f"{name}.npz", arrays)
    if outcome.layers is not None:
        _write_json(folder / "layers.json", asdict(outcome.layers))
    if outcome.names is not None:
        _write_json(folder / "names.json", outcome.names)
    _write_json(folder / "metrics.json", outcome.metrics)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


@contextmanager
def using_threads(config: RunConfig) -> Iterator[None]:
    """As many threads as a config asks for, for the time being."""
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads or threads)
    if config.threads:  # accelerate sets the threads of several processes anew where this variable is missing
        os.environ["OMP_NUM_THREADS"] = str(config.threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
        "processes": world(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def slug(name: str) -> str:
    """A name that can be a folder's."""
    return re.sub(r"[^A-Za-z0-9+.@=-]+", "-", name.replace("λ", "lambda"))


def _same_config(config: RunConfig, path: Path) -> None:
    now, fields = json.loads(json.dumps(config.model_dump())), type(config).model_fields.items()
    defaults = json.loads(
        json.dumps({name: each.default for name, each in fields if not each.is_required()}, default=str)
    )
    with intact(path):
        kept = defaults | read_json(path)  # a setting may not have existed when the folder was written
    changed = sorted(key for key in now.keys() | kept.keys() if now.get(key) != kept.get(key))
    if changed:
        raise SepNormError(
            f"{path.parent} holds a run of another config ({changed[0]} was {kept.get(changed[0])!r} and is now "
            f"{now.get(changed[0])!r}): name another folder by --out."
        )


def _write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1))
