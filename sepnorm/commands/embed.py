"""``sepnorm embed``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Column, Device, Model, Quiet, Split
from sepnorm.report.terminal import say


def embed(
    model: Model,
    data: Annotated[
        str, typer.Argument(help="Texts, a table, a folder of images, SMILES, digits, or a datasets name.")
    ],
    out: Annotated[Path, typer.Option(help="A .parquet or .npy file.")],
    pooling: Annotated[
        str, typer.Option(help="cls or mean (of tokens), or healed in a folder that heal wrote.")
    ] = "cls",
    column: Column = None,
    split: Split = "train",
    batch_size: Annotated[int, typer.Option(help="Inputs at a time.", min=1, max=1_000_000)] = 32,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """A vector for each text, image or molecule, in their order, to a file that diagnose reads too."""
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
