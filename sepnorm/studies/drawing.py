"""From the comparisons of a study to tables and figures in the paper's arrangement, with the published figures beside them."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from sepnorm.experiment.comparison import Arm, Comparison, comparable
from sepnorm.experiment.intervals import Difference, difference, interval
from sepnorm.experiment.spread import spread_of, stacked
from sepnorm.geometry import uniformity
from sepnorm.report.comparison_figures import against_lambda, against_uniformity, loss_curves
from sepnorm.report.comparison_page import diagnoses, feature_section, map_section, shape_section, verdict_class
from sepnorm.report.page import Section, table
from sepnorm.report.runs import embeddings
from sepnorm.report.selection import shown_arms
from sepnorm.report.tables import Table
from sepnorm.studies import published
from sepnorm.studies.plan import Part


@dataclass(eq=False)
class Drawn:
    """Tables, for the page and for Markdown, and sections of figures."""

    tables: list[Table]
    sections: list[Section] = field(default_factory=list)
    note: str = ""

    def lead(self) -> str:
        """As HTML."""
        said = f'<p class="quiet">{html.escape(self.note)}</p>' if self.note else ""
        return "".join(table(*each, mark=verdict_class) for each in self.tables) + said


Found = Sequence[tuple[Part, Comparison]]


def image_table(found: Found) -> Drawn:
    """Top-1 and top-5 of linear probes, columns by data set, and differences to the first arm."""
    metrics = {"cls_linear_top1": "top-1", "cls_linear_top5": "top-5"}
    return Drawn([*_by_part(found, metrics, per_cent=True), published.IMAGES], note=_NOTE)


def text_table(found: Found) -> Drawn:
    """Spearman on each set and the averages, rows by part and arm."""
    tables: list[Table] = []
    for part, comparison in found:
        known = comparison.declared
        sets = [key for key in comparison.keys if known.is_single(key) and known.find(key).shown]
        averages = [m for m in ("cls_sts_average", "cls_transfer_average") if m in comparison.keys]
        metrics = {m: m.removeprefix("cls_").replace("_", " ") for m in [*sets, *averages]}
        tables += _by_part([(part, comparison)], metrics, per_cent=True)
    return Drawn([*tables, published.TEXT], note=_NOTE)


def molecule_table(found: Found) -> Drawn:
    """Test errors, columns by data set."""
    metrics = {"test_mae": "test MAE", "valid_mae": "validation MAE", "test_roc_auc": "test ROC AUC"}
    return Drawn([*_by_part(found, metrics), published.MOLECULES], note=_NOTE)


def uniformity_table(found: Found) -> Drawn:
    """Uniformity of [CLS] / of tokens, rows by data set and columns by norm, means over seeds."""
    names = [arm.config.norm for arm in found[0][1].arms]
    rows = [[part.name, *(_uniformities(arm) for arm in comparison.arms)] for part, comparison in found]
    tables: list[Table] = [(["ours, [CLS] / tokens", *names], rows)]
    tables += _by_part(found, {"cls_uniformity": "uniformity of [CLS]"})
    return Drawn([*tables, published.UNIFORMITY], note=_NOTE)


def _uniformities(arm: Arm) -> str:
    cls, tokens = [], []
    for folder in arm.folders.values():
        rows = embeddings(folder / "embeddings.npz")
        cls.append(float(uniformity(rows["cls"])))
        tokens.append(float(uniformity(rows["tokens"])))
    return f"{interval(cls).mean:.2f} / {interval(tokens).mean:.2f}"


def feature_figures(found: Found) -> Drawn:
    return Drawn([], [feature_section(_shown(comparison)) for _, comparison in found])


def map_figures(found: Found) -> Drawn:
    return Drawn([], [map_section(comparison, _shown(comparison), {}) for _, comparison in found])


def loss_figures(found: Found) -> Drawn:
    sections = []
    for part, comparison in found:
        sections.append(Section(f"Training on {part.name}", figures=[loss_curves(shown_arms(comparison))]))
        sections.append(shape_section(_shown(comparison)))
    return Drawn([], sections)


def lambda_figures(found: Found) -> Drawn:
    sections = [Section(part.name, figures=against_lambda(comparison)) for part, comparison in found]
    tables = [_by_lambda(part, comparison, "cls_linear_top1", per_cent=True) for part, comparison in found]
    return Drawn([*tables, published.LAMBDA], sections, _SWEEP_NOTE)


def uniformity_figures(found: Found) -> Drawn:
    sections = [
        Section(
            part.name,
            figures=[
                *against_lambda(comparison, [comparison.declared.find("cls_uniformity")]),
                *against_uniformity(comparison),
            ],
        )
        for part, comparison in found
    ]
    tables = [_by_lambda(part, comparison, "cls_uniformity") for part, comparison in found]
    return Drawn(tables, sections, _SWEEP_NOTE)


def _by_lambda(part: Part, comparison: Comparison, metric: str, per_cent: bool = False) -> Table:
    """Rows by norm, columns by what the uniformity term is on, in a cell the means for rising lambda."""
    cells: dict[str, dict[str, list[str]]] = {}
    weights: dict[float, None] = {}
    for arm in sorted(comparison.arms, key=lambda arm: arm.config.uniformity_weight):
        weight, mean = arm.config.uniformity_weight, arm.interval(metric)
        if mean is not None:
            column = arm.config.uniformity_on if weight else ""
            number = _number(mean.mean, math.nan, per_cent)
            cells.setdefault(arm.config.norm, {}).setdefault(column, []).append(number)
            weights |= {weight: None} if weight else {}
    columns = {"": "λ=0", "tokens": "on tokens", "cls": "on [CLS]", "both": "on both"}
    head = [
        f"ours, {part.name}, {_name(comparison, metric)}, λ={' / '.join(f'{each:g}' for each in weights)}",
        *columns.values(),
    ]
    return head, [[norm, *(" / ".join(row.get(column, [])) for column in columns)] for norm, row in cells.items()]


# ---- what the paper has nothing of --------------------------------------------------------------------------------------


def part_tables(found: Found) -> Drawn:
    """The main metrics of every part, with differences to its first arm."""
    tables: list[Table] = []
    for part, comparison in found:
        tables += _by_part([(part, comparison)], {m: _name(comparison, m) for m in _MAIN if m in comparison.keys})
    return Drawn(tables, note=_MEANS)


def seed_tables(found: Found) -> Drawn:
    """Of the difference by the linear probe of [CLS]: its spread over seeds when all varies and when only one thing does."""
    head = [
        "what seeds change",
        "minus the first arm",
        "seeds",
        "mean",
        "deviation",
        "of it by the test images",
        "by the models",
    ]
    rows = []
    for part, comparison in found:
        baseline = comparison.arms[0]
        for arm in comparison.arms[1:]:
            gap = comparison.difference(arm, comparison.declared.find("cls_linear_top1"))
            spread = spread_of(stacked(_rights(arm), _rights(baseline)))
            deviation = f"{spread.total:.4f} ({spread.low:.4f} to {spread.high:.4f})"
            parts = (f"{spread.test:.4f}", f"{spread.models:.4f}")
            rows.append([part.name, arm.name, str(len(arm.metrics)), str(gap or ""), deviation, *parts])
    note = (
        "Differences in [CLS] linear, paired by seed. Deviations are standard deviations over seeds, with 95 % intervals; what the "
        "test images and the models add is told apart by a two-way layout of seeds and images, and their squares sum up."
    )
    return Drawn([(head, rows)], note=note)


def _rights(arm: Arm) -> dict[int, Tensor]:
    """Which test samples the linear probe of [CLS] has right, by seed."""
    return {seed: embeddings(folder / "embeddings.npz")["cls_right"] for seed, folder in arm.folders.items()}


def probe_tables(found: Found) -> Drawn:
    """What a BatchNorm before the head adds, and what statistics that are measured anew do."""
    metrics = ("cls_linear_top1", "cls_linear_bn_top1", "recalibration_gain_linear")
    return _answers(found, metrics, [("cls_linear_bn_top1", "cls_linear_top1")])


def pooling_tables(found: Found) -> Drawn:
    """The mean of tokens minus [CLS] in every arm."""
    pairs = [("mean_linear_top1", "cls_linear_top1"), ("mean_knn", "cls_knn"), ("mean_sts_average", "cls_sts_average")]
    return _answers(found, [each for pair in pairs for each in reversed(pair)], pairs)


def whitening_tables(found: Found) -> Drawn:
    """What centring and whitening add to every arm, and every arm as it is against a baseline that was centred or whitened."""
    ways = [
        ("cls_centred_knn", "cls_knn"),
        ("cls_whitened_knn", "cls_knn"),
        ("cls_sts_centred", "cls_sts_average"),
        ("cls_sts_whitened", "cls_sts_average"),
    ]
    drawn = _answers(found, list(dict.fromkeys(each for pair in ways for each in reversed(pair))), ways)
    for part, comparison in found:
        baseline, *others = comparison.arms
        rivals = [(done, plain) for done, plain in ways if done in comparison.keys]
        rows = [[arm.name, *(_gap(arm, plain, baseline, done) for done, plain in rivals)] for arm in others]
        head = [
            f"{part.name}, {_name(comparison, plain)}, minus {_name(comparison, done)}, of {baseline.name}"
            for done, plain in rivals
        ]
        drawn.tables.append(([f"ours, against {baseline.name}", *head], rows))
    return drawn


def _answers(found: Found, metrics: Sequence[str], pairs: Sequence[tuple[str, str]]) -> Drawn:
    """The metrics of every part, with differences between the arms, then the difference of each pair within every arm."""
    tables: list[Table] = []
    for part, comparison in found:
        tables += _by_part([(part, comparison)], {m: _name(comparison, m) for m in metrics if m in comparison.keys})
        there = [pair for pair in pairs if set(pair) <= set(comparison.keys)]
        head = [
            "in each arm",
            *(f"{part.name}, {_name(comparison, one)}, minus {_name(comparison, other)}" for one, other in there),
        ]
        tables.append(
            (head, [[arm.name, *(_gap(arm, one, arm, other) for one, other in there)] for arm in comparison.arms])
        )
    return Drawn(tables, note=_MEANS)


def _gap(arm: Arm, metric: str, to: Arm, other: str) -> str:
    """One score minus another, paired by seed; of both, more is better."""
    gap = difference(arm.values(metric), to.values(other), higher_is_better=True)
    return "" if gap is None else f"{_number(gap.mean, gap.half, False, '+')} {gap.verdict}"


def _judged(comparison: Comparison, arm: Arm, key: str) -> Difference | None:
    """Each difference by itself, by Student's interval."""
    metric, baseline = comparison.declared.find(key), comparison.arms[0]
    if not comparable(arm, baseline, metric):
        return None
    return difference(arm.values(key), baseline.values(key), metric.higher_is_better)


def _name(comparison: Comparison, key: str) -> str:
    return comparison.declared.find(key).name


def merged_table(found: Found) -> Drawn:
    """The arms of all parts in one table, each named after its part, with differences to the first of all."""
    arms: list[Arm] = []
    for part, comparison in found:
        for arm in comparison.arms:
            name = arm.name if arm.config.norm == "ln" else f"{arm.name}, {part.name}"
            if name not in [each.name for each in arms]:
                arms.append(Arm(name, arm.config, arm.metrics, arm.losses, arm.folders))
    whole = Comparison(arms, found[0][1].declared)
    metrics = {m: _name(whole, m) for m in _MAIN if m in whole.keys}
    first = found[0][0]
    return Drawn(_by_part([(replace(first, name=first.shared or first.name), whole)], metrics), note=_MEANS)


def _shown(comparison: Comparison) -> dict[str, Any]:
    return diagnoses(comparison, shown_arms(comparison), min(comparison.arms[0].folders))[1]


def _by_part(found: Found, metrics: dict[str, str], per_cent: bool = False) -> list[Table]:
    """A row for each arm with means and intervals, columns for the metrics of every part, then paired differences."""
    columns = [(part, c, metric) for part, c in found for metric in metrics if metric in c.keys]
    head = [f"{part.name}, {metrics[metric]}" for part, _, metric in columns]
    names = list(dict.fromkeys(arm.name for _, comparison in found for arm in comparison.arms))
    rows, gaps = [], []
    for name in names:
        cells, against = [], []
        for _, comparison, metric in columns:
            arm = next((each for each in comparison.arms if each.name == name), None)
            mean = None if arm is None else arm.interval(metric)
            cells.append("" if mean is None else _number(mean.mean, mean.half, per_cent))
            gap = None if arm is None or arm is comparison.arms[0] else _judged(comparison, arm, metric)
            against.append("" if gap is None else f"{_number(gap.mean, gap.half, per_cent, '+')} {gap.verdict or ''}")
        rows.append([name, *cells])
        if any(against):
            gaps.append([name, *against])
    seeds = max(len(arm.metrics) for _, comparison in found for arm in comparison.arms)
    tables = [([f"ours, {seeds} seed{'s' * (seeds > 1)}", *head], rows)]
    return tables + ([([f"minus {names[0]}", *head], gaps)] if gaps else [])


def _number(mean: float, half: float, per_cent: bool, sign: str = "") -> str:
    scale, digits = (100, 2) if per_cent else (1, 3)
    text = f"{mean * scale:{sign}.{digits}f}"
    return text if math.isnan(half) else f"{text} ± {half * scale:.{digits}f}"


_MAIN = (
    "cls_linear_top1",
    "cls_linear_bn_top1",
    "cls_knn",
    "mean_linear_top1",
    "mean_knn",
    "cls_sts_average",
    "mean_sts_average",
    "cls_uniformity",
    "cls_effective_rank",
)
_MEANS = (
    "Ours: means over seeds ± 95 % interval (Student); differences are paired by seed, and better or worse means that the "
    "interval leaves out 0."
)
_PUBLISHED = (
    "Published figures have neither seeds nor intervals, and come from other sizes and data unless the scale is paper."
)
_NOTE = f"{_MEANS} {_PUBLISHED}"
_SWEEP_NOTE = (
    "Ours: means over seeds; every arm with its interval and its difference is in the figures and in the runs' folders. One seed "
    f"decides nothing. {_PUBLISHED}"
)
DRAWERS: dict[str, Callable[[Found], Drawn]] = {
    each.__name__: each
    for each in (
        image_table, text_table, molecule_table, uniformity_table, feature_figures, map_figures, loss_figures, lambda_figures,
        uniformity_figures, part_tables, seed_tables, probe_tables, pooling_tables, whitening_tables, merged_table,
    )
}  # fmt: skip
