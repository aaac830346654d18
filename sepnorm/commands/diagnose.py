"""``sepnorm diagnose``."""

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
        str, typer.Argument(help="Embeddings (.npy .npz .parquet .csv), a model's folder or hub name, or timm:NAME.")
    ],
    data: Data = None,
    compare: Annotated[str | None, typer.Option(help="A second target to put beside the first.")] = None,
    column: Column = None,
    label: Annotated[str | None, typer.Option(help="The column of labels in a file of embeddings.")] = None,
    split: Split = "train",
    max_samples: Annotated[
        int | None, typer.Option(help="Samples to use: by default all of a file, and 2000 for a model.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report.html and results.json.")] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Has [CLS] collapsed, at which layer, and what to do about it."""
    from sepnorm.domains.requests import check_diagnosis, is_vectors
    from sepnorm.files import require_writable

    targets = [target] if compare is None else [target, compare]
    if data is not None and all(is_vectors(each) for each in targets):
        raise SepNormError(f"{target} holds embeddings already: --data is for models, leave it out.")
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
