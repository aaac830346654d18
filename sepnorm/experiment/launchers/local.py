"""Runs on this machine: in this process, or parallel in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from sepnorm.distributed import cores, share_cores
from sepnorm.errors import RunFailedError, SepNormError, as_notes
from sepnorm.experiment.launchers.jobs import Job, Watch, raise_failed, stopped
from sepnorm.experiment.runs import Recipe
from sepnorm.training.configs import ArmConfig
from sepnorm.training.devices import device_of
from sepnorm.training.interruptions import end_with_parent, on_interrupt, sheltered
from sepnorm.training.trainer import Report

_FAREWELL = 30  # seconds for a finished process to clean up


class Local:
    """Launcher for this machine. ``workers`` is the largest number of parallel runs, if it is limited."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers

    def run(self, jobs: Iterator[Job], like: Job, watch: Watch | None) -> None:
        fitting = places(like.config)
        if (workers := min(fitting, self.workers or fitting)) > 1:
            _side_by_side(jobs, workers, like.folder.parent, watch)
        else:
            _one_by_one(jobs, watch)


def _one_by_one(jobs: Iterator[Job], watch: Watch | None) -> None:
    opened: Recipe | None = None
    failed: list[str] = []
    for job in jobs:
        opened = opened or job.recipe(job.base)
        arm, seed = job.config.arm, job.config.seed
        before = len(failed)
        try:
            job(opened, watch.start(arm, seed) if watch is not None else None)
        except RunFailedError as error:
            failed.append(str(error))
        if watch is not None:
            watch.finish(arm, seed, failed=len(failed) > before)
    raise_failed(failed)


def places(config: ArmConfig) -> int:
    """How many runs of a config fit on this machine at a time."""
    if not config.threads or device_of(config.device).type != "cpu":
        return 1
    return max(1, cores() // config.threads)


def _side_by_side(jobs: Iterator[Job], workers: int, folder: Path, watch: Watch | None) -> None:
    """Runs jobs in worker processes. Each takes one job after another and sends progress through a pipe.

    joblib and loky report no progress within a job and cannot make it save at Ctrl-C. Ray is 250 MB to install and
    takes five seconds to start and stop, for the same runs on the same cores.
    """
    context = multiprocessing.get_context("spawn")
    at_work: dict[Any, Any] = {}
    reports: dict[Any, Report | None] = {}
    running: dict[Any, ArmConfig] = {}
    failed: list[str] = []

    def hand_out(pipe: Any, job: Job | None) -> None:
        if job is None:
            pipe.close()
            reports.pop(pipe, None)
            return
        running[pipe] = job.config
        reports[pipe] = watch.start(job.config.arm, job.config.seed) if watch is not None else None
        with suppress(BrokenPipeError, ConnectionResetError):  # it could not start: _received says so
            pipe.send(job)

    def end(pipe: Any, error: RunFailedError | None = None) -> None:
        failed.extend([] if error is None else [str(error)])
        if watch is not None:
            watch.finish(running[pipe].arm, running[pipe].seed, failed=error is not None)
        hand_out(pipe, next(jobs, None))

    processes: list[Any] = []
    try:
        with on_interrupt(partial(_interrupt, processes)):
            for _ in range(workers):
                if (job := next(jobs, None)) is None:
                    break
                ours, theirs = context.Pipe()
                # not a daemon, which could not start processes that read ahead
                process = context.Process(target=_work, args=(theirs, workers, bool(processes)))
                with sheltered():
                    process.start()
                    processes.append(process)
                theirs.close()
                at_work[ours] = process
                hand_out(ours, job)
            while reports:
                for pipe in wait(list(reports)):
                    kind, content = _received(pipe, at_work[pipe])
                    if kind == "progress":
                        if (report := reports[pipe]) is not None:
                            report(*content)
                    elif kind == "done":
                        end(pipe)
                    elif isinstance(content, RunFailedError):
                        end(pipe, content)
                    else:
                        raise content
            for process in processes:
                process.join(_FAREWELL)
    except KeyboardInterrupt:
        for process in processes:
            process.join()  # they are saving
        raise stopped(folder) from None
    finally:
        for process in processes:
            process.terminate()
            process.join()
    raise_failed(failed)


def _received(pipe: Any, process: Any) -> tuple[str, Any]:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join(_FAREWELL)
        again = "Finished runs are kept, and the same call goes on"
        if process.exitcode == -signal.SIGKILL:
            return "error", SepNormError(
                f"a run's process died, probably out of memory. {again}; fewer runs at a time need less: workers=1, or "
                "--set threads=0 of sepnorm compare."
            )
        return "error", SepNormError(
            f"a run's process could not start, or ended with exit code {process.exitcode}; what it printed says why. {again}. A "
            "script that calls sepnorm.compare with workers needs if __name__ == '__main__': around the call."
        )


def _interrupt(processes: Sequence[Any]) -> None:
    """At Ctrl-C, signals the workers, which save, and ends the wait for them; a second Ctrl-C ends at once."""
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT if _begun(process.pid) else signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


def _begun(worker: int) -> bool:
    """Whether a worker has left our process group, and no longer ignores SIGINT."""
    return not hasattr(os, "getpgid") or os.getpgid(worker) == worker


def _work(pipe: Any, workers: int, silent: bool) -> None:
    opened: Recipe | None = None
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # see sheltered
        if hasattr(os, "setpgrp"):
            os.setpgrp()  # Ctrl-C reaches this process only through the parent, once
        end_with_parent(saving=True)
        share_cores(workers)
        as_notes(silent)
        while True:
            job: Job = pipe.recv()
            try:
                opened = opened or job.recipe(job.base)
                job(opened, lambda *content: pipe.send(("progress", content)))
            except RunFailedError as error:
                pipe.send(("error", error))
                continue
            except Exception as error:
                pipe.send(("error", error if isinstance(error, SepNormError) else _told(error)))
                return
            pipe.send(("done", None))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return  # the parent is gone or has stopped


def _told(error: Exception) -> Exception:
    """An error that can be pickled, for any error."""
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror, error.filename)
    return RuntimeError(f"{type(error).__name__}: {error}")
