"""``--dry-run``: estimates the cost of a comparison or a run before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sepnorm.domains.comparison import Planned
from sepnorm.domains.pretraining import PlannedRun
from sepnorm.experiment.estimate import estimate_runs
from sepnorm.experiment.runs import finished
from sepnorm.experiment.slugs import run_folder
from sepnorm.training.configs import RunConfig


def estimate_comparison(planned: Planned, seeds: Sequence[int], folder: Path) -> str:
    """A few lines: what is compared, how many runs remain, and their cost."""
    planned.domain.check(planned.configs)
    seeded = [config.changed({"seed": seed}) for config in planned.configs for seed in seeds]
    done = sum(finished(each, run_folder(folder, each.arm, each.seed)) for each in seeded)
    return f"{planned.line}\n{_cost(planned, planned.configs[-1], len(seeded), done)}Folder: {folder}"


def estimate_run(planned: PlannedRun) -> str:
    """A few lines: what is trained, and its cost."""
    if planned.look is None:
        return f"{planned.folder} holds a finished run: nothing is left to do."
    planned.domain.check([planned.config])
    return f"{planned.line}\n{_cost(planned, planned.config, 1, 0)}Folder: {planned.folder}"


def _cost(planned: Planned | PlannedRun, config: RunConfig, runs: int, done: int) -> str:
    """Builds the model of a config and times a few of its steps."""
    samples = planned.look.samples if planned.look is not None else None
    steps = config.max_steps if samples is None else config.steps_on(samples)
    if steps is None:
        return "How many steps a run has is known when its data are fetched: --max-steps N says it.\n"
    cost = estimate_runs(planned.domain.trial(config), config, steps, runs, done)
    return f"{cost}\n"
