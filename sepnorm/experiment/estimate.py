"""What runs take: time from a short measurement, parameters, and disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sepnorm.experiment.launchers import places
from sepnorm.experiment.runs import using_threads
from sepnorm.training.configs import RunConfig
from sepnorm.training.devices import device_of

_STEPS = 2  # that are measured
_FEW, _SHORT = 4, 0.2  # samples of each, unless a step of these is so many seconds short
_LEAST = 0.25  # share of a step that grows with its samples, whatever the noise says
_BYTES = 4  # of a parameter; a checkpoint has three of each: the weight and Adam's two
Batch = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Cost:
    """Of ``runs`` runs of so many steps, ``done`` of which are finished; hours of training alone, without data and probes."""

    runs: int
    done: int
    steps: int
    parameters: int
    hours: float  #: of a run
    hours_in_all: float
    disk: float  #: gigabytes

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
    """``trial``: a model as a run has it, and made-up batches for it."""
    model, batch = trial
    with using_threads(config):
        seconds = measure(model, batch, config)
    return cost_of(seconds, sum(weight.numel() for weight in model.parameters()), config, steps, runs, done)


def cost_of(seconds: float, parameters: int, config: RunConfig, steps: int, runs: int, done: int) -> Cost:
    """From the seconds of a step."""
    side_by_side = min(places(config), runs)
    hours = seconds * steps / 3600
    in_all = hours * math.ceil((runs - done) / side_by_side)
    # every model, and two checkpoints of those under way
    disk = parameters * _BYTES * (runs + 6 * side_by_side) / 1e9
    return Cost(runs, done, steps, parameters, hours, in_all, disk)


def measure(model: nn.Module, batch: Batch, config: RunConfig) -> float:
    """Seconds of a training step: measured on made-up samples, or on few and twice as many where all would take long."""
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
    seconds(count, 1)  # the first is slower
    if (short := seconds(count, _STEPS)) < _SHORT or count == config.batch_size:
        return seconds(config.batch_size, _STEPS) * config.accumulation
    # a part of a step, such as the optimizer's, does not grow with the samples
    long = seconds(2 * count, _STEPS)
    growth = max(long - short, _LEAST * long / 2) / count
    return (long + growth * (config.batch_size - 2 * count)) * config.accumulation


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
