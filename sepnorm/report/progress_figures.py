"""How [CLS] lay in space while the arms of a comparison trained: when they part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sepnorm.experiment.comparison import Arm
from sepnorm.files import read_arrays
from sepnorm.report.figures import COLOURS, figure

_MEASURES = {
    "cls_uniformity": ("Uniformity of [CLS] over training: lower is more even", "uniformity"),
    "cls_effective_rank_centered": ("Centred effective rank of [CLS] over training", "effective rank, centred"),
}


def progress_curves(arms: Sequence[Arm]) -> list[Any]:
    """A figure for each measure, a line for each arm, the mean over seeds; none where a run kept no readings."""
    readings = {arm.name: _readings(arm) for arm in arms}
    if not all(readings.values()):
        return []
    found = []
    for key, (title, axis) in _MEASURES.items():
        drawn = figure(title, "step", axis)
        for (name, seeds), colour in zip(readings.items(), COLOURS * 9, strict=False):
            count = min(len(each["steps"]) for each in seeds)
            values = torch.stack([each[key][:count] for each in seeds]).mean(0)
            steps = seeds[0]["steps"][:count].tolist()
            drawn.add_scatter(x=steps, y=values.tolist(), name=name, mode="lines+markers", line={"color": colour})
        found.append(drawn)
    return found


def _readings(arm: Arm) -> list[dict[str, Tensor]]:
    """Of every seed; empty where one has none."""
    files = [folder / "monitor.npz" for folder in arm.folders.values()]
    return [read_arrays(file) for file in files] if files and all(file.is_file() for file in files) else []
