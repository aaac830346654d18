"""Options that several verbs share. Each means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str | None,
    typer.Option(
        help="Data to run a model on: text file, table, folder of images, or Hugging Face dataset (NAME[:CONFIG])."
    ),
]
Column = Annotated[str | None, typer.Option(help="Column of a table, or array of an .npz; needed if several fit.")]
Split = Annotated[str, typer.Option(help="Split to read, if the data is a Hugging Face dataset.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print neither progress nor tables.")]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Model = Annotated[str, typer.Argument(help="Folder of a model or of a run, Hugging Face Hub name, or timm:NAME.")]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Settings to begin with, such as demo or small; see sepnorm presets. Default: demo; for images of yours, "
        "by their size."
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="config.json of an earlier run, to begin with instead of a preset.")
]
Test = Annotated[
    str | None,
    typer.Option(
        help="Data to score on: rated pairs or labelled sentences for text, tables with properties for molecules."
    ),
]
Device = Annotated[str, typer.Option(help="auto (the default, the fastest device here), cpu, cuda, cuda:1 or mps.")]
RunDevice = Annotated[
    str | None, typer.Option("--device", help="auto (the default, the fastest device here), cpu, cuda or mps.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan with its time and disk space, and train nothing.")
]
Domain = Annotated[str, typer.Argument(help="images, text, molecules, or another installed domain.")]
TrainingData = Annotated[
    str | None,
    typer.Option(
        help="Training data instead of the preset's: folder of images, table, text file or Hugging Face dataset."
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, as width=64; repeat for more. See sepnorm presets DOMAIN."),
]
MaxSteps = Annotated[int | None, typer.Option(help="Stop each run after this many optimizer steps.")]
Launcher = Annotated[
    str, typer.Option(help="Where runs start: local, 'submitit KEY=VALUE ...' (SLURM) or 'ray KEY=VALUE ...'.")
]
