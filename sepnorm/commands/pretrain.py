"""The verb ``sepnorm pretrain``."""

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
        str | None,
        typer.Option(help="Norms, [CLS] first, then tokens: bn+ln (the default), or with sites bn+ln@all."),
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option(help="Norms to replace: final (the last one, the default), all, or a path pattern."),
    ] = None,
    preset: Preset = None,
    data: TrainingData = None,
    column: Column = None,
    test: Test = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of weights, order of samples, crops and masks; default 0.")
    ] = None,
    max_steps: MaxSteps = None,
    changes: Changes = None,
    config: ConfigFile = None,
    device: RunDevice = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run, with the model in model/; default runs/pretrain-..."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an unfinished run in the same folder from its last checkpoint.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one model with one norm, evaluate it and save it.

    You get a folder with the model, its metrics, its losses and its config.json. To compare norms, use compare.

    Example: sepnorm pretrain images --norm bn+ln --data my-images
    """
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
    if planned.line and not quiet and os.environ.get("RANK", "0") == "0":  # only rank 0 prints
        say(planned.line, error=True)
    with training_progress(quiet or as_json) as watch:
        run = perform_run(planned, resume, None if watch is None else watch.start)
    if run is None:  # only rank 0 prints the results
        return
    if as_json:
        say(json.dumps(run.as_dict(), indent=1))
    elif not quiet:
        if run.before:
            say(f"{run.folder} holds this run already, finished:\n")
        say("\n".join(metric_lines(run.metrics)))
        say("\n  ".join(["\nNext:", *run.next_commands()]) + "\n")
    say(f"Model: {run.model}", error=as_json)
