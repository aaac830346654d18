"""The tables of a comparison and of a study, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io

from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.report.selection import references

#: A header and rows.
Table = tuple[list[str], list[list[str]]]


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Means of every arm, then the differences to the arms that others are subtracted from."""
    return [comparison_rows(comparison), *(difference_rows(comparison, arm) for arm in references(comparison))]


def summary_rows(comparison: Comparison) -> Table:
    """A row for each arm with what decides: the primary metric, its verdict, what is seen beside it, and the geometry of [CLS]."""
    primary, decisions = comparison.primary, comparison.decisions()
    beside = [metric for metric in (comparison.beside,) if metric is not None]
    geometry = [metric for metric in comparison.columns if metric.kind == "geometry" and metric != primary]
    counts = [str(len(arm.metrics)) for arm in comparison.arms]
    same = len(set(counts)) == 1  # then the verdicts say how many
    rows = []
    for arm, count in zip(comparison.arms, counts, strict=True):
        cells = [arm.name] if same else [arm.name, count]
        if primary is not None:
            decision = decisions.get(arm.name)
            cells += [str(arm.interval(primary.key) or "")]
            cells += ["", ""] if decision is None else [str(decision), decision.verdict]
        cells += [str(arm.interval(metric.key) or "") for metric in beside]
        means = [arm.interval(metric.key) for metric in geometry]
        rows.append([*cells, *("" if mean is None else f"{mean.mean:.3g}" for mean in means)])
    judged = [] if primary is None else [primary.name, f"minus {comparison.arms[0].name}", "verdict"]
    short = [metric.name.removeprefix("[CLS] ").removeprefix("effective ") for metric in geometry]  # of [CLS] all
    return ["arm", *([] if same else ["seeds"]), *judged, *(metric.name for metric in beside), *short], rows


def comparison_rows(comparison: Comparison) -> Table:
    """Header and a row for each arm: means with 95 % intervals."""
    metrics = comparison.columns
    header = ["arm", "seeds", *(metric.name for metric in metrics)]
    rows = [
        [arm.name, str(len(arm.metrics)), *(str(arm.interval(metric.key) or "") for metric in metrics)]
        for arm in comparison.arms
    ]
    return header, rows


def difference_rows(comparison: Comparison, to: Arm) -> Table:
    """Header and a row for each other arm: the paired differences with their intervals, the primary metric's with its verdict."""
    metrics, decisions = comparison.columns, comparison.decisions(to)
    header = [f"minus {to.name}", *(metric.name for metric in metrics)]
    rows = []
    for arm in comparison.arms:
        if arm is not to:
            cells = []
            for metric in metrics:
                decision = decisions.get(arm.name) if metric == comparison.primary else None
                gap = comparison.difference(arm, metric, to)
                cells.append(f"{decision} {decision.verdict}" if decision is not None else str(gap or ""))
            rows.append([arm.name, *cells])
    return header, rows


def runs_as_csv(comparison: Comparison) -> str:
    """A row for each run with all its metrics."""
    rows = io.StringIO()
    writer = csv.writer(rows)
    writer.writerow(["arm", "seed", *comparison.keys])
    for arm in comparison.arms:
        for seed, found in arm.metrics.items():
            writer.writerow([arm.name, seed, *(found.get(key, "") for key in comparison.keys)])
    return rows.getvalue()


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table as Markdown has it."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        f"| {' | '.join(_one_cell(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def aligned(header: list[str], rows: list[list[str]]) -> str:
    """A table for a terminal."""
    lines = [[_one_cell(cell) for cell in line] for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


_LATEX = {letter: f"\\{letter}" for letter in "%_&#${}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "λ": r"$\lambda$",
}


def latex(header: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str]) -> str:
        return " & ".join("".join(_LATEX.get(letter, letter) for letter in _one_cell(cell)) for cell in cells)

    body = " \\\\\n".join(line(row) for row in rows)
    columns = "l" * len(header)
    return f"\\begin{{tabular}}{{{columns}}}\n{line(header)} \\\\\n\\hline\n{body} \\\\\n\\end{{tabular}}\n"


def _one_cell(text: str) -> str:
    """Names come from files too: no line of one begins a row of the table."""
    return " ".join(text.split())
