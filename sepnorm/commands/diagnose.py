"""The verb ``sepnorm diagnose``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Column, Data, Device, Json, Quiet, Split
from sepnorm.errors import SepNormError
from sepnorm.report.terminal import say


def diagnose(
    target: Annotated[
        str,
        typer.Argument(
            help="File of embeddings (.npy .npz .parquet .csv), folder of a model or run, Hub name, or timm:NAME."
        ),
    ],
    data: Data = None,
    compare: Annotated[str | None, typer.Option(help="A second model or file, shown beside the first.")] = None,
    column: Column = None,
    label: Annotated[str | None, typer.Option(help="Column with labels in a file of embeddings.")] = None,
    split: Split = "train",
    max_samples: Annotated[
        int | None, typer.Option(help="Number of samples to use; default all of a file, 2000 for a model.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html and results.json; default sepnorm-diagnosis/NAME.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find out whether [CLS] has collapsed, where, and what to do.

    Takes a model with data to run it on, or a file of embeddings. You get a verdict with its reasons in the terminal,
    and report.html and results.json with all measures.

    Example: sepnorm diagnose bert-base-uncased --data texts.txt
    """
    from sepnorm.domains.requests import check_diagnosis, is_vectors
    from sepnorm.files import require_writable

    targets = [target] if compare is None else [target, compare]
    if data is not None and all(is_vectors(each) for each in targets):
        raise SepNormError(f"{target} is a file of embeddings: leave out --data, which is for models.")
    for each in targets:
        check_diagnosis(each, None if is_vectors(each) else data, column, label, max_samples)
    if out is not None:
        require_writable(out)
    from sepnorm.domains.diagnosis import diagnose as look
    from sepnorm.files import write_text
    from sepnorm.report.diagnosis_page import short_names, write_diagnosis
    from sepnorm.report.terminal import print_diagnoses, progress_bar

    found = []
    for each in targets:
        with progress_bar(each, quiet or as_json) as progress:
            found.append(
                look(
                    each,
                    None if is_vectors(each) else data,
                    column=column,
                    label=label,
                    split=split,
                    max_samples=max_samples,
                    device=device,
                    progress=progress,
                )
            )
    folder = out or Path("sepnorm-diagnosis") / "-".join(name.replace("/", "-") for name in short_names(targets))
    results = [diagnosis.as_dict() for diagnosis in found]
    text = json.dumps(results[0] if compare is None else {"targets": results}, indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "results.json", text)
    page = write_diagnosis(folder / "report.html", found)
    if as_json:
        say(text)
    elif not quiet:
        print_diagnoses(found)
    say(f"Report: {page}", error=as_json)
