"""What a study shows: tables and sections of figures; and the table of arms by metrics that most studies have."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sepnorm.experiment.comparison import Arm, Comparison, comparable
from sepnorm.experiment.intervals import Difference, difference
from sepnorm.report.comparison_page import verdict_class
from sepnorm.report.page import Section, table
from sepnorm.report.tables import Table
from sepnorm.studies.parts import Part

MEANS = (
    "Ours: means over seeds ± 95 % interval (Student); differences are paired by seed, and better or worse means that the "
    "interval leaves out 0."
)


@dataclass(eq=False)
class Drawn:
    """Tables, for the page and for Markdown, and sections of figures."""

    tables: list[Table]
    sections: list[Section] = field(default_factory=list)
    note: str = ""

    def lead(self) -> str:
        """Tables and note as HTML."""
        said = f'<p class="quiet">{html.escape(self.note)}</p>' if self.note else ""
        return "".join(table(*each, mark=verdict_class) for each in self.tables) + said


Found = Sequence[tuple[Part, Comparison]]


def by_part(found: Found, metrics: dict[str, str], per_cent: bool = False) -> list[Table]:
    """A row for each arm and a column for each metric of every part, with intervals; then paired differences."""
    columns = [(part, c, metric) for part, c in found for metric in metrics if metric in c.keys]
    head = [f"{part.name}, {metrics[metric]}" for part, _, metric in columns]
    names = list(dict.fromkeys(arm.name for _, comparison in found for arm in comparison.arms))
    rows, gaps = [], []
    for name in names:
        cells, against = [], []
        for _, comparison, metric in columns:
            arm = next((each for each in comparison.arms if each.name == name), None)
            mean = None if arm is None else arm.interval(metric)
            cells.append("" if mean is None else number(mean.mean, mean.half, per_cent))
            gap = None if arm is None or arm is comparison.arms[0] else judged(comparison, arm, metric)
            against.append("" if gap is None else f"{number(gap.mean, gap.half, per_cent, '+')} {gap.verdict or ''}")
        rows.append([name, *cells])
        if any(against):
            gaps.append([name, *against])
    seeds = max(len(arm.metrics) for _, comparison in found for arm in comparison.arms)
    tables = [([f"ours, {seeds} seed{'s' * (seeds > 1)}", *head], rows)]
    return tables + ([([f"minus {names[0]}", *head], gaps)] if gaps else [])


def judged(comparison: Comparison, arm: Arm, key: str) -> Difference | None:
    """The difference of an arm to the baseline with a verdict by Student's interval, uncorrected."""
    metric, baseline = comparison.declared.find(key), comparison.arms[0]
    if not comparable(arm, baseline, metric):
        return None
    return difference(arm.values(key), baseline.values(key), metric.higher_is_better)


def name_of(comparison: Comparison, key: str) -> str:
    return comparison.declared.find(key).name


def number(mean: float, half: float, per_cent: bool, sign: str = "") -> str:
    scale, digits = (100, 2) if per_cent else (1, 3)
    text = f"{mean * scale:{sign}.{digits}f}"
    return text if math.isnan(half) else f"{text} ± {half * scale:.{digits}f}"
