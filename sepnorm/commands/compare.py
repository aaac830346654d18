"""``sepnorm compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import (
    Changes,
    Column,
    ConfigFile,
    Domain,
    DryRun,
    Json,
    Launcher,
    MaxSteps,
    Preset,
    Quiet,
    RunDevice,
    Test,
    TrainingData,
)
from sepnorm.report.terminal import say

#: Settings that arms and seeds have each for itself.
_EACH = {"norm": "arms are named by --norms", "seed": "seeds are counted by --seeds"}


def compare(
    domain: Domain,
    norms: Annotated[str, typer.Option(help="Arms, the baseline first: NORM or NORM@SITES, with commas between.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1, max=10_000)] = 3,
    preset: Preset = None,
    data: TrainingData = None,
    column: Column = None,
    test: Test = None,
    lambdas: Annotated[
        str, typer.Option(help="Weights of the uniformity term, with commas between; every arm is run with each.")
    ] = "",
    targets: Annotated[
        str, typer.Option(help="What the uniformity term is on, with commas between: cls, tokens, both.")
    ] = "",
    max_steps: MaxSteps = None,
    changes: Changes = None,
    config: ConfigFile = None,
    device: RunDevice = None,
    launcher: Launcher = "local",
    out: Annotated[Path | None, typer.Option(help="Folder for runs, results.json and report.html.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped, as happens anyway.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Shared against separate norms: arms with the same seeds, and one page that shows what they differ in."""
    from sepnorm.domains import open_domain
    from sepnorm.domains.comparison import as_json as as_json_text
    from sepnorm.domains.comparison import as_text, compare_domain, parse_arms, plan
    from sepnorm.domains.planning import config_of, default_folder, given_settings, refuse_beside
    from sepnorm.experiment.launcher_settings import parse_launcher
    from sepnorm.report.terminal import training_progress

    parse_launcher(launcher)
    known = open_domain(domain)
    arms = parse_arms(norms or known.arms, lambdas, targets)
    swept = dict.fromkeys(("uniformity_weight", "uniformity_on"), "--lambdas and --targets say it for every arm")
    refuse_beside(changes or [], _EACH | (swept if lambdas else {}))
    options = {"data": data, "column": column, "test": test, "max_steps": max_steps, "device": device}
    given = given_settings(known, options, changes or [])
    base = config_of(known, preset, given, config)
    planned = plan(known, arms, base)
    folder = out or Path("runs") / default_folder("compare", known, preset, given, base)
    if dry_run:
        from sepnorm.domains.estimates import estimate_comparison

        say(estimate_comparison(planned, range(seeds), folder))
        return
    if not quiet:
        say(planned.line, error=True)
    with training_progress(quiet or as_json) as start:
        comparison, page = compare_domain(planned, range(seeds), folder, launcher, start)
    if as_json:
        say(as_json_text(comparison))
    elif not quiet:
        say(as_text(comparison))
    say(f"Report: {page}", error=as_json)
