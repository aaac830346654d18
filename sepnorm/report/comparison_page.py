"""The page of a comparison: the table with paired differences first, then what explains it."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.diagnosis import Points
from sepnorm.experiment import Arm, Comparison
from sepnorm.geometry import singular_values
from sepnorm.report import figures
from sepnorm.report.page import Section, table, write_page

#: How metrics are called in tables, in the order of the columns; others are in results.json.
NAMES = {
    "cls_linear_top1": "[CLS] linear",
    "cls_linear_bn_top1": "[CLS] linear, with BN",
    "cls_knn": "[CLS] kNN",
    "mean_linear_top1": "mean linear",
    "mean_knn": "mean kNN",
    "cls_uniformity": "[CLS] uniformity",
    "cls_effective_rank": "[CLS] effective rank",
    "loss": "final loss",
}


def shown_metrics(comparison: Comparison) -> list[str]:
    return [metric for metric in NAMES if metric in comparison.metrics]


def comparison_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and a row for each arm: means with 95 % intervals."""
    metrics = shown_metrics(comparison)
    header = ["arm", "seeds", *(NAMES[metric] for metric in metrics)]
    rows = [
        [arm.name, str(len(arm.metrics)), *(str(arm.interval(m) or "") for m in metrics)] for arm in comparison.arms
    ]
    return header, rows


def difference_rows(comparison: Comparison, to: Arm) -> tuple[list[str], list[list[str]]]:
    """Header and a row for each other arm: the paired difference, its interval and the verdict."""
    metrics = shown_metrics(comparison)
    header = [f"minus {to.name}", *(NAMES[metric] for metric in metrics)]
    rows = []
    for arm in comparison.arms:
        if arm is not to:
            gaps = [comparison.difference(arm, metric, to) for metric in metrics]
            rows.append([arm.name, *("" if gap is None else f"{gap} {gap.verdict}" for gap in gaps)])
    return header, rows


def headline(comparison: Comparison) -> str:
    """What the comparison says about the first metric, in a sentence for each arm."""
    metric = next(iter(shown_metrics(comparison)), None)
    if metric is None:
        return "The data have no labels, so only geometry was measured."
    said = []
    for arm in comparison.arms[1:]:
        gap = comparison.difference(arm, metric)
        if gap is not None:
            said.append(f"{arm.name} is {gap.verdict} ({gap}, {gap.count} seeds)")
    return f"{NAMES[metric]} against {comparison.arms[0].name}: {'; '.join(said)}."


def write_comparison(path: Path, title: str, comparison: Comparison) -> Path:
    """Writes the page, from the comparison and the embeddings in the folders of its first seed."""
    seed = min(comparison.arms[0].folders)
    clouds = {arm.name: embeddings(arm, seed) for arm in comparison.arms}
    tables = table(*comparison_rows(comparison))
    for arm in comparison.arms[:2]:
        tables += table(*difference_rows(comparison, arm))
    said = html.escape(headline(comparison))
    lead = f'<div class="verdict"><p><strong>Separate against shared norms</strong></p><p>{said}</p></div>{tables}'
    lead += (
        '<p class="quiet">Mean over seeds ± 95 % interval (Student). Differences are paired by seed: same data order, masks and '
        "initial weights; better and worse mean that the interval leaves out 0. Lower uniformity is better.</p>"
    )
    cls = {name: found["cls"] for name, found in clouds.items()}
    sections = [
        Section("Training", figures=[loss_curves(comparison), against(comparison)]),
        Section(
            "Shape of [CLS]",
            f"<p>Test samples of seed {seed}.</p>",
            [
                figures.spectrum({name: singular_values(rows).tolist() for name, rows in cls.items()}),
                figures.cosines(cls),
            ],
        ),
        Section("Features", "<p>All components of [CLS].</p>", [figures.features(cls)]),
    ]
    best = comparison.arms[-1]
    maps = [figures.embedding_map(points(clouds[arm.name]), arm.name) for arm in (comparison.arms[0], best)]
    sections.append(Section("Map", "<p>[CLS] of test samples, placed by t-SNE; colours are labels.</p>", maps))
    return write_page(path, title, lead, sections)


def embeddings(arm: Arm, seed: int) -> dict[str, Tensor]:
    import numpy

    with numpy.load(arm.folders[seed] / "embeddings.npz", allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def points(cloud: dict[str, Tensor]) -> Points:
    labels = [str(int(label)) for label in cloud["labels"]] if "labels" in cloud else None
    names = [f"sample {i}" + (f", label {labels[i]}" if labels else "") for i in range(len(cloud["cls"]))]
    every = torch.linspace(0, len(names) - 1, min(len(names), 2000)).long().tolist()
    return Points(cloud["cls"][every], [labels[i] for i in every] if labels else None, [names[i] for i in every])


def loss_curves(comparison: Comparison) -> Any:
    """Loss by step, a line for each arm: the mean over seeds."""
    found = figures.figure("Loss: lower is a better reconstruction", "step", "loss")
    for arm, colour in zip(comparison.arms, figures.COLOURS * 9, strict=False):
        runs = list(arm.losses.values())
        length = min(len(run) for run in runs)
        means = [sum(run[i][1] for run in runs) / len(runs) for i in range(length)]
        found.add_scatter(
            x=[runs[0][i][0] for i in range(length)], y=means, name=arm.name, mode="lines", line={"color": colour}
        )
    return found


def against(comparison: Comparison) -> Any:
    """Accuracy of the first metric against uniformity of [CLS], a point for each seed."""
    metric = next(iter(shown_metrics(comparison)))
    found = figures.figure(
        "Uniformity against the probe: spread-out [CLS] to the left", "[CLS] uniformity", NAMES[metric]
    )
    for arm, colour in zip(comparison.arms, figures.COLOURS * 9, strict=False):
        seeds = sorted(arm.values(metric).keys() & arm.values("cls_uniformity").keys())
        found.add_scatter(
            x=[arm.values("cls_uniformity")[seed] for seed in seeds],
            y=[arm.values(metric)[seed] for seed in seeds],
            text=[f"{arm.name}, seed {seed}" for seed in seeds],
            name=arm.name,
            mode="markers",
            marker={"size": 9, "color": colour},
            hovertemplate="%{text}<br>%{x:.3f}, %{y:.3f}<extra></extra>",
        )
    return found
