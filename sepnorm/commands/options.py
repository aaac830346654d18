"""Options that several commands have, with one meaning everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str | None,
    typer.Option(
        help="What to run a model on: a text file, a table, a folder of images, or a name of datasets (NAME:CONFIG)."
    ),
]
Column = Annotated[str | None, typer.Option(help="The column or array to read, where it is not clear.")]
Split = Annotated[str, typer.Option(help="The split of a datasets name.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no table.")]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Model = Annotated[str, typer.Argument(help="A model's folder or hub name, a run's folder, or timm:NAME.")]
Preset = Annotated[
    str | None, typer.Option(help="demo (the default), small, paper, or another that sepnorm presets lists.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The config.json of a run, for its settings instead of a preset's.")
]
Test = Annotated[
    str | None,
    typer.Option(
        help="What is scored on: for text rated pairs or labelled sentences, for molecules tables to be probed."
    ),
]
Device = Annotated[
    str, typer.Option(help="auto (the default) for the fastest that is there, or cpu, cuda, cuda:1, mps.")
]
RunDevice = Annotated[
    str | None, typer.Option("--device", help="auto (the default) for the fastest, or cpu, cuda, mps.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what it would take.")]
Domain = Annotated[str, typer.Argument(help="images, text or molecules, or another domain that is installed.")]
TrainingData = Annotated[
    str | None,
    typer.Option(help="A folder of images, a table, a text file or a name of datasets, instead of the preset's."),
]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Any setting, as width=64; repeat for more.")]
MaxSteps = Annotated[int | None, typer.Option(help="Stop each run after so many steps.")]
Launcher = Annotated[str, typer.Option(help="local, or 'submitit KEY=VALUE ...' for SLURM, or 'ray KEY=VALUE ...'.")]
