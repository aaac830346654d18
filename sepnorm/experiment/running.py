"""Runs every arm of a comparison with every seed, and reads what the runs measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from sepnorm.arguments import number
from sepnorm.errors import RunFailedError
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.launcher_settings import parse_launcher
from sepnorm.experiment.launchers import Job, Watch, run_jobs
from sepnorm.experiment.metrics import Metrics
from sepnorm.experiment.runs import Recipe
from sepnorm.experiment.sequential import FIRST
from sepnorm.experiment.slugs import run_folder
from sepnorm.files import intact, read_json
from sepnorm.training.configs import ArmConfig, arm_names
from sepnorm.training.trainer import Report

_COPIES = 2 * FIRST  # seeds that change nothing before no further one is begun


class UnfinishedComparisonError(RunFailedError):
    """Some runs failed. ``comparison`` has the seeds that are complete; None if nothing can be compared."""

    def __init__(self, what: str, comparison: Comparison | None) -> None:
        super().__init__(what)
        self.comparison = comparison


def compare(
    recipe: Callable[[Any], Recipe],
    metrics: Metrics,
    base: ArmConfig,
    configs: Sequence[ArmConfig],
    seeds: Sequence[int],
    folder: Path,
    launcher: str = "local",
    watch: Watch | None = None,
    margin: float | None = None,
    adaptive: bool = False,
    workers: int | None = None,
    dropped: Sequence[tuple[str, int]] = (),
) -> Comparison:
    """Runs every config with every seed; the first config is the baseline. Finished runs are read, not repeated.

    ``recipe(base)`` reads the data and runs configs; ``launchers.run_jobs`` says where, and how many at a time,
    ``workers`` at most. ``watch`` receives their progress. With ``adaptive``, seeds are added, all arms of a seed
    together, until every arm is decided or a run fails; ``seeds`` is then the largest set. If runs fail, the others
    are finished, and an ``UnfinishedComparisonError`` has the seeds that are complete. ``dropped`` are arm and seed of
    failed runs, of arms that were planned and are left out of ``configs``: verdicts stay corrected for them.
    """
    names = arm_names(configs)
    margin = None if margin is None else number(margin, "margin", least=0)
    every = {seed: {name: run_folder(folder, name, seed) for name in names} for seed in seeds}
    news = _Failures(watch)

    def read(chosen: Sequence[int], arms: Sequence[str] = names) -> Comparison:
        found = [Arm(config.arm, config) for config in configs if config.arm in arms]
        for seed in chosen:
            for arm in found:
                _read_run(arm, seed, every[seed][arm.name])
        most, planned = (len(seeds), None) if adaptive else (None, len(seeds))
        return Comparison(found, metrics, margin, most, planned, failed=list(dropped))

    def finished() -> dict[int, set[str]]:
        """Names of the arms that are finished, by seed."""
        return {
            seed: {name for name, place in places.items() if (place / "metrics.json").is_file()}
            for seed, places in every.items()
        }

    def enough() -> int | None:
        """The first number of seeds that decides every arm, or with which they are plainly copies of one run."""
        if not adaptive:
            return None
        whole = [*(len(done) == len(names) for done in finished().values()), False].index(False)
        looks = ((count, read(seeds[:count])) for count in range(FIRST, whole + 1))
        return next((count for count, found in looks if found.decided or (found.copies and count >= _COPIES)), None)

    def complete() -> Comparison | None:
        """The seeds that are finished in every arm, or else in every arm that has finished runs."""
        done, arms = finished(), names
        if set(names) not in done.values():
            arms = [name for name in names if any(name in ended for ended in done.values())]
        shared = [seed for seed, ended in done.items() if ended.issuperset(arms)]
        if not shared or len(arms) < 2 or names[0] not in arms:
            return None
        found = read(shared, arms)
        found.failed += news.failed
        return found

    def jobs() -> Iterator[Job]:
        for seed, places in every.items():  # seed by seed, so that an interrupted comparison has complete pairs
            if enough() is not None or (adaptive and news.failed):
                return
            for config in configs:
                yield Job(recipe, base, config.changed({"seed": seed}), places[config.arm])

    news.expect(names, list(seeds))
    try:
        if adaptive and parse_launcher(launcher)[0] == "submitit":
            # a queue takes all jobs at once: submit the arms of one seed at a time
            for wave in batched_by(jobs(), lambda job: max(job.config.seed, FIRST - 1)):
                run_jobs(wave, launcher, news, workers)
        else:
            run_jobs(jobs(), launcher, news, workers)
    except RunFailedError as error:
        raise UnfinishedComparisonError(str(error), complete()) from None
    return read(seeds[: enough() or len(seeds)])


@dataclass(eq=False)
class _Failures:
    """Passes news of runs on to a watch, and notes arm and seed of those that failed."""

    watch: Watch | None
    failed: list[tuple[str, int]] = field(default_factory=list)

    def expect(self, arms: Sequence[str], seeds: Sequence[int]) -> None:
        if self.watch is not None:
            self.watch.expect(arms, seeds)

    def start(self, arm: str, seed: int) -> Report | None:
        return None if self.watch is None else self.watch.start(arm, seed)

    def finish(self, arm: str, seed: int, failed: bool = False) -> None:
        self.failed += [(arm, seed)] if failed else []
        if self.watch is not None:
            self.watch.finish(arm, seed, failed)


def batched_by(jobs: Iterator[Job], key: Callable[[Job], int]) -> Iterator[list[Job]]:
    """Groups consecutive jobs with the same key; a group is made only when the last one is done."""
    for _, group in groupby(jobs, key):
        yield list(group)


def _read_run(arm: Arm, seed: int, folder: Path) -> None:
    arm.folders[seed] = folder
    arm.metrics[seed] = read_json(folder / "metrics.json")
    with intact(folder / "losses.json"):
        arm.losses[seed] = [(int(step), float(loss)) for step, loss in read_json(folder / "losses.json")]
