"""One run in its own folder: begun, resumed, finished, never repeated.

The folder holds ``config.json``, ``environment.json`` and, during the run, checkpoints. At the end it also holds
``losses.json``, the model in ``model/``, and what the recipe returns of ``embeddings.npz``, ``layers.json`` and other
arrays. ``metrics.json`` is written last: a folder with it holds a finished run.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sepnorm._version import __version__
from sepnorm.distributed import rank, world
from sepnorm.errors import OthersDoneError, RunFailedError, SepNormError, one_line
from sepnorm.files import intact, locked, read_json, sync_below, write_arrays, write_text, writing
from sepnorm.surgery.inspection import Inspection
from sepnorm.training.configs import ArmConfig
from sepnorm.training.trainer import Report


@dataclass(eq=False)
class Outcome:
    """What a recipe returns for one run; ``save`` writes the model to a folder.

    ``embeddings`` are of test samples: ``cls`` (samples, dim) and optionally ``mean`` of tokens (samples, dim),
    ``labels`` (samples,), ``tokens`` (a sample of all tokens, dim), and ``cls_right`` (samples,), whether a probe of
    [CLS] is right. ``names`` are shown for the samples. ``layers`` is the result of ``inspect`` on test samples.
    ``arrays`` are further files for the domain's sections, by name without ``.npz``. ``resumed_from`` is the step of the
    checkpoint that training resumed from, 0 if it began anew.
    """

    metrics: dict[str, float]
    losses: list[tuple[int, float]]
    embeddings: dict[str, Tensor]
    save: Callable[[Path], Any]
    layers: Inspection | None = None
    arrays: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    names: list[str] | None = None
    resumed_from: int = 0


class Recipe(Protocol):
    """Runs configs of one domain on data that is already read."""

    def run(self, config: Any, folder: Path, report: Report | None) -> Outcome: ...


def finished(config: ArmConfig, folder: Path) -> bool:
    """Whether a folder holds a finished run of this config. A run of another config there is an error."""
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
    """Does one run in its folder: nothing if it is finished, and from its last checkpoint if it was interrupted.

    Rank 0 writes, measures and saves; other processes only train.
    """
    if finished(config, folder):
        return
    if rank():
        with using_threads(config), suppress(OthersDoneError):
            recipe.run(config, folder / "checkpoints", None)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not finished(config, folder):  # another process may have finished it meanwhile
            _run(recipe, config, folder, report)


def _run(recipe: Recipe, config: ArmConfig, folder: Path, report: Report | None) -> None:
    _write_json(folder / "config.json", config.model_dump())
    with using_threads(config), writing(folder):
        surroundings = environment()
        _write_json(folder / "environment.json", surroundings)
        outcome = recipe.run(config, folder / "checkpoints", report)
        outcome.save(folder / "model")
        sync_below(folder / "model")  # before the checkpoints are deleted, from which it could be restored
    _write_json(folder / "environment.json", surroundings | {"resumed_from": outcome.resumed_from})
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


def record_failure(config: ArmConfig, folder: Path, error: BaseException) -> RunFailedError:
    """Writes the traceback to ``error.txt`` in the run's folder, and returns an error that names it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "error.txt", "".join(traceback.format_exception(error)))
    return RunFailedError(
        f"the run of {config.arm}, seed {config.seed} raised {type(error).__name__}: {one_line(error)} ({folder / 'error.txt'})."
    )


@contextmanager
def using_threads(config: ArmConfig) -> Iterator[None]:
    """Uses the config's number of threads within the context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads or threads)
    if config.threads:  # else accelerate sets the threads of several processes itself
        os.environ["OMP_NUM_THREADS"] = str(config.threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def environment() -> dict[str, Any]:
    """Versions and hardware that a result may depend on."""
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
        kept = defaults | read_json(path)  # a setting may be newer than the folder
    keys = (now.keys() | kept.keys()) - config.incidental
    changed = sorted(key for key in keys if now.get(key) != kept.get(key))
    if changed:
        raise SepNormError(
            f"{path.parent} holds a run of another config ({changed[0]} was {kept.get(changed[0])!r} and is now "
            f"{now.get(changed[0])!r}): name another folder by --out."
        )


def _write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1))
