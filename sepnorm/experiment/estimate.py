"""Estimates the cost of runs: time from a short measurement, parameters, and disk space."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sepnorm.experiment.launchers.local import places
from sepnorm.experiment.runs import using_threads
from sepnorm.training.configs import RunConfig
from sepnorm.training.devices import device_of

_STEPS = 2  # steps that are measured
# samples of a short step; a whole batch is measured instead if a short step takes less than so many seconds
_FEW, _SHORT = 4, 0.2
_LEAST = 0.25  # smallest share of a step that is assumed to grow with its samples, against noise
_BYTES = 4  # of a parameter; a checkpoint has three numbers for each: the weight and Adam's two moments
Batch = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Cost:
    """The cost of ``runs`` runs of ``steps`` steps, ``done`` of which are finished; hours count training only."""

    runs: int
    done: int
    steps: int
    parameters: int
    hours: float  # of one run
    hours_in_all: float
    disk: float  # in gigabytes

    def __str__(self) -> str:
        finished = f", {self.done} of them finished" if self.done else ""
        return (
            f"{self.runs} run{'s' * (self.runs > 1)}{finished}, {self.steps:,} steps each, {self.parameters:,} parameters. "
            f"Training takes about {_time(self.hours)} a run and {_time(self.hours_in_all)} in all, by a short measurement here; "
            f"reading, probing and drawing come on top. Disk: about {self.disk:.2g} GB."
        )


def _time(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:,.0f} days"
    if hours >= 1.5:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.0f} minutes" if hours >= 1.5 / 60 else f"{max(1, hours * 3600):.0f} seconds"


def estimate_runs(trial: tuple[nn.Module, Batch], config: RunConfig, steps: int, runs: int = 1, done: int = 0) -> Cost:
    """Measures a few steps and estimates the cost of runs. ``trial``: a run's model, and made-up batches for it."""
    model, batch = trial
    with using_threads(config):
        seconds = measure(model, batch, config)
    return cost_of(seconds, sum(weight.numel() for weight in model.parameters()), config, steps, runs, done)


def cost_of(seconds: float, parameters: int, config: RunConfig, steps: int, runs: int, done: int) -> Cost:
    """The cost, from the seconds of one step."""
    side_by_side = min(places(config), runs)
    hours = seconds * steps / 3600
    in_all = hours * math.ceil((runs - done) / side_by_side)
    # all models, and two checkpoints of each run under way
    disk = parameters * _BYTES * (runs + 6 * side_by_side) / 1e9
    return Cost(runs, done, steps, parameters, hours, in_all, disk)


def measure(model: nn.Module, batch: Batch, config: RunConfig) -> float:
    """Seconds of one training step, on made-up samples; if a batch takes long, extrapolated from smaller ones."""
    device = device_of(config.device)
    model.train().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type in ("cpu", "cuda"))

    def seconds(count: int, steps: int) -> float:
        begun = _now(device)
        for _ in range(steps):
            given = {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch(count).items()}
            model(**given)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        return (_now(device) - begun) / steps

    count = min(_FEW, config.batch_size)
    seconds(count, 1)  # a warm-up
    if (short := seconds(count, _STEPS)) < _SHORT or count == config.batch_size:
        return seconds(config.batch_size, _STEPS) * config.accumulation
    # some of a step, such as the optimizer, does not grow with the samples
    long = seconds(2 * count, _STEPS)
    growth = max(long - short, _LEAST * long / 2) / count
    return (long + growth * (config.batch_size - 2 * count)) * config.accumulation


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
