"""Comparisons and diagnoses that were not run, to make pages of."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import torch
from models import bert, sentences

from sepnorm.domains.diagnosis import Diagnosis, Points
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.domain import METRICS
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.geometry import summary
from sepnorm.report.verdict import judge
from sepnorm.surgery.inspection import inspect

THREE = [{"norm": norm} for norm in ("ln", "bn", "bn+bn")]
SWEEP = [
    {"norm": norm, "uniformity_weight": weight, "uniformity_on": on}
    for norm in ("ln", "bn+bn")
    for weight, on in ((0, "cls"), (0.1, "cls"), (0.01, "cls"), (1, "both"))
]


def comparison(folder, arms=THREE, seeds: int = 3, labels: bool = True) -> Comparison:
    """Every arm is better than the one before it, by the probe and by uniformity."""
    rng = np.random.default_rng(0)
    found = []
    for number, changes in enumerate(arms):
        config = PRESETS["demo"].changed(changes)
        arm = Arm(config.arm, config)
        for seed in range(seeds):
            arm.metrics[seed] = {
                "cls_uniformity": -1.0 - number - 0.01 * number * seed,
                "cls_effective_rank": 3.0 + number,
                "loss": 0.5,
            }
            if labels:
                arm.metrics[seed]["cls_linear_top1"] = 0.8 + 0.05 * number + 0.01 * seed + 0.001 * number * seed
            arm.losses[seed] = [(step, 1 / step) for step in range(1, 20)]
            arm.folders[seed] = folder / f"{number}-{seed}"
            arm.folders[seed].mkdir(parents=True)
            cloud = {"cls": rng.standard_normal((60, 8)), "mean": rng.standard_normal((60, 8))}
            cloud |= {"tokens": rng.standard_normal((200, 8))} | ({"labels": rng.integers(0, 3, 60)} if labels else {})
            np.savez(arm.folders[seed] / "embeddings.npz", **cloud)
        found.append(arm)
    return Comparison(found, METRICS)


def with_details(found: Comparison) -> Comparison:
    """The same with layers and reconstructions in the folders."""
    layers = asdict(inspect(bert(), [sentences(16)]))
    rng = np.random.default_rng(0)
    for arm in found.arms:
        for folder in arm.folders.values():
            (folder / "layers.json").write_text(json.dumps(layers))
            images = {key: rng.random((8, 1, 8, 8)).astype("float32") for key in ("original", "reconstructed")}
            np.savez(folder / "reconstructions.npz", mask=rng.integers(0, 2, (8, 16)).astype("float32"), **images)
    return found


def of_model() -> Diagnosis:
    model = bert()
    data = [sentences(16) for _ in range(4)]
    layers = inspect(model, data)
    x = torch.randn(64, 16)
    names = [f"sentence {i} </script><img src=x onerror=alert(1)>" for i in range(64)]
    found = summary(x)
    verdict = judge(found, target="model", data="lines.txt", layers=layers)
    return Diagnosis("a/long/path/" + "x" * 80, "lines.txt", verdict, found, found, layers, Points(x, None, names), x)
