"""The verb ``sepnorm heal``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Column, Data, Device, Json, Quiet, Split
from sepnorm.report.terminal import say


def heal(
    target: Annotated[
        str, typer.Argument(help="File of embeddings (.npy .npz .parquet .csv), folder of a model or run, or Hub name.")
    ],
    data: Data = None,
    out: Annotated[
        Path, typer.Option(help="New folder for the healed model or embeddings, results.json and report.html.")
    ] = Path("healed"),
    test: Annotated[
        str | None,
        typer.Option(
            help="Table of rated pairs (sentence1, sentence2, score) to choose by. Labels are read with the data."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Use this map without a choice: centre, standardise, 'whiten 0.5' and so on."),
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="Try only cls or only mean (of tokens); default all poolings.")
    ] = None,
    column: Column = None,
    label: Annotated[str | None, typer.Option(help="Column with labels in a file of embeddings.")] = None,
    split: Split = "train",
    max_samples: Annotated[
        int | None, typer.Option(help="Number of samples to run a model on; default 5000.", min=2)
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Improve embeddings by a linear map, without training.

    Several maps (centring, standardising, whitening) are fitted and scored on held-out data: by labels, by rated pairs
    (--test), or by two views of each sample. The best one is used only if it beats the unchanged embeddings. A file
    without labels is only centred or standardised, if its diagnosis suggests it. You get a healed copy of the model or
    file, and a report.

    Example: sepnorm heal bert-base-uncased --data texts.txt --out healed
    """
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
