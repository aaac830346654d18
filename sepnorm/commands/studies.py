"""``sepnorm reproduce`` and ``sepnorm study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Changes, DryRun, Launcher, Quiet, RunDevice
from sepnorm.report.terminal import say

Scale = Annotated[str, typer.Option(help="demo (packaged data, minutes), small (hours) or paper (a cluster).")]
Copies = Annotated[
    list[str] | None, typer.Option("--data", help="A copy of some data, as cifar10=PATH; repeat for more.")
]
Seeds = Annotated[int | None, typer.Option(help="How many seeds, instead of the study's.", min=1, max=10_000)]
StudyFolder = Annotated[Path | None, typer.Option(help="Folder for runs and pages: by default runs/reproduce-SCALE.")]


def reproduce(
    name: Annotated[str, typer.Argument(help="table1 to table4, figure2 to figure6")],
    scale: Scale = "demo",
    data: Copies = None,
    seeds: Seeds = None,
    changes: Changes = None,
    device: RunDevice = None,
    launcher: Launcher = "local",
    dry_run: DryRun = False,
    out: StudyFolder = None,
    quiet: Quiet = False,
) -> None:
    """A table or figure of the paper, at a scale that this machine can bear, with the published figures beside ours."""
    _study(name, False, scale, data or [], seeds, changes or [], device, launcher, dry_run, out, quiet)


def study(
    name: Annotated[
        str,
        typer.Argument(
            help="seeds, sites, batch-size, momentum, num-cls, rms, probe, pooling, whitening or calibration",
        ),
    ],
    scale: Scale = "demo",
    data: Copies = None,
    seeds: Seeds = None,
    changes: Changes = None,
    device: RunDevice = None,
    launcher: Launcher = "local",
    dry_run: DryRun = False,
    out: StudyFolder = None,
    quiet: Quiet = False,
) -> None:
    """What the paper did not study: a table and a page for one choice that users have."""
    _study(name, True, scale, data or [], seeds, changes or [], device, launcher, dry_run, out, quiet)


def _study(
    name: str,
    ours: bool,
    scale: str,
    data: list[str],
    seeds: int | None,
    changes: list[str],
    device: str | None,
    launcher: str,
    dry_run: bool,
    out: Path | None,
    quiet: bool,
) -> None:
    from sepnorm.domains.planning import refuse_beside
    from sepnorm.experiment.launcher_settings import parse_launcher
    from sepnorm.studies.plan import check_parts, find_study, parse_copies, parts_of
    from sepnorm.training.configs import parse_changes

    parse_launcher(launcher)
    found, given = find_study(name, ours), parse_changes(changes)
    if device is not None:
        refuse_beside(changes, {"device": "--device says it"})
        given["device"] = device
    parts = parts_of(found, scale, parse_copies(data), seeds)
    check_parts(parts, given)
    folder = out or Path("runs") / f"reproduce-{scale}"
    if dry_run:
        from sepnorm.report.tables import markdown
        from sepnorm.studies.estimate import estimate

        say(markdown(*estimate(parts, given, folder)))
        return
    from sepnorm.report.progress import training_progress
    from sepnorm.studies.running import run_study

    with training_progress(quiet) as watch:
        page = run_study(name, found, parts, given, folder, launcher, watch)
    if not quiet:
        say((folder / f"{name}.md").read_text(encoding="utf-8"))
    say(f"Report: {page}")
