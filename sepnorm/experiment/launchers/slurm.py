"""Runs as SLURM jobs, by submitit. ``cluster=local`` does the same on this machine, for trials."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError, as_notes, one_line
from sepnorm.experiment.launchers.cluster import drive, installed
from sepnorm.experiment.launchers.jobs import Ended, Job, Tally, Watch, attempt
from sepnorm.experiment.launchers.local import places
from sepnorm.training.interruptions import on_interrupt, sheltered

_LOOK = 1.0  # seconds between two checks of the runs
_REQUEUES = 20  # requeues of a run that meets its time limit; each resumes from its checkpoint
_SAVING = 120.0  # seconds for stopped runs to save; SLURM itself allows half a minute


_ONE = ("nodes", "tasks_per_node", "ntasks_per_node")  # settings of jobs of several processes


class Slurm:
    """Launcher for SLURM. ``options`` are those of submitit's executor, such as ``timeout_min``, and ``cluster``."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.cluster = self.options.pop("cluster", None)

    def run(self, jobs: Iterator[Job], like: Job, watch: Watch | None) -> None:
        _refuse_several(self.options)
        submitit = installed("submitit")
        folder = like.folder.parent.absolute()
        options = {"timeout_min": 24 * 60, "cpus_per_task": like.config.threads or None} | self.options
        try:
            limits = {"slurm_max_num_timeout": _REQUEUES, "local_max_num_timeout": _REQUEUES}
            executor = submitit.AutoExecutor(folder / "submitit", cluster=self.cluster, **limits)
            executor.update_parameters(**options)
        except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
            raise SepNormError(
                f"submitit does not take these settings of --launcher submitit: {one_line(error)}."
            ) from error
        tally = Tally(watch)
        on_this_machine = executor.cluster == "local"
        drive(_Queue(executor, tally, places(like.config) if on_this_machine else None), jobs, folder)
        tally.close()


def _refuse_several(options: Mapping[str, Any]) -> None:
    """Refuses jobs of several processes, which would all do the same run in one folder."""
    for name, value in options.items():
        if name.removeprefix("slurm_") in _ONE and value != 1:
            raise SepNormError(
                f"each run is one process on one node, found {name}={value} in --launcher submitit: leave it out. The runs "
                "themselves go side by side."
            )


@dataclass(eq=False)
class _Queue:
    """The submitted jobs; see ``cluster.Cluster``. ``at_once`` is None if a queue decides how many run."""

    executor: Any
    tally: Tally
    at_once: int | None
    under_way: dict[Job, Any] = field(default_factory=dict)
    deadline: float | None = None

    @property
    def running(self) -> int:
        return len(self.under_way)

    def room(self) -> int | None:
        return None if self.at_once is None else self.at_once - self.running

    def hand_out(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._progress_of(job).unlink(missing_ok=True)
        try:
            with sheltered(), self.executor.batch():
                handles = [self.executor.submit(Submitted(job, self._progress_of(job))) for job in jobs]
        except (OSError, RuntimeError) as error:
            raise SepNormError(
                f"the runs could not be submitted by these settings of --launcher submitit: {one_line(error)}."
            ) from error
        self.under_way |= dict(zip(jobs, handles, strict=True))

    def _progress_of(self, job: Job) -> Path:
        return Path(self.executor.folder) / f"{job.folder.name}.progress"

    def look(self, stopping: bool) -> None:
        time.sleep(_LOOK)
        for job, handle in list(self.under_way.items()):
            with suppress(OSError, ValueError):  # not begun, or partly written
                self.tally.progress(job, json.loads(self._progress_of(job).read_text(encoding="utf-8")))
            if handle.done():
                del self.under_way[job]
                self._end(job, handle, stopping)
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.under_way.clear()

    def _end(self, job: Job, handle: Any, stopping: bool) -> None:
        if stopping and not handle.paths.result_pickle.exists():
            return  # it had not begun
        try:
            ended = handle.result()
        except Exception as error:  # raised by submitit: the process is gone, or never reached our code
            lines = [line for line in str(error).splitlines() if line.strip(" -")]
            said = next((line for line in reversed(lines) if "Error:" in line), " ".join(lines[:2]))
            ended = Ended("failed", f"{job.name}, ended without a result ({said.strip()}); see {handle.paths.stderr}.")
        if ended.how == "stopped" and not stopping:
            ended = Ended("failed", f"{job.name}, was stopped by the scheduler and is saved.")
        if ended.how != "stopped":
            self.tally.end(job, ended.why)

    def stop(self, now: bool) -> None:
        self.deadline = time.monotonic() + _SAVING
        for handle in self.under_way.values():
            if self.at_once is None:
                handle.cancel(check=False)  # SIGTERM, and half a minute later SIGKILL
            else:
                with suppress(ProcessLookupError):
                    os.kill(int(handle.job_id), signal.SIGTERM)  # cancel() would leave a run one second to save


@dataclass(eq=False)
class Submitted:
    """What submitit runs. At a time limit or preemption the run saves, and submitit requeues it."""

    job: Job
    progress: Path

    def __call__(self) -> Ended:
        import submitit

        environment = submitit.JobEnvironment()
        as_notes(silent=True)
        if environment.cluster == "local":
            os.setpgrp()  # see sheltered; with SLURM the process group is SLURM's
        number = signal.Signals[f"SIG{environment.USR_SIG}"]
        preempted = False

        def preempt(*_: Any) -> None:
            nonlocal preempted
            if not preempted:
                preempted = True
                signal.raise_signal(signal.SIGTERM)

        requeue = signal.signal(number, preempt)
        self._tell()
        with on_interrupt(_interrupt):
            ended = attempt(self.job, self._tell)
        signal.signal(number, requeue)
        if preempted and ended.how == "stopped":
            signal.raise_signal(number)  # submitit calls checkpoint() and ends this process
        return ended

    def _tell(self, *progress: Any) -> None:
        self.progress.write_text(json.dumps(progress), encoding="utf-8")

    def checkpoint(self) -> Any:
        """What is run after a requeue: the same job, from its checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _interrupt() -> None:
    raise KeyboardInterrupt
