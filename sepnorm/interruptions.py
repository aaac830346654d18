"""What ends a run before its time: Ctrl-C, and other processes of it that are gone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sepnorm.errors import InterruptedRunError
from sepnorm.processes import many


@contextmanager
def on_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """Calls something at Ctrl-C in the place of raising ``KeyboardInterrupt``; only where signals arrive, in the main thread."""
    try:
        old = signal.signal(signal.SIGINT, lambda number, frame: call())
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


@contextmanager
def lost_processes(folder: Path) -> Iterator[None]:
    """Says it in one sentence where another process of the run has gone."""
    try:
        yield
    except RuntimeError as error:
        if not many() or not any(
            word in str(error) for word in ("Connection", "gloo", "NCCL", "peer", "timed out", "Timed out")
        ):
            raise
        raise InterruptedRunError(
            f"another process of this run is gone, so it stopped; checkpoints are in {folder}: the same command goes on from "
            f"the last one ({str(error).splitlines()[0][:120]})."
        ) from error
