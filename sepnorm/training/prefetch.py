"""Batches of a stream, made ahead of the training step by processes of their own."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from sepnorm.data.streams import ReadAhead, Stream
from sepnorm.errors import SepNormError, one_line
from sepnorm.training.batching import Place, Samples, Steps, StreamedSteps, read_places, write_places
from sepnorm.training.configs import RunConfig
from sepnorm.training.interruptions import end_with_parent

_AHEAD = 2  # batches that wait for the training step, of each worker
_NO_ROOM = (
    "a worker that reads the stream ahead ran out of shared memory: give the container more of it (docker run "
    "--shm-size=8g), or read in the training process by --set workers=0."
)


def prefetched(
    config: Any, buffer: int, open_stream: Callable[[int, int], Stream], read: Callable[[list[Any]], Samples]
) -> Steps:
    """The steps of a stream by ``config.workers`` processes, or in this process where there are none.

    Workers are forked, since what makes batches cannot be sent to another process. That is safe on Linux alone. Elsewhere, and
    in a daemonic process, which may have no children, the same batches are made here.
    """
    count = max(1, config.workers)
    ahead = config.workers > 0 and sys.platform == "linux" and not multiprocessing.current_process().daemon
    parts = []
    for worker in range(count):
        stream = open_stream(worker, count)
        source = ReadAhead(stream) if ahead else stream  # a thread beside training would hold Python's lock
        parts.append(StreamedSteps(config, buffer, source, read, worker=worker, workers=count))
    return Prefetched(config, parts, ahead)


class Prefetched(Steps):
    """Worker ``w`` of ``n`` makes the batches ``w``, ``w + n`` and so on, of shards of its own, in order."""

    def __init__(self, config: RunConfig, parts: Sequence[StreamedSteps], ahead: bool) -> None:
        self.config, self._parts, self._ahead = config, parts, ahead
        self.batch, self.steps, self.schedule = parts[0].batch, parts[0].steps, parts[0].schedule
        self._workers: list[_Worker] = []
        self._places: list[Place] = [None] * len(parts)

    def __getitem__(self, number: int) -> dict[str, Any]:
        own = number % len(self._parts)
        if not self._ahead:
            batch = self._parts[own][number]
            self._places[own] = self._parts[own].place
            return batch
        if not self._workers:
            first = range(number, number + len(self._parts))
            starts = sorted(first, key=lambda start: start % len(self._parts))
            self._workers = [
                _Worker(part, range(start, len(self), len(self._parts)))
                for part, start in zip(self._parts, starts, strict=True)
            ]
            for worker in self._workers:
                worker.begin()
        self._places[own], batch = self._workers[own].next()
        return batch

    def named(self, step: int) -> str:
        return self._parts[0].named(step)

    def save(self, checkpoint: Path) -> None:
        write_places(checkpoint, self._places)

    def resume(self, checkpoint: Path) -> None:
        self._places = read_places(checkpoint, len(self._parts))
        for part, place in zip(self._parts, self._places, strict=True):
            part.go_to(place)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []


class _Worker:
    """A process that makes batches with these numbers, some of them ahead."""

    def __init__(self, steps: StreamedSteps, numbers: range) -> None:
        context = torch.multiprocessing.get_context("fork")
        self._made = context.Queue(_AHEAD)
        self._fetched: queue.Queue[Any] = queue.Queue(1)
        self._closed = False
        self._process = context.Process(target=_make, args=(steps, numbers, self._made), daemon=True)
        self._process.start()

    def begin(self) -> None:
        """Once all workers were forked: a thread has the next batch at hand, since to fetch one both processes must be awake."""
        Thread(target=self._fetch, daemon=True).start()

    def next(self) -> tuple[Place, dict[str, Any]]:
        found = self._fetched.get()
        if isinstance(found, Exception):
            raise found
        place, batch = found
        return place, batch

    def _fetch(self) -> None:
        while not self._closed:
            try:
                self._fetched.put(self._made.get(timeout=1))
            except queue.Empty:
                if self._process.is_alive():
                    continue
                self._fetched.put(SepNormError(_gone(self._process.exitcode)))
                return
            except Exception as error:  # most often it ended before the memory of a batch was handed over
                self._process.join(1)
                running = self._process.is_alive()
                self._fetched.put(_told(error) if running else SepNormError(_gone(self._process.exitcode)))
                return

    def close(self) -> None:
        self._closed = True
        self._process.kill()  # it has nothing to save
        self._process.join()
        with contextlib.suppress(queue.Empty):  # so that the thread, which may wait for room, ends too
            self._fetched.get_nowait()


def _make(steps: StreamedSteps, numbers: range, made: Any) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a run, whose step still needs its batches
        signal.signal(each, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(1)  # those of the parent are not there
    try:
        for number in numbers:
            batch = steps[number]
            for value in batch.values():  # here, since the thread of the queue drops what does not fit
                if torch.is_tensor(value):
                    value.share_memory_()
            made.put((steps.place, batch))
    except Exception as error:
        made.put(error if isinstance(error, SepNormError) else _told(error))
    while True:  # the memory of batches that were not fetched yet is ours
        signal.pause()


def _told(error: Exception) -> SepNormError:
    """An error of any library as one that another process can be sent: some cannot be pickled, or made again from it."""
    told = SepNormError(
        _NO_ROOM
        if "shared memory" in str(error)  # as torch says it in a plain RuntimeError
        else f"a worker that reads the stream ahead failed by {type(error).__name__}: {one_line(error)}. Reading in the "
        "training process, by --set workers=0, shows where."
    )
    told.add_note("".join(traceback.format_exception(error)))
    return told


def _gone(code: int | None) -> str:
    if code == -signal.SIGBUS:
        return _NO_ROOM
    why = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
    return (
        f"a worker that reads the stream ahead is gone ({why}), often for want of memory: lower stream or workers, and run the "
        "same command with --resume."
    )
