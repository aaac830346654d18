"""The ``sepnorm`` command. What a subcommand needs is imported when it runs, so that ``--help`` answers at once."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sepnorm.diagnosis import Diagnosis

app = typer.Typer(
    help="Separate normalisation of [CLS] and tokens: is my model's [CLS] collapsed, and what would separate norms do?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Data = Annotated[
    str | None,
    typer.Option(
        help="What to run a model on: a text file, a table, a folder of images, or a name of datasets (NAME:CONFIG)."
    ),
]
Column = Annotated[str | None, typer.Option(help="The column or array to read, where it is not clear.")]
Split = Annotated[str, typer.Option(help="The split of a datasets name.")]
DEFAULT_ARMS = "ln,bn@final,bn+bn@final"
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no table.")]


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
    from sepnorm.diagnosis import diagnose as look
    from sepnorm.files import write_whole
    from sepnorm.report.diagnosis_page import short_names, write_diagnosis

    targets = [target] if compare is None else [target, compare]
    if data is not None and all(_is_file(each) for each in targets):
        _fail(f"{target} holds embeddings already: --data is for models, leave it out.")
    found = []
    for each in targets:
        with _progress(each, quiet or as_json) as progress:
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
    write_whole(folder / "results.json", lambda scratch: Path(scratch).write_text(text, encoding="utf-8"))
    page = write_diagnosis(folder / "report.html", found)
    if as_json:
        print(text)
    elif not quiet:
        _print_diagnoses(found)
    print(f"Report: {page}", file=sys.stderr if as_json else sys.stdout)


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
    from sepnorm.encoders import convert_copy

    with _progress(model, quiet) as progress:
        report = convert_copy(model, data, out, norm, sites, column, split, max_samples, progress)
    if not quiet:
        print(report)
    print(f"Saved: {out}")


@app.command()
def compare(
    domain: Annotated[str, typer.Argument(help="images")],
    norms: Annotated[
        str, typer.Option(help="Arms, the baseline first: NORM or NORM@SITES, with commas between.")
    ] = DEFAULT_ARMS,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1)] = 3,
    preset: Annotated[str, typer.Option(help="demo, small or paper.")] = "demo",
    data: Annotated[
        str | None, typer.Option(help="Images: digits, a folder, a table, IDX files or a name of datasets.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop each run after so many steps.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, as width=64; repeat for more.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for runs, results.json and report.html.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Shared against separate norms: arms with the same seeds, and one page that shows what they differ in."""
    from sepnorm.comparing import compare_images

    if domain != "images":
        from sepnorm.errors import nearest

        _fail(f"there is no domain {domain!r}: there is images.{nearest(domain, ['images'])}")
    folder = out or Path("runs") / f"compare-{domain}-{preset}"
    with _training_progress(quiet or as_json) as progress:
        found = compare_images(norms, range(seeds), preset, data, max_steps, changes or [], folder, progress)
    if as_json:
        print((folder / "results.json").read_text(encoding="utf-8"))
    elif not quiet:
        print((folder / "results.md").read_text(encoding="utf-8"))
    print(f"Report: {found}", file=sys.stderr if as_json else sys.stdout)


def main() -> None:
    """Runs the command; an error of ours is one sentence, not a traceback."""
    from sepnorm.errors import SepNormError, SepNormWarning

    # Threads that spin for long while they wait make small operations up to a hundred times slower on a machine that others use
    # too; threads that never spin are half as fast on one that is idle. A short spin is good on both.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    warnings.filterwarnings("ignore", category=SepNormWarning)  # said in the output, as notes
    try:
        app()
    except SepNormError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed, and this command needs it: pip install 'sepnorm[all]'.")
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}.")


def _fail(message: str) -> None:
    print(f"Error: {message}", file=sys.stderr)
    sys.exit(1)


def _is_file(target: str) -> bool:
    from sepnorm.embedding_files import SUFFIXES

    return Path(target).suffix.lower() in SUFFIXES


@contextmanager
def _progress(name: str, quiet: bool) -> Iterator[Any]:
    """A bar on the error channel, where that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(Path(name).name or name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _training_progress(quiet: bool) -> Iterator[Any]:
    """A bar for each run on the error channel, where that is a terminal; else a line for each run."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():

        def announce(arm: str, seed: int) -> None:
            print(f"{arm}, seed {seed}", file=sys.stderr, flush=True)

        yield announce
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:

        def start(arm: str, seed: int) -> Any:
            task = bar.add_task(f"{arm}, seed {seed}", total=None, note="")

            def report(step: int, steps: int, loss: float, rate: float) -> None:
                bar.update(task, completed=step, total=steps, note=f"loss {loss:.3f}, {rate:.0f}/s")

            return report

        yield start


def _print_diagnoses(found: list[Diagnosis]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sepnorm.inspection import table as layer_table
    from sepnorm.report.diagnosis_page import all_summaries, short_names, summary_rows

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    named = dict(zip(short_names([d.target for d in found]), found, strict=True))
    summaries = all_summaries(named)
    grid = Table("", *summaries, box=None, header_style="bold")
    for row in summary_rows(summaries):
        grid.add_row(*row)
    console.print(grid)
    for name, d in named.items():
        if d.layers is not None:
            console.print(Text(f"\n{name}: {len(d.layers.sites)} norm sites, what leaves each", style="bold"))
            for line in fitted(layer_table(d.layers.sites), console.width):
                console.print(Text(line), soft_wrap=True)
        colour = {"healthy": "green", "partly collapsed": "yellow", "collapsed": "red"}[d.verdict.level]
        title = f"\n{name}: {d.verdict.level}" if len(named) > 1 else f"\nVerdict: {d.verdict.level}"
        console.print(Text(title, style=f"bold {colour}"))
        console.print(Text(d.verdict.reason), soft_wrap=True)
        signs = Table("sign", "value", "level", "threshold", box=None, header_style="bold")
        for sign in d.verdict.signs:
            signs.add_row(sign.name, f"{sign.value:.3f}", sign.level, sign.threshold)
        console.print(signs)
        for note in d.embeddings.notes:
            console.print(Text(f"  Note: {note}"), soft_wrap=True)
        console.print(Text("What to try next:"))
        for line in d.verdict.advice:
            console.print(Text(f"  - {line}"), soft_wrap=True)


def fitted(rows: list[list[str]], width: int) -> list[str]:
    """The table of sites as lines of ``width``: the least needed columns go first, then the beginnings of paths.

    What all paths begin with is left out, and a star marks degenerate sites.
    """
    header, *body = rows
    parts = [row[0].split(".") for row in body]
    shared = next((i for i, names in enumerate(zip(*parts, strict=False)) if len(set(names)) > 1), 0)
    paths = [".".join(names[shared:]) for names in parts]
    rows = [header, *([("*" if row[-1] else " ") + path, *row[1:]] for path, row in zip(paths, body, strict=True))]
    gone = {""} | {name for i, name in enumerate(header) if not any(row[i] for row in body)}
    for name in ("", "cos tok", "var tok", "|tok|", "norm", "rank tok"):
        gone.add(name)
        kept = [i for i, title in enumerate(header) if title not in gone]
        widths = {i: max(len(row[i]) for row in rows) for i in kept}
        room = width - sum(w + 2 for i, w in widths.items() if i)
        if room >= min(widths[0], 33):
            break
    widths[0] = max(min(widths[0], room), 12)
    shown = [[_tail(row[0], widths[0]), *row[1:]] for row in rows]
    lines = ["  ".join(row[i].ljust(widths[i]) for i in kept).rstrip() for row in shown]
    if any(row[-1] for row in body):
        lines.append(
            "* degenerate: [CLS] is the same vector in every sample there, so a batch norm would give a constant"
        )
    return lines


def _tail(path: str, width: int) -> str:
    return path if len(path) <= width else f"{path[0]}…{path[2 - width :]}"
