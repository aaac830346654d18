"""``sepnorm compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Changes, Domain, Json, Launcher, MaxSteps, Preset, Quiet, TrainingData
from sepnorm.report.terminal import say


def compare(
    domain: Domain,
    norms: Annotated[str, typer.Option(help="Arms, the baseline first: NORM or NORM@SITES, with commas between.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1, max=10_000)] = 3,
    preset: Preset = "demo",
    data: TrainingData = None,
    lambdas: Annotated[
        str, typer.Option(help="Weights of the uniformity term, with commas between; every arm is run with each.")
    ] = "",
    targets: Annotated[
        str, typer.Option(help="What the uniformity term is on, with commas between: cls, tokens, both.")
    ] = "",
    max_steps: MaxSteps = None,
    changes: Changes = None,
    launcher: Launcher = "local",
    out: Annotated[Path | None, typer.Option(help="Folder for runs, results.json and report.html.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped, as happens anyway.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Shared against separate norms: arms with the same seeds, and one page that shows what they differ in."""
    from sepnorm.domains import open_domain
    from sepnorm.domains.comparison import as_json as as_json_text
    from sepnorm.domains.comparison import as_text, compare_domain, parse_arms
    from sepnorm.report.terminal import training_progress
    from sepnorm.training.configs import parse_changes

    known = open_domain(domain)
    arms = parse_arms(norms or known.arms, lambdas, targets)
    options = {"data": data, "max_steps": max_steps}
    given = parse_changes(changes or []) | {key: value for key, value in options.items() if value is not None}
    folder = out or Path("runs") / f"compare-{domain}-{preset}"
    with training_progress(quiet or as_json) as start:
        comparison, page = compare_domain(known, arms, range(seeds), preset, given, folder, launcher, start)
    if as_json:
        say(as_json_text(comparison))
    elif not quiet:
        say(as_text(comparison))
    say(f"Report: {page}", error=as_json)
