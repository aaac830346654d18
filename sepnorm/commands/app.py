"""The ``sepnorm`` command. What a subcommand needs is imported when it runs, so that ``--help`` answers at once."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from sepnorm.report.terminal import say
from sepnorm.studies import commands

app = typer.Typer(
    help="Separate normalisation of [CLS] and tokens: is my model's [CLS] collapsed, and what would separate norms do?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(commands.reproduce)
app.command()(commands.study)

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
Model = Annotated[str, typer.Argument(help="A model's folder or hub name, or timm:NAME.")]
Preset = Annotated[str, typer.Option(help="demo, small, paper, or another of the domain.")]
Domain = Annotated[str, typer.Argument(help="images, text or molecules")]
TrainingData = Annotated[
    str | None,
    typer.Option(help="A folder of images, a table, a text file or a name of datasets, instead of the preset's."),
]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Any setting, as width=64; repeat for more.")]


@app.command()
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Has [CLS] collapsed, at which layer, and what to do about it."""
    from sepnorm.domains.diagnosis import diagnose as look
    from sepnorm.files import write_text
    from sepnorm.report.diagnosis_page import short_names, write_diagnosis
    from sepnorm.report.terminal import print_diagnoses, progress_bar

    targets = [target] if compare is None else [target, compare]
    if data is not None and all(_is_file(each) for each in targets):
        _fail(f"{target} holds embeddings already: --data is for models, leave it out.")
    found = []
    for each in targets:
        with progress_bar(each, quiet or as_json) as progress:
            found.append(
                look(
                    each,
                    None if _is_file(each) else data,
                    column=column,
                    label=label,
                    split=split,
                    max_samples=max_samples,
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


@app.command()
def convert(
    model: Annotated[str, typer.Argument(help="A model's folder or hub name, or timm:NAME.")],
    data: Annotated[
        str, typer.Option(help="What to calibrate on: as for diagnose, the kind of data the model is for.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the converted model.")],
    norm: Annotated[str, typer.Option(help="As bn+ln: the norm of [CLS], then that of the tokens.")] = "bn+ln",
    sites: Annotated[str, typer.Option(help="all, final, or a pattern of paths.")] = "all",
    column: Column = None,
    split: Split = "train",
    max_samples: Annotated[int, typer.Option(help="Samples to calibrate on.")] = 2000,
    quiet: Quiet = False,
) -> None:
    """A copy of a pretrained model with separate norms, calibrated so that it goes on working."""
    from sepnorm.domains.encoders import convert_copy
    from sepnorm.report.terminal import progress_bar

    with progress_bar(model, quiet) as progress:
        report = convert_copy(model, data, out, norm, sites, column, split, max_samples, progress)
    if not quiet:
        say(report)
    say(f"Saved: {out}")


@app.command()
def compare(
    domain: Domain,
    norms: Annotated[str, typer.Option(help="Arms, the baseline first: NORM or NORM@SITES, with commas between.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1, max=10_000)] = 3,
    preset: Preset = "demo",
    data: TrainingData = None,
    lambdas: Annotated[
        str, typer.Option(help="Weights of the uniformity term, with commas between; every arm is run with each.")
    ] = "",
    targets: Annotated[
        str, typer.Option(help="What the uniformity term is on, with commas between: cls, tokens, both.")
    ] = "",
    max_steps: Annotated[int | None, typer.Option(help="Stop each run after so many steps.")] = None,
    changes: Changes = None,
    launcher: Annotated[
        str, typer.Option(help="local, or 'submitit KEY=VALUE ...' for SLURM, or 'ray KEY=VALUE ...'.")
    ] = "local",
    out: Annotated[Path | None, typer.Option(help="Folder for runs, results.json and report.html.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped, as happens anyway.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Shared against separate norms: arms with the same seeds, and one page that shows what they differ in."""
    from sepnorm.domains import open_domain
    from sepnorm.domains.comparison import compare_domain, parse_arms
    from sepnorm.report.terminal import training_progress
    from sepnorm.training.configs import parse_changes

    known = open_domain(domain)
    arms = parse_arms(norms or known.arms, lambdas, targets)
    options = {"data": data, "max_steps": max_steps}
    given = parse_changes(changes or []) | {key: value for key, value in options.items() if value is not None}
    folder = out or Path("runs") / f"compare-{domain}-{preset}"
    with training_progress(quiet or as_json) as start:
        found = compare_domain(known, arms, range(seeds), preset, given, folder, launcher, start)
    if as_json:
        say((folder / "results.json").read_text(encoding="utf-8"))
    elif not quiet:
        say((folder / "results.md").read_text(encoding="utf-8"))
    say(f"Report: {found}", error=as_json)


@app.command()
def pretrain(
    domain: Domain,
    norm: Annotated[
        str | None, typer.Option(help="As bn+ln (the default) or bn+ln@final: [CLS] first, then tokens.")
    ] = None,
    sites: Annotated[str | None, typer.Option(help="all, final (the default), or a pattern of paths.")] = None,
    preset: Preset = "demo",
    data: TrainingData = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order, crops and masks: 0 by default.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after so many steps.")] = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; its model is in model/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that is not finished.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """One run: pretrain a model without labels, measure it, keep it."""
    from sepnorm.domains.pretraining import pretrain as train
    from sepnorm.report.terminal import metric_lines, training_progress
    from sepnorm.training.configs import parse_arm

    options = {"sites": sites, "data": data, "seed": seed, "max_steps": max_steps}
    given: dict[str, Any] = parse_arm(norm) if norm is not None else {}
    given |= {key: value for key, value in options.items() if value is not None}
    with training_progress(quiet or as_json) as start:
        run = train(domain, preset, given, changes or [], out, resume, start)
    if run is None:  # the first of several processes says the rest
        return
    if as_json:
        say(json.dumps(run.as_dict(), indent=1))
    elif not quiet:
        if run.before:
            say(f"{run.folder} holds this run already, finished:\n")
        say("\n".join(metric_lines(run.metrics)))
        say("\n  ".join(["\nNext:", *run.next_commands()]) + "\n")
    say(f"Model: {run.model}", error=as_json)


@app.command()
def evaluate(
    model: Model,
    data: Annotated[
        str | None, typer.Option(help="Labelled images, as for pretrain; a file or folder of evaluation sets for text.")
    ] = None,
    on: Annotated[
        str, typer.Option(help="With commas between: linear, knn, finetune; for text sts, transfer or names of sets.")
    ] = "",
    pooling: Annotated[str, typer.Option(help="cls, mean (of tokens) or both.")] = "",
    column: Column = None,
    label: Annotated[str | None, typer.Option(help="The column of labels, where it is not clear.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json and features.npz.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What a saved model is worth: probes and geometry of images, STS and transfer tasks of text."""
    from sepnorm.domains.evaluation import evaluate as measure
    from sepnorm.report.terminal import metric_lines, progress_bar

    with ExitStack() as bars:
        found, folder = measure(
            model,
            data,
            on=on,
            pooling=pooling,
            column=column,
            label=label,
            folder=out,
            progress=lambda what: bars.enter_context(progress_bar(what, quiet or as_json)),
        )
    if as_json:
        say((folder / "results.json").read_text(encoding="utf-8"))
    elif not quiet:
        say(f"{found.used}\n")
        say("\n".join(metric_lines(found.metrics)) + "\n")
    say(f"Results: {folder / 'results.json'}", error=as_json)


@app.command()
def embed(
    model: Model,
    data: Annotated[
        str, typer.Argument(help="Texts, a table, a folder of images, SMILES, digits, or a datasets name.")
    ],
    out: Annotated[Path, typer.Option(help="A .parquet or .npy file.")],
    pooling: Annotated[str, typer.Option(help="cls or mean (of tokens).")] = "cls",
    column: Column = None,
    split: Split = "train",
    batch_size: Annotated[int, typer.Option(help="Inputs at a time.", min=1, max=1_000_000)] = 32,
    quiet: Quiet = False,
) -> None:
    """A vector for each text, image or molecule, in their order, to a file that diagnose reads too."""
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
            progress=progress,
        )
    if not quiet and found.left_out:
        say(f"Note: left out what is empty or cannot be read, {found.left_out} in all.", error=True)
    say(f"Saved: {out} ({found.count:,} x {found.dim})")


@app.command()
def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="A .onnx file.")],
    quiet: Quiet = False,
) -> None:
    """A model as ONNX, from its inputs to [CLS] and last hidden states, compared with the original."""
    from sepnorm.domains.export import OUTPUTS, export_onnx

    found = export_onnx(model, out)
    if not quiet:
        say(f"Inputs: {', '.join(found.inputs)}. Outputs: {', '.join(OUTPUTS)}.")
        if found.difference is None:
            say("Not compared with the original, since onnxruntime is not installed.")
        else:
            say(f"Largest difference to the original in ONNX Runtime: {found.difference:.1e}")
    say(f"Saved: {out}")


def main() -> None:
    """Runs the command; an error of ours is one sentence, not a traceback."""
    from sepnorm.errors import InterruptedRunError, SepNormError, as_notes, is_of_memory, one_line

    # Threads that spin for long while they wait make small operations up to a hundred times slower on a machine that others use
    # too; threads that never spin are half as fast on one that is idle. A short spin is good on both.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    _mend_channels()
    as_notes()
    try:
        app()
    except InterruptedRunError as stop:
        say(f"Stopped: {stop}", error=True)
        sys.exit(130)
    except SepNormError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        say("Interrupted.", error=True)
        sys.exit(130)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed, and this command needs it: pip install 'sepnorm[all]'.")
    except UnicodeError as error:  # of libraries that take names of files for text
        _fail(
            f"a name cannot be written as text here ({one_line(error)}): rename the file or folder, or set LC_ALL=C.UTF-8."
        )
    except BrokenPipeError:  # whoever read what we print, as head does, has enough; what is saved is saved
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}.")
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error):
            raise
        _fail(
            f"memory ran out ({one_line(error)}): take a smaller batch (--batch-size, or --set batch_size=N), or fewer samples."
        )


def _mend_channels() -> None:
    """Lets a command print wherever it is started: with channels that are closed, or that know ASCII alone."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which no file of ours must get
    for name in ("stdout", "stderr"):
        channel: Any = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if hasattr(channel, "reconfigure"):
            channel.reconfigure(errors="backslashreplace")
        setattr(sys, name, channel)


def _fail(message: str) -> None:
    say(f"Error: {' '.join(message.splitlines())}", error=True)  # names that were typed may have lines
    sys.exit(1)


def _is_file(target: str) -> bool:
    from sepnorm.data.vectors import SUFFIXES

    return Path(target).suffix.lower() in SUFFIXES
