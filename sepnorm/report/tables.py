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
    """Header and a row for each other arm: the paired difference, its interval and the verdict."""
    metrics = comparison.columns
    header = [f"minus {to.name}", *(metric.name for metric in metrics)]
    rows = []
    for arm in comparison.arms:
        if arm is not to:
            gaps = [comparison.difference(arm, metric, to) for metric in metrics]
            rows.append([arm.name, *("" if gap is None else f"{gap} {gap.verdict or ''}".rstrip() for gap in gaps)])
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
