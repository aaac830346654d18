"""The verb ``sepnorm compare``."""

from __future__ import annotations

import math
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from sepnorm.commands.options import (
    Changes,
    Column,
    ConfigFile,
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
from sepnorm.errors import SepNormError
from sepnorm.report.terminal import say

if TYPE_CHECKING:
    from sepnorm.experiment.comparison import Comparison

#: Settings that ``--set`` may not change, since each arm or seed has its own value.
_EACH = {"norm": "arms are named by --norms", "seed": "seeds are counted by --seeds"}
#: Options that ``compare scores`` reads.
_OF_SCORES = ("domain", "table", "higher", "lower", "baseline", "margin", "most", "out", "as_json", "quiet")


def compare(
    context: typer.Context,
    domain: Annotated[
        str, typer.Argument(help="images, text, molecules or another installed domain; or scores, with a TABLE.")
    ],
    table: Annotated[
        Path | None,
        typer.Argument(
            help="With scores: table with columns arm and seed, and either metric and value or a column for each metric."
        ),
    ] = None,
    norms: Annotated[
        str, typer.Option(help="Arms, separated by commas, baseline first: NORM or NORM@SITES, as ln,bn+ln@final.")
    ] = "",
    seeds: Annotated[
        str, typer.Option(help="Number of seeds, counted from 0; or auto: add seeds until every arm has a verdict.")
    ] = "6",
    most: Annotated[
        int,
        typer.Option(
            help="With --seeds auto, or with scores of seeds that were added so: the largest number of seeds, from 3 to 100."
        ),
    ] = 12,
    margin: Annotated[
        float | None,
        typer.Option(
            help="Largest difference that counts as equal, in units of the metric; default 1 % of the baseline's mean.",
            min=0,
        ),
    ] = None,
    higher: Annotated[
        str, typer.Option(help="With scores: metrics for which higher is better, separated by commas.")
    ] = "",
    lower: Annotated[
        str, typer.Option(help="With scores: metrics for which lower is better, separated by commas.")
    ] = "",
    baseline: Annotated[
        str, typer.Option(help="With scores: the arm to compare with; default the first one in the table.")
    ] = "",
    preset: Preset = None,
    data: TrainingData = None,
    column: Column = None,
    test: Test = None,
    lambdas: Annotated[
        str, typer.Option(help="Weights of the uniformity loss, separated by commas; every arm runs with each weight.")
    ] = "",
    targets: Annotated[
        str, typer.Option(help="Vectors that the uniformity loss spreads, separated by commas: cls, tokens, both.")
    ] = "",
    max_steps: MaxSteps = None,
    changes: Changes = None,
    config: ConfigFile = None,
    device: RunDevice = None,
    launcher: Launcher = "local",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs, results.json and report.html; default runs/compare-...")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted comparison. This happens without the flag too.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train models with shared and separate norms and compare them.

    Each arm is a norm: ln is shared, bn+ln is batch norm for [CLS] and layer norm for tokens. Every arm is trained
    with every seed. You get report.html and results.json: each arm's difference to the first arm, with a 95 % interval
    and a verdict (better, worse, equal or undecided). Finished runs are not repeated.

    With scores, nothing is trained: the arms and seeds are read from a table of your own results.

    Example: sepnorm compare images --norms ln,bn+ln --seeds 6
    """
    if margin is not None and not math.isfinite(margin):
        raise SepNormError(f"--margin is a finite number of at least 0, found {margin}.")
    if domain == "scores":
        _refuse_beside_scores(context)
        limit = _most(most) if _is_given(context, "most") else None
        _compare_scores(table, higher, lower, baseline or None, margin, limit, out, as_json, quiet)
        return
    if table is not None:
        raise SepNormError(f"compare {domain} takes no TABLE: write --data {quote(str(table))}.")
    if higher or lower or baseline:
        raise SepNormError(f"--higher, --lower and --baseline are only for compare scores, found them with {domain!r}.")
    numbers = _seeds(seeds, most)
    from sepnorm.domains import open_domain
    from sepnorm.domains.comparison import compare_domain, parse_arms, plan
    from sepnorm.domains.planning import config_of, default_folder, given_settings, refuse_beside
    from sepnorm.experiment.launcher_settings import parse_launcher, refuse_many_processes
    from sepnorm.report.progress import training_progress

    refuse_many_processes()
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

        say(estimate_comparison(planned, numbers, folder))
        return
    if not quiet:
        say(planned.line, error=True)
    with training_progress(quiet or as_json) as watch:
        comparison, page = compare_domain(planned, numbers, folder, launcher, watch, margin, seeds == "auto")
    _show(comparison, page, as_json, quiet)


def _most(most: int) -> int:
    if not 3 <= most <= 100:
        raise SepNormError(f"--most is a number from 3 to 100, found {most}.")
    return most


def _seeds(text: str, most: int) -> range:
    _most(most)
    if text == "auto":
        return range(most)
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise SepNormError(f"--seeds is a number from 1 to 10000, or auto, found {text!r}.")
    return range(int(text))


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


def _refuse_beside_scores(context: typer.Context) -> None:
    """Refuses options of training, which a table of scores would leave without effect."""
    for name in context.params:
        if _is_given(context, name) and name not in _OF_SCORES:
            option = next(each.opts[0] for each in context.command.params if each.name == name)
            raise SepNormError(
                f"{option} has no effect with scores: arms and seeds are those of the table, and --baseline names the first arm."
            )


def _compare_scores(
    table: Path | None,
    higher: str,
    lower: str,
    baseline: str | None,
    margin: float | None,
    most: int | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    if table is None:
        raise SepNormError("compare scores needs a table: sepnorm compare scores results.csv --higher accuracy.")
    if twice := {name.strip() for name in higher.split(",")} & {name.strip() for name in lower.split(",")} - {""}:
        raise SepNormError(f"{min(twice)} is named by --higher and by --lower: name it once.")
    named = {name.strip(): better for text, better in ((higher, True), (lower, False)) for name in text.split(",")}
    named.pop("", None)
    if not named:
        raise SepNormError("name the deciding metric: --higher accuracy or --lower error.")
    from sepnorm.domains.scores import compare_scores

    folder = out or Path("runs") / f"compare-scores-{table.stem}"
    comparison, page = compare_scores(table, folder, named, margin, baseline, most)
    _show(comparison, page, as_json, quiet)


def _show(comparison: Comparison, page: Path, as_json: bool, quiet: bool) -> None:
    from sepnorm.domains.comparison import as_json as as_json_text
    from sepnorm.domains.comparison import short_text

    if as_json:
        say(as_json_text(comparison))
    elif not quiet:
        say(short_text(comparison))
    say(f"Report: {page}", error=as_json)
