"""The verb ``sepnorm embed``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Column, Device, Model, Quiet, Split
from sepnorm.report.terminal import say


def embed(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(
            help="Text file, table, folder of images, SMILES, digits (packaged images), or Hugging Face dataset."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write, .parquet (with names and labels) or .npy.")],
    pooling: Annotated[
        str, typer.Option(help="cls, mean (of tokens), cls+mean, moments, or healed for a folder that heal wrote.")
    ] = "cls",
    column: Column = None,
    split: Split = "train",
    batch_size: Annotated[int, typer.Option(help="Number of samples in a batch.", min=1, max=1_000_000)] = 32,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write one embedding for each text, image or molecule.

    The rows of the file are in the order of the data. Inputs that are empty or unreadable are left out and counted.
    diagnose and heal read the file.

    Example: sepnorm embed bert-base-uncased texts.txt --out texts.parquet
    """
    from sepnorm.domains.requests import check_embedding

    check_embedding(model, data, out, pooling)
    from sepnorm.domains.embedding import write_embeddings
    from sepnorm.report.terminal import progress_bar

    with progress_bar(model, quiet) as progress:
        found = write_embeddings(
            model,
            data,
            out,
            pooling=pooling,
            column=column,
            split=split,
            batch_size=batch_size,
            device=device,
            progress=progress,
        )
    if not quiet and found.left_out:
        say(f"Note: left out what is empty or cannot be read, {found.left_out} in all.", error=True)
    say(f"Saved: {out} ({found.count:,} x {found.dim})")
