"""``sepnorm pretrain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sepnorm.commands.options import Changes, Domain, Json, MaxSteps, Preset, Quiet, TrainingData
from sepnorm.report.terminal import say


def pretrain(
    domain: Domain,
    norm: Annotated[
        str | None, typer.Option(help="As bn+ln (the default) or bn+ln@final: [CLS] first, then tokens.")
    ] = None,
    sites: Annotated[str | None, typer.Option(help="all, final (the default), or a pattern of paths.")] = None,
    preset: Preset = "demo",
    data: TrainingData = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order, crops and masks: 0 by default.")] = None,
    max_steps: MaxSteps = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; its model is in model/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that is not finished.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """One run: pretrain a model without labels, measure it, keep it."""
    from sepnorm.domains.pretraining import pretrain as train
    from sepnorm.report.terminal import metric_lines, training_progress
    from sepnorm.training.configs import parse_arm

    options = {"sites": sites, "data": data, "seed": seed, "max_steps": max_steps}
    given: dict[str, Any] = parse_arm(norm) if norm is not None else {}
    given |= {key: value for key, value in options.items() if value is not None}
    with training_progress(quiet or as_json) as start:
        run = train(domain, preset, given, changes or [], out, resume, start)
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
