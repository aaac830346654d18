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
    """A finished run: its folder, what was used, what came out, and whether it had been finished before."""

    domain: str
    folder: Path
    config: RunConfig
    metrics: dict[str, float]
    before: bool

    @property
    def model(self) -> Path:
        """The folder of the trained model."""
        return self.folder / "model"

    def as_dict(self) -> dict[str, Any]:
        """The same as text and numbers, for JSON."""
        return {
            "folder": str(self.folder),
            "model": str(self.model),
            "config": self.config.model_dump(),
            "metrics": self.metrics,
        }

    def next_commands(self) -> list[str]:
        """What one may want to type now."""
        return [f"sepnorm {line}" for line in open_domain(self.domain).next_commands(self.folder, self.config)]


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run that was looked at and is not begun."""

    domain: Domain
    config: RunConfig
    folder: Path
    look: Look | None  #: None where the folder holds a finished run

    @property
    def line(self) -> str:
        """What is trained on what, in one line."""
        return "" if self.look is None else f"{self.look.line(self.config)} Norm: {self.config.arm}."


def plan_run(
    domain: str,
    preset: str | None,
    given: Mapping[str, Any],
    changes: Sequence[str] = (),
    folder: Path | None = None,
    file: Path | None = None,
) -> PlannedRun:
    """From options to a config and a folder; what cannot work is refused here, before torch is imported.

    ``given`` by options of their own, others as ``key=value``; ``file`` is a run's ``config.json`` instead of a preset.
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
    """One run of a preset with changes: ``given`` by options of their own, others as ``key=value``.

    ``start(arm, seed)`` gives what is called while the run trains. Of several processes that torchrun or accelerate started
    only the first gives the run.
    """
    return perform_run(plan_run(domain, preset, given, changes, folder), resume, start)


def perform_run(
    planned: PlannedRun, resume: bool = False, start: Callable[[str, int], Report | None] | None = None
) -> Run | None:
    """Does a run that was planned, unless it is finished."""
    from sepnorm.distributed import rank
    from sepnorm.experiment.runs import finished, perform
    from sepnorm.training.devices import check_device

    config, folder = planned.config, planned.folder
    check_device(config.device, config.precision)
    before = finished(config, folder)
    if not before:
        begun = (folder / "config.json").is_file()
        if begun and not resume and rank() == 0:  # for another the first may have begun already
            raise SepNormError(
                f"{folder} holds a run that is not finished, and nothing of it is lost: add --resume to go on with it, or name "
                "another folder by --out."
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
                with suppress(SepNormError), locked(folder):  # unless another process has begun it in the meantime
                    _clear_unbegun(folder)
            raise
    if rank():
        return None
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return Run(planned.domain.name, folder, config, metrics, before)


def _clear_unbegun(folder: Path) -> None:
    """Leaves nothing to resume of a run that never came to a checkpoint."""
    from sepnorm.training.trainer import last_checkpoint

    if last_checkpoint(folder / "checkpoints") is None:
        for name in ("config.json", "environment.json"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
