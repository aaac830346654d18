"""Launchers: start the runs of a comparison in this process, in several processes, or on a cluster.

A launcher is an object with ``run(jobs, like, watch)``, which runs all jobs; ``like`` is the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Protocol

from sepnorm.experiment.launcher_settings import parse_launcher
from sepnorm.experiment.launchers.jobs import Job, Watch
from sepnorm.experiment.runs import finished

__all__ = ["Job", "Watch", "run_jobs"]


class Launcher(Protocol):
    def run(self, jobs: Iterator[Job], like: Job, watch: Watch | None) -> None:
        """Runs all jobs, and requests the next job when a place is free; ``like`` is the first of them."""


def run_jobs(
    jobs: Iterable[Job], launcher: str = "local", watch: Watch | None = None, workers: int | None = None
) -> None:
    """Runs all jobs that are not finished; requests the next job when a place is free.

    ``launcher`` is ``"local"``, ``"submitit"`` (SLURM) or ``"ray"``. The last two take settings after the name, as in
    ``"submitit timeout_min=600 slurm_partition=gpu"``. Locally, runs are parallel as far as there are cores for the
    threads that a config asks for, ``workers`` at most; on an accelerator they run one after another.
    """
    name, options = parse_launcher(launcher)
    unfinished = _unfinished(jobs, watch)
    first = next(unfinished, None)
    if first is not None:
        _open(name, options, workers).run(chain([first], unfinished), first, watch)


def _open(name: str, options: dict[str, Any], workers: int | None) -> Launcher:
    if name == "ray":
        from sepnorm.experiment.launchers.ray import Ray

        return Ray(options)
    if name == "submitit":
        from sepnorm.experiment.launchers.slurm import Slurm

        return Slurm(options)
    from sepnorm.experiment.launchers.local import Local

    return Local(workers)


def _unfinished(jobs: Iterable[Job], watch: Watch | None) -> Iterator[Job]:
    for job in jobs:
        if not finished(job.config, job.folder):
            yield job
        elif watch is not None:
            watch.finish(job.config.arm, job.config.seed)
