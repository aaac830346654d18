"""Tables of a comparison or study, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io

from sepnorm.errors import in_columns
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.metrics import SHORT
from sepnorm.report.comparison_words import verdict_of
from sepnorm.report.selection import references

#: Columns of a terminal that a table may take.
TERMINAL = 100
_SHORTEST = 8  # letters of a shortened name
#: A header and rows.
Table = tuple[list[str], list[list[str]]]


def comparison_tables(comparison: Comparison) -> list[Table]:
    """The table of means, then a table of differences for each reference."""
    return [comparison_rows(comparison), *(difference_rows(comparison, arm) for arm in references(comparison))]


def summary_rows(comparison: Comparison) -> Table:
    """A row per arm with the deciding columns: primary metric, verdict, the metric beside it, and geometry of [CLS]."""
    primary, decisions = comparison.primary, comparison.decisions()
    beside = [metric for metric in (comparison.beside,) if metric is not None]
    geometry = [metric for metric in comparison.columns if metric.key in SHORT and metric != primary]
    counts = [str(len(arm.metrics)) for arm in comparison.arms]
    same = len(set(counts)) == 1  # then the verdicts state the number
    rows = []
    for arm, count in zip(comparison.arms, counts, strict=True):
        cells = [arm.name] if same else [arm.name, count]
        if primary is not None:
            decision = decisions.get(arm.name)
            cells += [str(arm.interval(primary.key) or "")]
            cells += ["", ""] if decision is None else [str(decision), verdict_of(decision, arm, comparison.arms[0])]
        cells += [str(arm.interval(metric.key) or "") for metric in beside]
        means = [arm.interval(metric.key) for metric in geometry]
        rows.append([*cells, *("" if mean is None else mean.rounded for mean in means)])
    judged = [] if primary is None else [primary.name, f"minus {comparison.arms[0].name}", "verdict"]
    short = [metric.name.removeprefix("[CLS] ").removeprefix("effective ") for metric in geometry]  # all are of [CLS]
    return ["arm", *([] if same else ["seeds"]), *judged, *(metric.name for metric in beside), *short], rows


def comparison_rows(comparison: Comparison) -> Table:
    """A row per arm: means with 95 % intervals."""
    metrics = comparison.columns
    header = ["arm", "seeds", *(metric.name for metric in metrics)]
    rows = [
        [arm.name, str(len(arm.metrics)), *(str(arm.interval(metric.key) or "") for metric in metrics)]
        for arm in comparison.arms
    ]
    return header, rows


def difference_rows(comparison: Comparison, to: Arm) -> Table:
    """A row per other arm: paired differences with intervals, and the verdict on the primary metric.

    The baseline has no row below another arm: that difference stands in the baseline's own table, with its verdict.
    """
    metrics, decisions = comparison.columns, comparison.decisions(to)
    header = [f"minus {to.name}", *(metric.name for metric in metrics)]
    rows = []
    for arm in comparison.arms[1:]:
        if arm is not to:
            decision = decisions.get(arm.name)
            judged = "" if decision is None else f"{decision} {verdict_of(decision, arm, to)}"
            # the interval of the primary metric is that of its verdict, which allows for looks and for other arms
            cells = [
                judged if metric == comparison.primary else str(comparison.difference(arm, metric, to) or "")
                for metric in metrics
            ]
            rows.append([arm.name, *cells])
    return header, rows


def runs_as_csv(comparison: Comparison) -> str:
    """A row per run with all metrics."""
    rows = io.StringIO()
    writer = csv.writer(rows)
    writer.writerow(["arm", "seed", *comparison.keys])
    for arm in comparison.arms:
        for seed, found in arm.metrics.items():
            writer.writerow([arm.name, seed, *(found.get(key, "") for key in comparison.keys)])
    return rows.getvalue()


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        f"| {' | '.join(_one_cell(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def aligned(header: list[str], rows: list[list[str]]) -> str:
    """A table in aligned columns, for a terminal."""
    return "\n".join(in_columns([[_one_cell(cell) for cell in line] for line in (header, *rows)]))


def fitting_rows(comparison: Comparison, width: int = TERMINAL) -> Table:
    """``summary_rows`` for a terminal: columns beside the verdict are left out, then names shortened, until they fit."""
    header, rows = summary_rows(comparison)
    judging = header.index("verdict") + 1 if "verdict" in header else 1 + ("seeds" in header)
    while _width(header, rows) > width and len(header) > judging:
        drop = judging if comparison.beside is not None and comparison.beside.name in header[judging:] else -1
        for line in (header, *rows):
            del line[drop]
    length = max(len(arm.name) for arm in comparison.arms)
    names, shown = header, rows
    while _width(names, shown) > width and length > _SHORTEST:
        length -= 1
        minus, short = f"minus {rows[0][0]}", f"minus {_shortened(rows[0][0], length)}"
        names = [short if cell == minus else cell for cell in header]
        shown = [[_shortened(name, length), *row] for name, *row in rows]
    return names, shown


def _width(header: list[str], rows: list[list[str]]) -> int:
    return max(map(len, aligned(header, rows).splitlines()))


def _shortened(name: str, length: int) -> str:
    """A name with its middle left out: arms often differ at their ends."""
    if len(name) <= length:
        return name
    return f"{name[: length // 2]}…{name[len(name) - (length - 1) // 2 :]}"


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
    """Text in one line: names from files may contain line breaks."""
    return " ".join(text.split())
