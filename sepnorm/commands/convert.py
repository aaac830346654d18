"""``sepnorm convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Column, Device, Model, Quiet, Split
from sepnorm.report.terminal import say


def convert(
    model: Model,
    data: Annotated[
        str, typer.Option(help="What to calibrate on: as for diagnose, the kind of data the model is for.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the converted model.")],
    norm: Annotated[str, typer.Option(help="As bn+ln: the norm of [CLS], then that of the tokens.")] = "bn+ln",
    sites: Annotated[str, typer.Option(help="final (the last norm), all, or a pattern of paths.")] = "final",
    column: Column = None,
    split: Split = "train",
    max_samples: Annotated[int, typer.Option(help="Samples to calibrate on.", min=2)] = 2000,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """A copy of a pretrained model with separate norms, calibrated so that it goes on working."""
    from sepnorm.domains.requests import check_conversion

    check_conversion(model, data, out, norm, sites)
    from sepnorm.domains.encoders import convert_copy
    from sepnorm.report.terminal import progress_bar

    with progress_bar(model, quiet) as progress:
        report = convert_copy(model, data, out, norm, sites, column, split, max_samples, progress, device)
    if not quiet:
        say(report)
    say(f"Saved: {out}")
