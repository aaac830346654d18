"""One run in a folder of its own: begun, resumed, finished, never repeated.

A run's folder holds ``config.json``, ``environment.json``, checkpoints while it is under way, and at the end ``losses.json``,
``embeddings.npz``, ``layers.json`` and other arrays where the recipe gives them, the model in ``model/`` and, written last,
``metrics.json``: where that is, the run is finished.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sepnorm._version import __version__
from sepnorm.distributed import rank, world
from sepnorm.errors import OthersDoneError, SepNormError
from sepnorm.files import intact, locked, read_json, sync_below, write_arrays, write_text, writing
from sepnorm.surgery.inspection import Inspection
from sepnorm.training.configs import ArmConfig
from sepnorm.training.trainer import Report


@dataclass(eq=False)
class Outcome:
    """What a recipe gives for one run; ``save`` writes the model to a folder.

    ``embeddings`` are of test samples, by name: ``cls`` (samples, dim), and if there are some ``mean`` of tokens alike,
    ``labels`` (samples), ``tokens`` (some of all samples, dim), and ``cls_right`` (samples), whether a probe of [CLS] has each
    right. ``names`` are what a reader knows the samples by. ``layers`` is what ``inspect`` found on test samples, and
    ``arrays`` are more files of a domain for sections of its own, each by its name without ``.npz``.
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


def finished(config: ArmConfig, folder: Path) -> bool:
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


def perform(recipe: Recipe, config: ArmConfig, folder: Path, report: Report | None = None) -> None:
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


def _run(recipe: Recipe, config: ArmConfig, folder: Path, report: Report | None) -> None:
    _write_json(folder / "config.json", config.model_dump())
    with using_threads(config), writing(folder):
        _write_json(folder / "environment.json", environment())
        outcome = recipe.run(config, folder / "checkpoints", report)
        outcome.save(folder / "model")
        sync_below(folder / "model")  # before the checkpoints go, from which it could be made again
    _write_json(folder / "losses.json", outcome.losses)
    for name, arrays in ({"embeddings": outcome.embeddings} | outcome.arrays).items():
        if arrays:
            write_arrays(folder / f"{name}.npz", arrays)
    if outcome.layers is not None:
        _write_json(folder / "layers.json", asdict(outcome.layers))
    if outcome.names is not None:
        _write_json(folder / "names.json", outcome.names)
    _write_json(folder / "metrics.json", outcome.metrics)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


@contextmanager
def using_threads(config: ArmConfig) -> Iterator[None]:
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


def _same_config(config: ArmConfig, path: Path) -> None:
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
