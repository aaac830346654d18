"""Where the runs of a comparison happen: in this process, side by side in several, or on a scheduler that is installed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from sepnorm.errors import InterruptedRunError, RunFailedError, SepNormError, as_notes
from sepnorm.experiment.launcher_settings import parse_launcher
from sepnorm.experiment.runs import Recipe, finished, perform
from sepnorm.training.configs import ArmConfig
from sepnorm.training.devices import device_of
from sepnorm.training.interruptions import on_interrupt
from sepnorm.training.trainer import Report


class Watch(Protocol):
    """What is told of the runs of a comparison: which there will be, at most, and when each begins and ends."""

    def expect(self, arms: Sequence[str], seeds: Sequence[int]) -> None: ...

    def start(self, arm: str, seed: int) -> Report | None:
        """Gives what is called while the run trains."""

    def finish(self, arm: str, seed: int, failed: bool = False) -> None:
        """Also of a run that was finished before."""


_FAREWELL = 30  # seconds in which a process that has no more to do tidies up


@dataclass(frozen=True, eq=False)
class Job:
    """One run: ``recipe(base)`` reads the data, and runs ``config`` in ``folder``."""

    recipe: Callable[[Any], Recipe]
    base: ArmConfig
    config: ArmConfig
    folder: Path

    def __call__(self, opened: Recipe | None = None, report: Report | None = None) -> None:
        """``opened``: the recipe with its data, where another job of this comparison has read them already."""
        perform(opened or self.recipe(self.base), self.config, self.folder, report)


def run_jobs(jobs: Iterable[Job], launcher: str = "local", watch: Watch | None = None) -> None:
    """Runs what is not finished. ``jobs`` are asked for the next one when there is a place for it.

    ``launcher`` is ``"local"``: as many runs side by side as there are cores for the threads that a config asks for, one
    after another on an accelerator; or ``"submitit"`` (SLURM) or ``"ray"``, with settings of theirs behind the name, as in
    ``"submitit timeout_min=600 slurm_partition=gpu"``.
    """
    name, options = parse_launcher(launcher)
    unfinished = _unfinished(jobs, watch)
    first = next(unfinished, None)
    if first is None:
        return
    left = chain([first], unfinished)
    if name == "submitit":
        _submit(list(left), options)
    elif name == "ray":
        _scatter(list(left), options)
    elif (workers := places(first.config)) > 1:
        _side_by_side(left, workers, first.folder.parent, watch)
    else:
        _one_by_one(left, watch)


def _unfinished(jobs: Iterable[Job], watch: Watch | None) -> Iterator[Job]:
    for job in jobs:
        if not finished(job.config, job.folder):
            yield job
        elif watch is not None:
            watch.finish(job.config.arm, job.config.seed)


def _one_by_one(jobs: Iterator[Job], watch: Watch | None) -> None:
    opened: Recipe | None = None
    failed: list[RunFailedError] = []
    for job in jobs:
        opened = opened or job.recipe(job.base)
        arm, seed = job.config.arm, job.config.seed
        before = len(failed)
        try:
            job(opened, watch.start(arm, seed) if watch is not None else None)
        except RunFailedError as error:
            failed.append(error)
        if watch is not None:
            watch.finish(arm, seed, failed=len(failed) > before)
    _raise_failed(failed)


def _raise_failed(failed: Sequence[RunFailedError]) -> None:
    """Says which runs failed, once all others are done."""
    if failed:
        said = "; ".join(str(error).rstrip(".") for error in failed)
        raise RunFailedError(f"{said}. The other runs are done and kept: the same call runs only what is missing.")


def places(config: ArmConfig) -> int:
    """How many runs of a config fit on this machine at a time."""
    if not config.threads or device_of(config.device).type != "cpu":
        return 1
    # which of the machine's cores are ours is known on Linux only
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // config.threads)


def _side_by_side(jobs: Iterator[Job], workers: int, folder: Path, watch: Watch | None) -> None:
    """Each worker is a process that takes one job after another; a pipe brings its progress, and its end when we are gone.

    Ours rather than joblib's or loky's: these have no progress of a job under way, and no way to let it save at Ctrl-C.
    """
    context = multiprocessing.get_context("spawn")
    reports: dict[Any, Report | None] = {}
    running: dict[Any, ArmConfig] = {}
    failed: list[RunFailedError] = []

    def hand_out(pipe: Any, job: Job | None) -> None:
        if job is None:
            pipe.close()
            reports.pop(pipe, None)
            return
        running[pipe] = job.config
        reports[pipe] = watch.start(job.config.arm, job.config.seed) if watch is not None else None
        pipe.send(job)

    def end(pipe: Any, error: RunFailedError | None = None) -> None:
        failed.extend([] if error is None else [error])
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
                process = context.Process(target=_work, args=(theirs, bool(processes)), daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                hand_out(ours, job)
            while reports:
                for pipe in wait(list(reports)):
                    kind, content = _received(pipe)
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
        raise InterruptedRunError(f"the comparison was stopped and is saved in {folder}") from None
    finally:
        for process in processes:
            process.terminate()
            process.join()
    _raise_failed(failed)


def _received(pipe: Any) -> tuple[str, Any]:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return "error", SepNormError(
            "a run's process ended without a word, perhaps for want of memory: the same command goes on from what is "
            "saved; --set threads=0 runs one at a time."
        )


def _interrupt(processes: Sequence[Any]) -> None:
    """Ctrl-C goes to the workers, which save, and ends the waiting for them; a second one waits no longer."""
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


def _work(pipe: Any, silent: bool) -> None:
    as_notes(silent)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C of the terminal comes by way of the parent, once
    opened: Recipe | None = None
    try:
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
        return  # the parent is gone, or has stopped


def _told(error: Exception) -> Exception:
    """What can be sent to another process, whatever was raised."""
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror, error.filename)
    return RuntimeError(f"{type(error).__name__}: {error}")


def _submit(jobs: Sequence[Job], options: dict[str, Any]) -> None:
    """A SLURM job for each run; ``cluster=local`` tries it on this machine."""
    submitit = _installed("submitit")
    executor = submitit.AutoExecutor(jobs[0].folder.parent / "submitit", cluster=options.pop("cluster", None))
    executor.update_parameters(**({"timeout_min": 24 * 60} | options))
    with executor.batch():
        handed = [executor.submit(job) for job in jobs]
    for each in handed:
        each.result()


def _scatter(jobs: Sequence[Job], options: dict[str, Any]) -> None:
    ray = _installed("ray")
    if not ray.is_initialized():
        ray.init(address=options.pop("address", None))
    task = ray.remote(lambda job: job())
    task = task.options(**options) if options else task
    ray.get([task.remote(job) for job in jobs])


def _installed(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SepNormError(f"--launcher {name} needs {name}: pip install {name}.") from error
