"""The paper's tables and figures from the comparisons of a study, with the published figures beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.intervals import interval
from sepnorm.geometry import uniformity
from sepnorm.report.comparison_figures import against_lambda, against_uniformity, loss_curves
from sepnorm.report.comparison_page import diagnoses, feature_section, map_section, shape_section
from sepnorm.report.page import Section
from sepnorm.report.runs import embeddings
from sepnorm.report.selection import shown_arms
from sepnorm.report.tables import Table
from sepnorm.studies import published
from sepnorm.studies.drawn import MEANS, Drawn, Found, by_part, name_of, number
from sepnorm.studies.own_drawing import (
    merged_table,
    part_tables,
    pooling_tables,
    probe_tables,
    seed_tables,
    step_tables,
    whitening_tables,
)
from sepnorm.studies.parts import Part


def image_table(found: Found) -> Drawn:
    """Top-1 and top-5 of linear probes, with a column for each data set, and differences to the first arm."""
    metrics = {"cls_linear_top1": "top-1", "cls_linear_top5": "top-5"}
    return Drawn([*by_part(found, metrics, per_cent=True), published.IMAGES], note=_NOTE)


def text_table(found: Found) -> Drawn:
    """Spearman's correlation on each set and averages, with a row for each part and arm."""
    tables: list[Table] = []
    for part, comparison in found:
        known = comparison.declared
        sets = [key for key in comparison.keys if known.is_single(key) and known.find(key).shown]
        averages = [m for m in ("cls_sts_average", "cls_transfer_average") if m in comparison.keys]
        metrics = {m: m.removeprefix("cls_").replace("_", " ") for m in [*sets, *averages]}
        tables += by_part([(part, comparison)], metrics, per_cent=True)
    return Drawn([*tables, published.TEXT], note=_NOTE)


def molecule_table(found: Found) -> Drawn:
    """Test errors, with a column for each data set."""
    metrics = {"test_mae": "test MAE", "valid_mae": "validation MAE", "test_roc_auc": "test ROC AUC"}
    return Drawn([*by_part(found, metrics), published.MOLECULES], note=_NOTE)


def uniformity_table(found: Found) -> Drawn:
    """Uniformity of [CLS] / of tokens, rows by data set and columns by norm, means over seeds."""
    names = [arm.config.norm for arm in found[0][1].arms]
    rows = [[part.name, *(_uniformities(arm) for arm in comparison.arms)] for part, comparison in found]
    tables: list[Table] = [(["ours, [CLS] / tokens", *names], rows)]
    tables += by_part(found, {"cls_uniformity": "uniformity of [CLS]"})
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
    """Rows by norm, columns by target of the uniformity loss; a cell lists the means for rising lambda."""
    cells: dict[str, dict[str, list[str]]] = {}
    weights: dict[float, None] = {}
    for arm in sorted(comparison.arms, key=lambda arm: arm.config.uniformity_weight):
        weight, mean = arm.config.uniformity_weight, arm.interval(metric)
        if mean is not None:
            column = arm.config.uniformity_on if weight else ""
            shown = number(mean.mean, math.nan, per_cent)
            cells.setdefault(arm.config.norm, {}).setdefault(column, []).append(shown)
            weights |= {weight: None} if weight else {}
    columns = {"": "λ=0", "tokens": "on tokens", "cls": "on [CLS]", "both": "on both"}
    head = [
        f"ours, {part.name}, {name_of(comparison, metric)}, λ={' / '.join(f'{each:g}' for each in weights)}",
        *columns.values(),
    ]
    return head, [[norm, *(" / ".join(row.get(column, [])) for column in columns)] for norm, row in cells.items()]


def _shown(comparison: Comparison) -> dict[str, Any]:
    return diagnoses(comparison, shown_arms(comparison), min(comparison.arms[0].folders))[1]


_PUBLISHED = (
    "Published figures have neither seeds nor intervals, and come from other sizes and data unless the scale is paper."
)
_NOTE = f"{MEANS} {_PUBLISHED}"
_SWEEP_NOTE = (
    "Ours: means over seeds; every arm with its interval and its difference is in the figures and in the runs' folders. One seed "
    f"decides nothing. {_PUBLISHED}"
)
DRAWERS: dict[str, Callable[[Found], Drawn]] = {
    each.__name__: each
    for each in (
        image_table, text_table, molecule_table, uniformity_table, feature_figures, map_figures, loss_figures, lambda_figures,
        uniformity_figures, part_tables, step_tables, seed_tables, probe_tables, pooling_tables, whitening_tables, merged_table,
    )
}  # fmt: skip
