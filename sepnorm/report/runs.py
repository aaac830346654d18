"""Reads the files of a finished run as a diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.experiment.comparison import Arm
from sepnorm.files import intact, read_arrays, read_json
from sepnorm.geometry import summary
from sepnorm.report.diagnosis import Diagnosis, Points
from sepnorm.report.verdict import judge
from sepnorm.surgery.inspection import Inspection, PartStatistics, SideStatistics, SiteStatistics

_SHOWN = 2000  # points of the map


def diagnosis_of(arm: Arm, seed: int) -> Diagnosis:
    """The diagnosis of an arm's test samples, without layers or tokens if the run saved none."""
    folder = arm.folders[seed]
    cloud = embeddings(folder / "embeddings.npz")
    layers = read_layers(folder / "layers.json")
    with intact(folder / "embeddings.npz"):
        found, shown = summary(cloud["cls"]), points(cloud, names_of(folder))
        mean = summary(cloud["mean"]) if "mean" in cloud else None
    verdict = judge(found, target=str(folder / "model"), data=arm.config.data, layers=layers)
    return Diagnosis(arm.name, arm.config.data, verdict, found, mean, layers, shown, cloud.get("tokens"))


def embeddings(path: Path) -> dict[str, Tensor]:
    """The saved arrays of a run, by name."""
    return read_arrays(path)


def names_of(folder: Path) -> list[str] | None:
    """Names of a run's test samples; None if it saved none."""
    path = folder / "names.json"
    return read_json(path) if path.is_file() else None


def points(cloud: dict[str, Tensor], names: list[str] | None = None) -> Points:
    """Some test samples for the map, with labels if there are any."""
    labels = [f"{float(label):g}" for label in cloud["labels"]] if "labels" in cloud else None
    every = torch.linspace(0, len(cloud["cls"]) - 1, min(len(cloud["cls"]), _SHOWN)).long().tolist()
    said = [names[i] if names else f"sample {i}" + (f", label {labels[i]}" if labels else "") for i in every]
    return Points(cloud["cls"][every].float(), [labels[i] for i in every] if labels else None, said)


def read_layers(path: Path) -> Inspection | None:
    """The inspection in a run's ``layers.json``; None without this file."""
    if not path.is_file():
        return None
    kept = read_json(path)
    with intact(path):
        return Inspection(kept["model"], kept["samples"], [_site(site) for site in kept["sites"]])


def _site(kept: dict[str, Any]) -> SiteStatistics:
    return SiteStatistics(
        **_side(kept),
        path=str(kept["path"]),
        norm=str(kept["norm"]),
        degenerate=bool(kept["degenerate"]),
        after=SideStatistics(**_side(kept["after"])),
        discrepancy=None if kept["discrepancy"] is None else _number(kept["discrepancy"]),
    )


def _side(kept: dict[str, Any]) -> dict[str, Any]:
    parts = {
        part: PartStatistics(**{key: _number(value) for key, value in kept[part].items()}) for part in ("cls", "tokens")
    }
    return parts | {"cls_token_cosine": _number(kept["cls_token_cosine"])}


def _number(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value
