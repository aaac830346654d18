"""What all clusters share: submitting jobs while there is room, following them, and stopping at Ctrl-C."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from sepnorm.errors import SepNormError
from sepnorm.experiment.launchers.jobs import Job, stopped
from sepnorm.training.interruptions import on_interrupt


class Cluster(Protocol):
    """Jobs that run elsewhere."""

    @property
    def running(self) -> int:
        """Number of submitted jobs that have not ended."""

    def room(self) -> int | None:
        """Number of further jobs that fit; None if a queue takes all."""

    def hand_out(self, jobs: Sequence[Job]) -> None: ...

    def look(self, stopping: bool) -> None:
        """Waits a moment and reads news of jobs. If ``stopping``, lost jobs are not tried again."""

    def stop(self, now: bool) -> None:
        """Asks all jobs to save and end, or with ``now`` to end at once."""


def drive(cluster: Cluster, jobs: Iterator[Job], folder: Path) -> None:
    """Runs until all jobs have ended. Ctrl-C makes all jobs save; a second one stops the waiting."""
    asked = False

    def interrupt() -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        with on_interrupt(interrupt):
            while not asked:
                if batch := list(islice(jobs, cluster.room())):
                    cluster.hand_out(batch)
                if not cluster.running:
                    return
                cluster.look(stopping=False)
            cluster.stop(now=False)
            while cluster.running:
                cluster.look(stopping=True)
    except KeyboardInterrupt:
        cluster.stop(now=True)
        raise stopped(folder, waited=False) from None
    except BaseException:
        cluster.stop(now=False)  # nobody would read their results
        raise
    raise stopped(folder)


def installed(name: str) -> Any:
    """Imports a library that a launcher needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SepNormError(f"--launcher {name} needs {name}: pip install 'sepnorm[cluster]'.") from error
