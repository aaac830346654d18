"""Estimates the cost of a study: runs, steps, parameters, time from a short measurement, and disk space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sepnorm.domains import open_domain
from sepnorm.experiment.estimate import cost_of, measure
from sepnorm.experiment.runs import finished, using_threads
from sepnorm.experiment.slugs import run_folder
from sepnorm.studies.parts import Part, configs_of


def estimate(parts: Sequence[Part], given: Mapping[str, Any], folder: Path) -> tuple[list[str], list[list[str]]]:
    """Header, and a row for each part."""
    header = ["part", "runs", "finished", "steps a run", "parameters", "hours a run", "hours in all", "disk, GB"]
    rows = []
    measured: dict[str, tuple[float, int]] = {}
    for part in parts:
        base, configs = configs_of(part, given)
        seeded = [config.changed({"seed": seed}) for config in configs for seed in range(part.seeds)]
        done = sum(finished(each, run_folder(folder / part.folder, each.arm, each.seed)) for each in seeded)
        # the size of a model does not depend on its data
        alike = configs[-1].changed({"data": "", "seed": 0}).model_dump_json()
        if alike not in measured:
            model, batch = open_domain(part.domain).trial(configs[-1])
            with using_threads(base):
                measured[alike] = measure(model, batch, base), sum(weight.numel() for weight in model.parameters())
        cost = cost_of(*measured[alike], base, base.steps_on(part.samples), len(seeded), done)
        said = [_hours(cost.hours), _hours(cost.hours_in_all), f"{cost.disk:.2g}"]
        rows.append([part.name, str(cost.runs), str(done), f"{cost.steps:,}", f"{cost.parameters:,}", *said])
    return header, rows


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
