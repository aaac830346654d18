"""Terminal output of commands: progress bars, verdicts, and tables that fit the width."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepnorm.errors import in_columns, printable

if TYPE_CHECKING:
    from sepnorm.report.diagnosis import Diagnosis


def say(text: object, error: bool = False) -> None:
    """Prints to stdout or stderr, without control characters, which names from files may contain."""
    print(printable(str(text)), file=sys.stderr if error else sys.stdout, flush=True)


@contextmanager
def progress_bar(name: str, quiet: bool) -> Iterator[Any]:
    """A progress bar on stderr if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(Path(name).name or name), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_diagnoses(found: list[Diagnosis]) -> None:
    """Prints the measures side by side, then sites, verdict, signs and advice of each target."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sepnorm.report.diagnosis_page import all_summaries, short_names, summary_rows
    from sepnorm.surgery.inspection import table as layer_table

    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
    named = dict(zip(map(printable, short_names([d.target for d in found])), found, strict=True))
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
        title = f"\n{name}: {d.verdict.title}" if len(named) > 1 else f"\nVerdict: {d.verdict.title}"
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
    """The table of sites in lines of ``width``: the least important columns are dropped first, then starts of paths.

    The common prefix of paths is omitted. A star marks degenerate sites.
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


def metric_lines(metrics: Mapping[str, float]) -> list[str]:
    """Metrics as lines: [CLS] and mean of tokens side by side, then the others."""
    places = {"cls": "[CLS]", "mean": "mean of tokens", "cls+mean": "[CLS] and mean", "moments": "moments"}
    both = [key.partition("_") for key in metrics]
    kept = {place: title for place, title in places.items() if any(part[0] == place for part in both)}
    rows = [["", *kept.values()]]
    for measure in dict.fromkeys(measure for place, _, measure in both if place in kept):
        values = [metrics.get(f"{place}_{measure}") for place in kept]
        rows.append([measure.replace("_", " "), *("" if value is None else _figure(value) for value in values)])
    others = [
        f"{key.replace('_', ' ')}: {_figure(metrics[key])}" for key in metrics if key.partition("_")[0] not in kept
    ]
    return (in_columns(rows) if kept else []) + others


def _figure(value: float) -> str:
    return f"{value:.3g}" if value and abs(value) < 0.001 else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
