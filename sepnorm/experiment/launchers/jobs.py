"""A run as a job that can be sent to another process, its end, and reports of its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from sepnorm.errors import InterruptedRunError, RunFailedError, SepNormError, may_pass
from sepnorm.experiment.runs import Recipe, perform, record_failure
from sepnorm.training.configs import ArmConfig
from sepnorm.training.trainer import Report

_SHOWN = 2  # failed runs that are described, since most fail for one reason; further ones are counted


class Watch(Protocol):
    """Receives news of the runs of a comparison: which are planned at most, and when each begins and ends."""

    def expect(self, arms: Sequence[str], seeds: Sequence[int]) -> None: ...

    def start(self, arm: str, seed: int) -> Report | None:
        """Returns a function to call during training."""

    def finish(self, arm: str, seed: int, failed: bool = False) -> None:
        """Also called for a run that was finished before."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run: ``recipe(base)`` reads the data and runs ``config`` in ``folder``."""

    recipe: Callable[[Any], Recipe]
    base: ArmConfig
    config: ArmConfig
    folder: Path

    @property
    def name(self) -> str:
        return f"the run of {self.config.arm}, seed {self.config.seed}"

    def __call__(self, opened: Recipe | None = None, report: Report | None = None) -> None:
        """Does the run. ``opened``: the recipe, if another job of this comparison has read the data already."""
        perform(opened or self.recipe(self.base), self.config, self.folder, report)


class Ended(NamedTuple):
    """How a job ended; ``why`` explains a failure in one sentence, and ``again`` says that another try may succeed.

    ``"unsent"``: it has not begun, because its node lacks what the run has saved.
    """

    how: Literal["done", "stopped", "failed", "unsent"]
    why: str = ""
    again: bool = False


_opened: dict[
    Any, Recipe
] = {}  # last recipe of this process with its data, since schedulers give a process several jobs


def attempt(job: Job, report: Report) -> Ended:
    """Runs a job in a scheduler's process; errors are returned, not raised."""
    try:
        key = (job.recipe, job.base.model_dump_json())
        if key not in _opened:
            _opened.clear()
            _opened[key] = job.recipe(job.base)
        job(_opened[key], report)
    except (KeyboardInterrupt, InterruptedRunError):
        return Ended("stopped")
    except RunFailedError as error:
        return Ended("failed", str(error), may_pass(error.__cause__))  # what the user's own function raised
    except SepNormError as error:
        return Ended("failed", f"{job.name}, failed: {error}")
    except Exception as error:
        return Ended("failed", str(record_failure(job.config, job.folder, error)), may_pass(error))
    (job.folder / "error.txt").unlink(missing_ok=True)  # left by an earlier attempt
    return Ended("done")


@dataclass(eq=False)
class Tally:
    """Passes news of remote runs to the watch, and collects failures."""

    watch: Watch | None
    failed: list[str] = field(default_factory=list)
    _reports: dict[Job, Report | None] = field(default_factory=dict)

    def begin(self, job: Job) -> None:
        self._reports[job] = self.watch.start(job.config.arm, job.config.seed) if self.watch is not None else None

    def progress(self, job: Job, progress: Sequence[Any]) -> None:
        if job not in self._reports:
            self.begin(job)
        if progress and (report := self._reports[job]) is not None:
            report(*progress)

    def end(self, job: Job, failure: str = "") -> None:
        self.failed += [failure] if failure else []
        if self.watch is not None:
            self.watch.finish(job.config.arm, job.config.seed, failed=bool(failure))

    def close(self) -> None:
        raise_failed(self.failed)


def raise_failed(failed: Sequence[str]) -> None:
    """Raises an error that names the failed runs, once all others are done."""
    if failed:
        told = [each.rstrip(".") for each in failed[:_SHOWN]]
        told += [f"{len(failed) - _SHOWN} more failed"] if len(failed) > _SHOWN else []
        raise RunFailedError(
            f"{'; '.join(told)}. The other runs are done and kept: the same call runs only what is missing."
        )


def stopped(folder: Path, waited: bool = True) -> InterruptedRunError:
    """The error that ends a comparison at Ctrl-C, or, not ``waited``, at a second one, when runs could not save."""
    if waited:
        return InterruptedRunError(f"the comparison was stopped and is saved in {folder}")
    what = f"the comparison in {folder} was stopped at once"
    return InterruptedRunError(what, "the same command continues its runs from their last checkpoints")
