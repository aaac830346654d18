"""Figures of the geometry of [CLS] during training: when the arms of a comparison diverge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sepnorm.experiment.comparison import Arm
from sepnorm.files import read_arrays
from sepnorm.report.arms import styles
from sepnorm.report.figures import figure

_MEASURES = {
    "cls_uniformity": ("Uniformity of [CLS] over training: lower is more even", "uniformity"),
    "cls_effective_rank_centered": ("Centred effective rank of [CLS] over training", "effective rank, centred"),
}


def progress_curves(arms: Sequence[Arm], measures: Mapping[str, tuple[str, str]] = _MEASURES) -> list[Any]:
    """One figure per measure, one line per arm, the mean over seeds. Empty if a run has no readings.

    ``measures`` maps names in the readings to the titles of figure and axis.
    """
    kept = {arm.name: list(readings(arm).values()) for arm in arms}
    if not all(kept.values()):
        return []
    found = []
    for key, (title, axis) in measures.items():
        drawn = figure(title, "step", axis, f"Mean over seeds by step of training: {axis}.")
        looks = styles(kept)
        for name, seeds in kept.items():
            count = min(len(each["steps"]) for each in seeds)
            values = torch.stack([each[key][:count] for each in seeds]).mean(0)
            steps = seeds[0]["steps"][:count].tolist()
            look = looks[name]
            drawn.add_scatter(
                x=steps,
                y=values.tolist(),
                name=name,
                mode="lines+markers",
                line=look.line,
                marker=look.marker,
                meta=look.kind,
            )
        found.append(drawn)
    return found


def readings(arm: Arm) -> dict[int, dict[str, Tensor]]:
    """``steps`` and measures during training, by seed and name; empty if a seed has none."""
    files = {seed: folder / "monitor.npz" for seed, folder in arm.folders.items()}
    return {seed: read_arrays(file) for seed, file in files.items()} if all(f.is_file() for f in files.values()) else {}
