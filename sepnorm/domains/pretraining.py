"""``sepnorm pretrain``: one run, from options to a model in a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepnorm.domains import Domain, Look, open_domain
from sepnorm.domains.planning import config_of, default_folder, given_settings
from sepnorm.errors import InterruptedRunError, SepNormError
from sepnorm.experiment.slugs import slug
from sepnorm.files import locked, make_folder, require_writable
from sepnorm.training.configs import RunConfig

if TYPE_CHECKING:
    from sepnorm.training.trainer import Report


@dataclass(eq=False)
class Run:
    """A finished run.

    Args:
        domain: name of the domain.
        folder: the run's folder.
        config: its config.
        metrics: its metrics by name.
        before: whether it was finished before this call.
    """

    domain: str
    folder: Path
    config: RunConfig
    metrics: dict[str, float]
    before: bool

    @property
    def model(self) -> Path:
        """Folder of the trained model."""
        return self.folder / "model"

    def as_dict(self) -> dict[str, Any]:
        """The run as a dictionary for JSON.

        Returns:
            Folder, model, config and metrics.
        """
        return {
            "folder": str(self.folder),
            "model": str(self.model),
            "config": self.config.model_dump(),
            "metrics": self.metrics,
        }

    def next_commands(self) -> list[str]:
        """Suggests commands to run next.

        Returns:
            Command lines.
        """
        return [f"sepnorm {line}" for line in open_domain(self.domain).next_commands(self.folder, self.config)]


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run that is checked and not begun."""

    domain: Domain
    config: RunConfig
    folder: Path
    look: Look | None  # None if the folder holds a finished run

    @property
    def line(self) -> str:
        """The run in one line."""
        return "" if self.look is None else f"{self.look.line(self.config)} Norm: {self.config.arm}."


def plan_run(
    domain: str,
    preset: str | None,
    given: Mapping[str, Any],
    changes: Sequence[str] = (),
    folder: Path | None = None,
    file: Path | None = None,
) -> PlannedRun:
    """Plans a run: config and folder. Refuses what cannot work before torch is imported.

    ``given`` are settings from options, ``changes`` from ``key=value``; ``file`` is a run's ``config.json`` instead of
    a preset.
    """
    known = open_domain(domain)
    settings = given_settings(known, given, changes)
    config = config_of(known, preset, settings if file is not None else {"norm": "bn+ln"} | settings, file)
    if folder is None:
        name = default_folder("pretrain", known, preset, settings, config)
        folder = Path("runs") / f"{name}-{slug(config.arm)}-seed{config.seed}"
    require_writable(folder)
    return PlannedRun(known, config, folder, None if (folder / "metrics.json").is_file() else known.look(config))


def pretrain(
    domain: str,
    preset: str | None,
    given: Mapping[str, Any],
    changes: Sequence[str] = (),
    folder: Path | None = None,
    resume: bool = False,
    start: Callable[[str, int], Report | None] | None = None,
) -> Run | None:
    """Does one run: trains a model, evaluates it and saves it. A finished run is only read.

    Args:
        domain: ``images``, ``text``, ``molecules`` or another installed domain.
        preset: name of a preset; None for ``demo``.
        given: settings by name, such as ``{"norm": "bn+ln", "seed": 0}``.
        changes: further settings as ``key=value``.
        folder: the run's folder; default one below ``runs``.
        resume: continue an unfinished run in the folder; else it is an error.
        start: ``start(arm, seed)`` returns a function to call during training, or None.

    Returns:
        The run. With several processes (torchrun, accelerate) only rank 0 returns it, others None.

    Raises:
        SepNormError: if a setting or the data cannot be used, or the folder holds another or an unfinished run.
    """
    return perform_run(plan_run(domain, preset, given, changes, folder), resume, start)


def perform_run(
    planned: PlannedRun, resume: bool = False, start: Callable[[str, int], Report | None] | None = None
) -> Run | None:
    """Does a planned run, unless it is finished."""
    from sepnorm.distributed import rank
    from sepnorm.experiment.runs import finished, perform
    from sepnorm.training.devices import check_device
    from sepnorm.training.sharding import check_sharding

    config, folder = planned.config, planned.folder
    check_device(config.device, config.precision)
    check_sharding(config)
    before = finished(config, folder)
    if not before:
        begun = (folder / "config.json").is_file()
        if begun and not resume and rank() == 0:  # on other ranks, rank 0 may have begun it already
            raise SepNormError(
                f"{folder} holds an unfinished run: add --resume to continue it, or choose another folder with --out."
            )
        planned.domain.check([config])
        recipe = planned.domain.recipe(config)
        make_folder(folder)
        report = start(config.arm, config.seed) if start is not None and rank() == 0 else None
        try:
            perform(recipe, config, folder, report)
        except InterruptedRunError as error:
            raise InterruptedRunError(error.what, "--resume makes the same command go on from there") from None
        except SepNormError:
            if rank() == 0 and not begun:
                with suppress(SepNormError), locked(folder):  # unless another process has begun it meanwhile
                    _clear_unbegun(folder)
            raise
    if rank():
        return None
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return Run(planned.domain.name, folder, config, metrics, before)


def _clear_unbegun(folder: Path) -> None:
    """Removes the files of a run that has no checkpoint, so that there is nothing to resume."""
    from sepnorm.training.checkpoints import last_checkpoint

    if last_checkpoint(folder / "checkpoints") is None:
        for name in ("config.json", "environment.json"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
