"""``sepnorm heal``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Column, Data, Device, Json, Quiet, Split
from sepnorm.report.terminal import say


def heal(
    target: Annotated[str, typer.Argument(help="Vectors (.npy .npz .parquet .csv), a model's folder or hub name.")],
    data: Data = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the healed model or vectors, results.json and report.html.")
    ] = Path("healed"),
    test: Annotated[
        str | None,
        typer.Option(help="Rated pairs (sentence1, sentence2, score) to choose by; labels come with the data."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Take this candidate without a choice: centre, standardise, 'whiten 0.5' and so on."),
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="Keep to cls or mean (of tokens); by default all are tried.")
    ] = None,
    column: Column = None,
    label: Annotated[str | None, typer.Option(help="The column of labels in a file of vectors.")] = None,
    split: Split = "train",
    max_samples: Annotated[int | None, typer.Option(help="Samples to run a model on, by default 5000.", min=2)] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Better vectors without training: a linear map, taken only where held-out data agree."""
    from sepnorm.domains.requests import check_healing

    check_healing(target, data, test, column, label, out)
    from sepnorm.domains.healing import heal as mend
    from sepnorm.domains.healing.healing import as_json as in_json
    from sepnorm.report.terminal import progress_bar

    with progress_bar(target, quiet or as_json) as progress:
        found = mend(
            target,
            data,
            test=test,
            method=method,
            pooling=pooling,
            column=column,
            label=label,
            split=split,
            max_samples=max_samples,
            device=device,
            progress=progress,
        )
    page = found.save(out)
    if as_json:
        say(in_json(found))
    elif not quiet:
        say(found)
    say(f"Saved: {out}. Report: {page}", error=as_json)
