"""Sections of a comparison's page for text: tasks, similarity beside people's, alignment, nearest neighbours."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.experiment.comparison import Arm
from sepnorm.report.arms import styles
from sepnorm.report.figures import figure
from sepnorm.report.page import Section, table
from sepnorm.report.runs import embeddings, names_of

_BINS, _POINTS = 10, 400  # bins of people's scores; pairs drawn as points
# sentences whose neighbours are shown; neighbours of each; characters of a sentence
_ASKED, _NEAREST, _LONG = 5, 2, 160


def tasks(arms: Sequence[Arm], seed: int) -> Section | None:
    """Table of scores for each set, by [CLS], mean of tokens and moments."""
    keys = list(dict.fromkeys(key for arm in arms for found in arm.metrics.values() for key in found))
    both = [key.removeprefix("cls_") for key in keys if key.startswith("cls_")]
    names = [name for name in both if f"mean_{name}" in keys]  # geometry is measured for [CLS] only
    if not names:
        return None
    lines = []
    for pooling, said in (("cls", "[CLS]"), ("mean", "mean of tokens"), ("moments", "moments")):
        for arm in arms:
            cells = [str(arm.interval(f"{pooling}_{name}") or "") for name in names]
            if any(cells):
                lines.append([arm.name, said, *cells])
    text = (
        "<p>Spearman's correlation of cosines with people's scores for STS sets and Lee's news, accuracy of a logistic "
        "regression for transfer sets; mean over seeds ± 95 % interval. <q>sts before</q> is that of the model before "
        f"training, its norms converted and calibrated.</p><p>{html.escape(_selection(arms))}</p>"
    )
    return Section(
        "Tasks", text + table(["arm", "by", *(name.replace("_", " ") for name in names)], lines), _steps(arms, seed)
    )


def similarity(arms: Sequence[Arm], seed: int) -> Section | None:
    """Cosines of rated pairs against people's scores."""
    found = figure(
        "Similarity against people's scores: a steeper line tells pairs apart", "people's score", "cosine of [CLS]"
    )
    found.update_layout(hovermode="closest")
    looks = styles(arm.name for arm in arms)
    for arm in arms:
        pairs = _arrays(arm, seed, "pairs")
        if pairs is None:
            continue
        x, y = pairs["human"].float(), pairs["cosine"].float()
        some = torch.linspace(0, len(x) - 1, min(len(x), _POINTS)).long()
        found.add_scatter(
            x=x[some].tolist(),
            y=y[some].tolist(),
            mode="markers",
            marker=looks[arm.name].marker | {"size": 4, "opacity": 0.3},
            showlegend=False,
            legendgroup=arm.name,
            hoverinfo="skip",
        )
        middles, means, deviations = binned(x, y)
        found.add_scatter(
            x=middles,
            y=means,
            error_y={"type": "data", "array": deviations},
            name=arm.name,
            legendgroup=arm.name,
            mode="lines+markers",
            line=looks[arm.name].line,
            marker=looks[arm.name].marker,
            meta=looks[arm.name].kind,
        )
    if not found.data:
        return None
    text = (
        f"<p>Pairs of the rated sets of seed {seed}; scores are put on a scale from 0 to 1 in each set. Lines are means with "
        "standard deviations in ten bins.</p>"
    )
    return Section("Similarity beside people's", text, [found])


def binned(x: Tensor, y: Tensor) -> tuple[list[float], list[float], list[float]]:
    """For non-empty bins of ``x`` (count,) from 0 to 1: centres, and mean and deviation of ``y``."""
    numbers = (x * _BINS).long().clamp(0, _BINS - 1)
    lots = [(number, y[numbers == number]) for number in range(_BINS)]
    lots = [(number, lot) for number, lot in lots if len(lot)]
    middles = [(number + 0.5) / _BINS for number, _ in lots]
    return middles, [float(lot.mean()) for _, lot in lots], [float(lot.std(correction=0)) for _, lot in lots]


def alignment_and_uniformity(arms: Sequence[Arm], seed: int) -> Section | None:
    """Both measures for every seed; the lower left is best."""
    x, y = "cls_uniformity", "cls_alignment"
    found = figure("Alignment against uniformity: both are better where they are lower", "uniformity", "alignment")
    found.update_layout(hovermode="closest")
    looks = styles(arm.name for arm in arms)
    for arm in arms:
        seeds = sorted(arm.values(x).keys() & arm.values(y).keys())
        if seeds:
            found.add_scatter(
                x=[arm.values(x)[s] for s in seeds],
                y=[arm.values(y)[s] for s in seeds],
                text=[f"{arm.name}, seed {s}" for s in seeds],
                name=arm.name,
                mode="markers",
                marker=looks[arm.name].marker | {"size": 9},
                meta=looks[arm.name].kind,
                hovertemplate="%{text}<br>%{x:.3f}, %{y:.3f}<extra></extra>",
            )
    if not found.data:
        return None
    text = (
        "<p>Alignment is the mean squared distance of [CLS] of two sentences that people found to mean the same (above 0.8 of "
        "their set's range of scores); uniformity is of [CLS] of sentences held out of training.</p>"
    )
    return Section("Alignment and uniformity", text, [found])


def neighbours(arms: Sequence[Arm], seed: int) -> Section | None:
    """Nearest neighbours of some held-out sentences by the cosine of [CLS], for each arm."""
    columns: dict[str, list[str]] = {}
    asked: list[str] = []
    for arm in arms:
        texts = names_of(arm.folders[seed])
        if texts is None:
            continue
        unit = F.normalize(embeddings(arm.folders[seed] / "embeddings.npz")["cls"].float(), dim=1)
        rows = torch.arange(min(_ASKED, len(texts))) * len(texts) // min(_ASKED, len(texts))
        asked = [_short(texts[row]) for row in rows.tolist()]
        columns[arm.name] = [
            " ".join(f"{cosine:.2f} {_short(texts[place])}" for cosine, place in near)
            for near in nearest_of(unit, rows)
        ]
    if not columns:
        return None
    text = f"<p>Sentences held out of training, with their {_NEAREST} nearest others and the cosines, seed {seed}.</p>"
    lines = [[sentence, *(column[i] for column in columns.values())] for i, sentence in enumerate(asked)]
    return Section("Nearest neighbours", text + table(["sentence", *columns], lines, mark=lambda cell: "sentence"))


def nearest_of(unit: Tensor, rows: Tensor) -> list[list[tuple[float, int]]]:
    """Cosines and indices of the nearest others, for some rows of unit vectors (count, dim)."""
    cosines = unit[rows] @ unit.T
    cosines[torch.arange(len(rows)), rows] = -torch.inf
    best = cosines.topk(min(_NEAREST, len(unit) - 1), dim=1)
    return [list(zip(*pair, strict=True)) for pair in zip(best.values.tolist(), best.indices.tolist(), strict=True)]


def _selection(arms: Sequence[Arm]) -> str:
    if any(getattr(arm.config, "development", None) is not None for arm in arms):
        return "Each run's weights are those of the step with the best score on the development set."
    return "No development set was given, so nothing was selected: the weights are those of the last step."


def _steps(arms: Sequence[Arm], seed: int) -> list[Any]:
    """The score on the development set by step, if there is one."""
    found = figure(f"Score on the development set, seed {seed}", "step", "Spearman's correlation")
    looks = styles(arm.name for arm in arms)
    for arm in arms:
        if (kept := _arrays(arm, seed, "development")) is not None:
            x, y = kept["steps"].tolist(), kept["scores"].tolist()
            look = looks[arm.name]
            line, marker = look.line, look.marker
            found.add_scatter(x=x, y=y, name=arm.name, mode="lines+markers", line=line, marker=marker, meta=look.kind)
    return [found] if found.data else []


def _arrays(arm: Arm, seed: int, name: str) -> dict[str, Tensor] | None:
    path = arm.folders[seed] / f"{name}.npz"
    return embeddings(path) if path.is_file() else None


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1].rstrip()}…"


#: In the order of the page.
SECTIONS = (tasks, similarity, alignment_and_uniformity, neighbours)
