"""What a run left in its folder, read back as a diagnosis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.diagnosis import Diagnosis, Points
from sepnorm.experiment import Arm
from sepnorm.geometry import summary
from sepnorm.inspection import Inspection, PartStatistics, SideStatistics, SiteStatistics
from sepnorm.verdict import judge

_SHOWN = 2000  # points of the map


def diagnosis_of(arm: Arm, seed: int) -> Diagnosis:
    """The diagnosis of an arm's test samples; without layers or tokens where the run kept none."""
    folder = arm.folders[seed]
    cloud = embeddings(folder / "embeddings.npz")
    layers = read_layers(folder / "layers.json")
    found = summary(cloud["cls"])
    verdict = judge(found, target=str(folder / "model"), data=arm.config.data, layers=layers)
    mean = summary(cloud["mean"]) if "mean" in cloud else None
    return Diagnosis(
        arm.name, arm.config.data, verdict, found, mean, layers, points(cloud, names_of(folder)), cloud.get("tokens")
    )


def embeddings(path: Path) -> dict[str, Tensor]:
    import numpy

    with numpy.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def names_of(folder: Path) -> list[str] | None:
    """What the test samples of a run are called; None where it kept no names."""
    path = folder / "names.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def points(cloud: dict[str, Tensor], names: list[str] | None = None) -> Points:
    """Some test samples for the map, with labels where there are some."""
    labels = [f"{float(label):g}" for label in cloud["labels"]] if "labels" in cloud else None
    every = torch.linspace(0, len(cloud["cls"]) - 1, min(len(cloud["cls"]), _SHOWN)).long().tolist()
    said = [names[i] if names else f"sample {i}" + (f", label {labels[i]}" if labels else "") for i in every]
    return Points(cloud["cls"][every].float(), [labels[i] for i in every] if labels else None, said)


def read_layers(path: Path) -> Inspection | None:
    """The inspection in a run's ``layers.json``; None where there is no such file."""
    if not path.is_file():
        return None
    kept = json.loads(path.read_text(encoding="utf-8"))
    return Inspection(kept["model"], kept["samples"], [_site(site) for site in kept["sites"]])


def _site(kept: dict[str, Any]) -> SiteStatistics:
    own = {key: kept[key] for key in ("path", "norm", "degenerate", "discrepancy")}
    return SiteStatistics(**_side(kept), **own, after=SideStatistics(**_side(kept["after"])))


def _side(kept: dict[str, Any]) -> dict[str, Any]:
    parts = {part: PartStatistics(**kept[part]) for part in ("cls", "tokens")}
    return parts | {"cls_token_cosine": kept["cls_token_cosine"]}
