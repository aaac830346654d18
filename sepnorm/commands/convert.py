"""The verb ``sepnorm convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Column, Device, Model, Quiet, Split
from sepnorm.report.terminal import say


def convert(
    model: Model,
    data: Annotated[
        str, typer.Option(help="Data to calibrate on, of the kind the model is for: texts, table, images or dataset.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the converted model.")],
    norm: Annotated[str, typer.Option(help="New norms, [CLS] first, then tokens, as bn+ln.")] = "bn+ln",
    sites: Annotated[
        str, typer.Option(help="Norms to replace: final (the last one), all, or a pattern of module paths.")
    ] = "final",
    column: Column = None,
    split: Split = "train",
    max_samples: Annotated[int, typer.Option(help="Number of samples to calibrate on.", min=2)] = 2000,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Save a copy of a pretrained model with separate norms.

    The copy is calibrated: the running statistics of its batch norms are measured on your data, so it works at once.
    You get a folder that sepnorm.load and all other commands read.

    Example: sepnorm convert bert-base-uncased --data texts.txt --out converted
    """
    from sepnorm.domains.requests import check_conversion

    check_conversion(model, data, out, norm, sites)
    from sepnorm.domains.encoders import convert_copy
    from sepnorm.report.terminal import progress_bar

    with progress_bar(model, quiet) as progress:
        report = convert_copy(model, data, out, norm, sites, column, split, max_samples, progress, device)
    if not quiet:
        say(report)
    say(f"Saved: {out}")
