"""``sepnorm pretrain``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from sepnorm.commands.options import (
    Changes,
    Column,
    ConfigFile,
    Domain,
    DryRun,
    Json,
    MaxSteps,
    Preset,
    Quiet,
    RunDevice,
    Test,
    TrainingData,
)
from sepnorm.errors import SepNormError
from sepnorm.report.terminal import say


def pretrain(
    domain: Domain,
    norm: Annotated[
        str | None, typer.Option(help="As bn+ln (the default) or bn+ln@final: [CLS] first, then tokens.")
    ] = None,
    sites: Annotated[str | None, typer.Option(help="all, final (the default), or a pattern of paths.")] = None,
    preset: Preset = None,
    data: TrainingData = None,
    column: Column = None,
    test: Test = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order, crops and masks: 0 by default.")] = None,
    max_steps: MaxSteps = None,
    changes: Changes = None,
    config: ConfigFile = None,
    device: RunDevice = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; its model is in model/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that is not finished.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """One run: pretrain a model without labels, measure it, keep it."""
    from sepnorm.domains.pretraining import perform_run, plan_run
    from sepnorm.report.progress import training_progress
    from sepnorm.report.terminal import metric_lines
    from sepnorm.training.notation import parse_arm

    named: dict[str, Any] = parse_arm(norm) if norm is not None else {}
    if sites is not None and named.get("sites", sites) != sites:
        raise SepNormError(
            f"sites are given twice, {named['sites']!r} behind the @ of --norm and {sites!r} by --sites: leave one of them out."
        )
    options: dict[str, Any] = {"sites": sites, "data": data, "column": column, "test": test}
    options |= {"seed": seed, "max_steps": max_steps, "device": device}
    given = named | {key: value for key, value in options.items() if value is not None}
    planned = plan_run(domain, preset, given, changes or [], out, config)
    if dry_run:
        from sepnorm.domains.estimates import estimate_run

        say(estimate_run(planned))
        return
    if planned.line and not quiet and os.environ.get("RANK", "0") == "0":  # of several processes the first says it
        say(planned.line, error=True)
    with training_progress(quiet or as_json) as watch:
        run = perform_run(planned, resume, None if watch is None else watch.start)
    if run is None:  # the first of several processes says the rest
        return
    if as_json:
        say(json.dumps(run.as_dict(), indent=1))
    elif not quiet:
        if run.before:
            say(f"{run.folder} holds this run already, finished:\n")
        say("\n".join(metric_lines(run.metrics)))
        say("\n  ".join(["\nNext:", *run.next_commands()]) + "\n")
    say(f"Model: {run.model}", error=as_json)
