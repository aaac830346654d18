"""``sepnorm pretrain``: one run, from options to a model in a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepnorm.distributed import rank
from sepnorm.domains import open_domain
from sepnorm.errors import InterruptedRunError, SepNormError
from sepnorm.experiment.runs import finished, perform, slug
from sepnorm.files import locked, make_folder
from sepnorm.training.configs import RunConfig, parse_changes
from sepnorm.training.configs import preset as choose
from sepnorm.training.trainer import Report, last_checkpoint


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


def pretrain(
    domain: str,
    preset: str,
    given: dict[str, Any],
    changes: Sequence[str] = (),
    folder: Path | None = None,
    resume: bool = False,
    start: Callable[[str, int], Report | None] | None = None,
) -> Run | None:
    """One run of a preset with changes: ``given`` by options of their own, others as ``key=value``.

    ``start(arm, seed)`` gives what is called while the run trains. Of several processes that torchrun or accelerate started
    only the first gives the run.
    """
    known = open_domain(domain)
    config = choose(known.presets, preset).changed({"norm": "bn+ln"} | parse_changes(changes) | given)
    folder = folder or Path("runs") / f"pretrain-{domain}-{preset}-{slug(config.arm)}-seed{config.seed}"
    before = finished(config, folder)
    if not before:
        begun = (folder / "config.json").is_file()
        if begun and not resume and rank() == 0:  # for another the first may have begun already
            raise SepNormError(
                f"{folder} holds a run that is not finished, and nothing of it is lost: add --resume to go on with it, or name "
                "another folder by --out."
            )
        recipe = known.recipe(config)
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
    return Run(domain, folder, config, metrics, before)


def _clear_unbegun(folder: Path) -> None:
    """Leaves nothing to resume of a run that never came to a checkpoint."""
    if last_checkpoint(folder / "checkpoints") is None:
        for name in ("config.json", "environment.json"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
