"""What a study would take, before it is begun: runs, steps, parameters, time from a short measurement, and disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sepnorm.domains import open_domain
from sepnorm.experiment.launchers import places
from sepnorm.experiment.runs import finished, slug, using_threads
from sepnorm.studies.plan import Part
from sepnorm.studies.running import configs_of
from sepnorm.training.configs import RunConfig

_STEPS = 2  # that are measured
_FEW, _SHORT = 4, 0.2  # samples of each, unless a step of these is so many seconds short
_LEAST = 0.25  # share of a step that grows with its samples, whatever the noise says
_BYTES = 4  # of a parameter; a checkpoint has three of each: the weight and Adam's two
Batch = Callable[[int], dict[str, Any]]


def estimate(parts: Sequence[Part], given: Mapping[str, Any], folder: Path) -> tuple[list[str], list[list[str]]]:
    """Header and a row for each part."""
    header = ["part", "runs", "finished", "steps a run", "parameters", "hours a run", "hours in all", "disk, GB"]
    rows = []
    measured: dict[str, tuple[float, int]] = {}
    for part in parts:
        base, configs = configs_of(part, given)
        seeded = [config.changed({"seed": seed}) for config in configs for seed in range(part.seeds)]
        done = sum(
            finished(each, folder / part.folder / "runs" / f"{slug(each.arm)}-seed{each.seed}") for each in seeded
        )
        alike = configs[-1].changed({"data": "", "seed": 0}).model_dump_json()  # a model's size is not that of its data
        if alike not in measured:
            model, batch = open_domain(part.domain).trial(configs[-1])
            with using_threads(base):
                measured[alike] = measure(model, batch, base), sum(weight.numel() for weight in model.parameters())
        (seconds, parameters), steps = measured[alike], steps_of(base, part.samples)
        side_by_side = min(places(base), len(seeded))
        hours = seconds * steps / 3600
        left = len(seeded) - done
        disk = (
            parameters * _BYTES * (len(seeded) + 6 * side_by_side) / 1e9
        )  # every model, and two checkpoints of those under way
        said = [*map(_hours, (hours, hours * math.ceil(left / side_by_side))), f"{disk:.2g}"]
        rows.append([part.name, str(len(seeded)), str(done), f"{steps:,}", f"{parameters:,}", *said])
    return header, rows


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def steps_of(config: RunConfig, samples: int) -> int:
    """How many steps a run has on so many samples."""
    batches = config.epochs * max(1, samples // min(config.batch_size, samples))
    return min(math.ceil(batches / config.accumulation), config.max_steps or batches)


def measure(model: nn.Module, batch: Batch, config: RunConfig) -> float:
    """Seconds of a training step: measured on made-up samples, or on few and twice as many where all would take long."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.train().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def seconds(count: int, steps: int) -> float:
        begun = _now(device)
        for _ in range(steps):
            given = {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch(count).items()}
            model(**given)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        return (_now(device) - begun) / steps

    count = min(_FEW, config.batch_size)
    seconds(count, 1)  # the first is slower
    if (short := seconds(count, _STEPS)) < _SHORT or count == config.batch_size:
        return seconds(config.batch_size, _STEPS) * config.accumulation
    # a part of a step, such as the optimizer's, does not grow with the samples
    long = seconds(2 * count, _STEPS)
    growth = max(long - short, _LEAST * long / 2) / count
    return (long + growth * (config.batch_size - 2 * count)) * config.accumulation


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
