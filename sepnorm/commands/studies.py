"""The verbs ``sepnorm reproduce`` and ``sepnorm study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Changes, DryRun, Launcher, Quiet, RunDevice
from sepnorm.report.terminal import say

Scale = Annotated[str, typer.Option(help="demo (packaged data, minutes), small (hours) or paper (needs a cluster).")]
Copies = Annotated[
    list[str] | None, typer.Option("--data", help="Your copy of a data set, as cifar10=PATH; repeat for more.")
]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds; default the study's own number.", min=1, max=10_000)]
StudyFolder = Annotated[Path | None, typer.Option(help="Folder for runs and pages; default runs/reproduce-SCALE.")]


def reproduce(
    name: Annotated[str, typer.Argument(help="table1 to table4, or figure2 to figure6.")],
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
    """Reproduce a table or figure of the paper.

    The needed models are trained at the scale you choose. You get a page with the published figures beside ours.

    Example: sepnorm reproduce table1 --scale demo
    """
    _study(name, False, scale, data or [], seeds, changes or [], device, launcher, dry_run, out, quiet)


def study(
    name: Annotated[
        str,
        typer.Argument(
            help="seeds, sites, batch-size, momentum, num-cls, rms, mixture, probe, pooling, whitening, calibration "
            "or tuning."
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
    """Run a study of one choice that the paper left open.

    For example, sites compares which norms to replace. You get a table and a page.

    Example: sepnorm study sites --scale demo
    """
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
    from sepnorm.experiment.launcher_settings import parse_launcher, refuse_many_processes
    from sepnorm.studies.parts import check_parts, parse_copies, parts_of
    from sepnorm.studies.plan import find_study
    from sepnorm.training.configs import parse_changes

    refuse_many_processes()
    parse_launcher(launcher)
    found, given = find_study(name, ours), parse_changes(changes)
    if device is not None:
        refuse_beside(changes, {"device": "--device says it"})
        given["device"] = device
    copies = parse_copies(data)
    parts = parts_of(found, scale, copies, seeds)
    check_parts(parts, given)
    own = None
    if found.draw == "tuning":
        from sepnorm.studies.tuning import base_config

        own = base_config(scale, given, copies)
    folder = out or Path("runs") / f"reproduce-{scale}"
    if dry_run:
        from sepnorm.report.tables import markdown
        from sepnorm.studies.estimate import estimate

        if own is None:
            say(markdown(*estimate(parts, given, folder)))
        else:
            from sepnorm.studies.tuning import planned

            say(markdown(*planned(own, seeds)))
        return
    from sepnorm.report.progress import training_progress
    from sepnorm.studies.running import run_study

    with training_progress(quiet) as watch:
        page = run_study(name, found, parts, given, folder, launcher, watch, own, seeds)
    if not quiet:
        say((folder / f"{name}.md").read_text(encoding="utf-8"))
    say(f"Report: {page}")
