"""What ends a run early: Ctrl-C, SIGTERM of a scheduler, and the loss of another process."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sepnorm.distributed import many
from sepnorm.errors import InterruptedRunError, is_of_lost_process, one_line

_DIES_WITH_PARENT = 1  # Linux: the option of prctl


@contextmanager
def on_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """Calls ``call`` at Ctrl-C or SIGTERM, which schedulers send, instead of ending the process.

    Does nothing outside of the main thread, which alone receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.signal(number, lambda *_: call()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def sheltered() -> Iterator[None]:
    """Shields processes started here from the terminal's Ctrl-C, until they leave our process group and ask for it."""
    try:
        old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread can set signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


def end_with_parent(saving: bool = False) -> None:
    """On Linux: this process ends when the thread that started it does, even if that is killed; ``saving``, by SIGTERM."""
    if sys.platform == "linux":
        number = signal.SIGTERM if saving else signal.SIGKILL
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, number)
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid != os.getppid():  # it ended before we asked
            signal.raise_signal(number)


@contextmanager
def lost_processes(folder: Path) -> Iterator[None]:
    """Turns the error that follows the loss of another process into one sentence."""
    try:
        yield
    except RuntimeError as error:
        if not many() or not is_of_lost_process(error):
            raise
        raise InterruptedRunError(
            f"another process of this run is gone, so it stopped ({one_line(error)[:120]}); checkpoints are in {folder}"
        ) from error
