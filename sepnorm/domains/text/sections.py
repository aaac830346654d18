"""What the page of a comparison shows of text alone: tasks, similarity beside people's, alignment, nearest neighbours."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.experiment.comparison import Arm
from sepnorm.report.figures import COLOURS, figure
from sepnorm.report.page import Section, table
from sepnorm.report.runs import embeddings, names_of

_BINS, _POINTS = 10, 400  # of people's scores; pairs that are drawn one by one
_ASKED, _NEAREST, _LONG = 5, 2, 160  # sentences whose neighbours are shown, how many each, and letters of one


def tasks(arms: Sequence[Arm], seed: int) -> Section | None:
    """A score for each set, by [CLS] and by the mean of tokens."""
    keys = list(dict.fromkeys(key for arm in arms for found in arm.metrics.values() for key in found))
    both = [key.removeprefix("cls_") for key in keys if key.startswith("cls_")]
    names = [name for name in both if f"mean_{name}" in keys]  # geometry is of [CLS] alone
    if not names:
        return None
    lines = []
    for pooling, said in (("cls", "[CLS]"), ("mean", "mean of tokens")):
        for arm in arms:
            cells = [str(arm.interval(f"{pooling}_{name}") or "") for name in names]
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
    """The cosine of rated pairs against what people said of them."""
    found = figure(
        "Similarity against people's scores: a steeper line tells pairs apart", "people's score", "cosine of [CLS]"
    )
    found.update_layout(hovermode="closest")
    for arm, colour in zip(arms, COLOURS, strict=False):
        pairs = _arrays(arm, seed, "pairs")
        if pairs is None:
            continue
        x, y = pairs["human"].float(), pairs["cosine"].float()
        some = torch.linspace(0, len(x) - 1, min(len(x), _POINTS)).long()
        found.add_scatter(
            x=x[some].tolist(),
            y=y[some].tolist(),
            mode="markers",
            marker={"size": 4, "color": colour, "opacity": 0.3},
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
            line={"color": colour},
        )
    if not found.data:
        return None
    text = (
        f"<p>Pairs of the rated sets of seed {seed}; scores are put on a scale from 0 to 1 in each set. Lines are means with "
        "standard deviations in ten bins.</p>"
    )
    return Section("Similarity beside people's", text, [found])


def binned(x: Tensor, y: Tensor) -> tuple[list[float], list[float], list[float]]:
    """For bins of ``x`` (count) from 0 to 1 that hold some: their middles, and mean and deviation of ``y`` in them."""
    numbers = (x * _BINS).long().clamp(0, _BINS - 1)
    lots = [(number, y[numbers == number]) for number in range(_BINS)]
    lots = [(number, lot) for number, lot in lots if len(lot)]
    middles = [(number + 0.5) / _BINS for number, _ in lots]
    return middles, [float(lot.mean()) for _, lot in lots], [float(lot.std(correction=0)) for _, lot in lots]


def alignment_and_uniformity(arms: Sequence[Arm], seed: int) -> Section | None:
    """Both for every seed; the lower left is where embeddings are wanted."""
    x, y = "cls_uniformity", "cls_alignment"
    found = figure("Alignment against uniformity: both are better where they are lower", "uniformity", "alignment")
    found.update_layout(hovermode="closest")
    for arm, colour in zip(arms, COLOURS, strict=False):
        seeds = sorted(arm.values(x).keys() & arm.values(y).keys())
        if seeds:
            found.add_scatter(
                x=[arm.values(x)[s] for s in seeds],
                y=[arm.values(y)[s] for s in seeds],
                text=[f"{arm.name}, seed {s}" for s in seeds],
                name=arm.name,
                mode="markers",
                marker={"size": 9, "color": colour},
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
    """For some held-out sentences the nearest others, by the cosine of [CLS], under each arm."""
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
    """For some rows of unit vectors (count, dim) the cosines and numbers of the nearest others."""
    cosines = unit[rows] @ unit.T
    cosines[torch.arange(len(rows)), rows] = -torch.inf
    best = cosines.topk(min(_NEAREST, len(unit) - 1), dim=1)
    return [list(zip(*pair, strict=True)) for pair in zip(best.values.tolist(), best.indices.tolist(), strict=True)]


def _selection(arms: Sequence[Arm]) -> str:
    if any(getattr(arm.config, "development", None) is not None for arm in arms):
        return "Each run's weights are those of the step with the best score on the development set."
    return "No development set was given, so nothing was selected: the weights are those of the last step."


def _steps(arms: Sequence[Arm], seed: int) -> list[Any]:
    """The score on the development set by step, where there is one."""
    found = figure(f"Score on the development set, seed {seed}", "step", "Spearman's correlation")
    for arm, colour in zip(arms, COLOURS, strict=False):
        if (kept := _arrays(arm, seed, "development")) is not None:
            x, y = kept["steps"].tolist(), kept["scores"].tolist()
            found.add_scatter(x=x, y=y, name=arm.name, mode="lines+markers", line={"color": colour})
    return [found] if found.data else []


def _arrays(arm: Arm, seed: int, name: str) -> dict[str, Tensor] | None:
    path = arm.folders[seed] / f"{name}.npz"
    return embeddings(path) if path.is_file() else None


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1].rstrip()}…"


#: In the order in which the page shows them.
SECTIONS = (tasks, similarity, alignment_and_uniformity, neighbours)
