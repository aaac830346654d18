"""The verb ``sepnorm evaluate``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Column, Device, Json, Model, Quiet
from sepnorm.report.terminal import say


def evaluate(
    model: Model,
    data: Annotated[
        str | None,
        typer.Option(help="Labelled images; a file or folder of evaluation sets for text; or tables of molecules."),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            help="Probes or sets of the model's domain, separated by commas, as linear,knn,finetune or sts,transfer."
        ),
    ] = "",
    pooling: Annotated[
        str,
        typer.Option(
            help="Some of cls, mean (of tokens), cls+mean, moments, separated by commas; both is cls,mean; or all."
        ),
    ] = "",
    column: Column = None,
    label: Annotated[str | None, typer.Option(help="Column with labels; needed only if several fit.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results.json and features.npz; default runs/evaluate-NAME.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a saved model by the probes and tasks of its domain.

    Images: linear and nearest-neighbour probes, or finetuning. Text: STS and transfer tasks. Molecules: probes of
    the properties in a table. You get the metrics in the terminal and in results.json.

    Example: sepnorm evaluate runs/my-run --data labelled-images
    """
    from sepnorm.domains.requests import check_evaluation

    check_evaluation(model, data, pooling, out)
    from sepnorm.domains.evaluation import evaluate as measure
    from sepnorm.report.terminal import metric_lines, progress_bar

    with ExitStack() as bars:
        found, folder = measure(
            model,
            data,
            on=on,
            pooling=pooling,
            column=column,
            label=label,
            folder=out,
            device=device,
            progress=lambda what: bars.enter_context(progress_bar(what, quiet or as_json)),
        )
    if as_json:
        say((folder / "results.json").read_text(encoding="utf-8"))
    elif not quiet:
        say(f"{found.used}\n")
        say("\n".join(metric_lines(found.metrics)) + "\n")
    say(f"Results: {folder / 'results.json'}", error=as_json)
