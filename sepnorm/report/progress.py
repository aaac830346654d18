"""Training progress: one grid of all runs on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sepnorm.errors import printable
from sepnorm.report.terminal import say

if TYPE_CHECKING:
    from rich.console import Group

    from sepnorm.experiment.launchers import Watch
    from sepnorm.training.trainer import Report

_WAITING, _DONE, _FAILED = "·", "✓", "✗"
_COLUMNS = 12  # seeds shown side by side; if there are more, the current ones
_REFRESH = 4  # per second


@contextmanager
def training_progress(quiet: bool) -> Iterator[Watch | None]:
    """Shows the progress of runs: a grid if stderr is a terminal, else lines."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield Lines()
    else:
        from rich.console import Console
        from rich.live import Live

        grid = Grid()
        console = Console(stderr=True)
        with Live(console=console, get_renderable=grid.render, refresh_per_second=_REFRESH):
            yield grid


class Lines:
    """Prints a line when a run starts, and one after each quarter."""

    def expect(self, arms: Sequence[str], seeds: Sequence[int]) -> None:
        """Prints nothing."""

    def start(self, arm: str, seed: int) -> Report:
        say(f"{arm}, seed {seed}: begins", error=True)
        quarter = 1

        def report(step: int, steps: int, loss: float, rate: float) -> None:
            nonlocal quarter
            if step * 4 >= quarter * steps:
                quarter = step * 4 // steps + 1
                say(f"{arm}, seed {seed}: step {step} of {steps}, loss {loss:.3f}, {rate:.0f} samples/s", error=True)

        return report

    def finish(self, arm: str, seed: int, failed: bool = False) -> None:
        """Prints nothing: the line of the next run shows it."""


class Grid:
    """A grid of arms × seeds with the progress of each run, the last message, and the time left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.expect([], [])

    def expect(self, arms: Sequence[str], seeds: Sequence[int]) -> None:
        """Starts over, because a study has several comparisons."""
        self._arms, self._seeds = list(arms), list(seeds)
        self._shares: dict[tuple[str, int], float] = {}  # share of training done, for started runs
        self._ended: dict[tuple[str, int], str] = {}
        self._said = ""
        self._begun: float | None = None
        self._before = 0  # runs finished before this command

    def start(self, arm: str, seed: int) -> Report:
        key = (arm, seed)
        self._arms += [arm] * (arm not in self._arms)
        self._seeds += [seed] * (seed not in self._seeds)
        self._shares[key] = 0.0
        self._begun = self._begun if self._begun is not None else self._clock()

        def report(step: int, steps: int, loss: float, rate: float) -> None:
            self._shares[key] = step / steps
            self._said = f"{arm}, seed {seed}: loss {loss:.3f}, {rate:.0f} samples/s"

        return report

    def finish(self, arm: str, seed: int, failed: bool = False) -> None:
        self._before += (arm, seed) not in self._shares
        self._shares[arm, seed] = 1.0
        self._ended[arm, seed] = _FAILED if failed else _DONE

    def cell(self, arm: str, seed: int) -> str:
        """The text shown for a run."""
        key = (arm, seed)
        if key in self._ended or key not in self._shares:
            return self._ended.get(key, _WAITING)
        return f"{100 * self._shares[key]:.0f} %"

    def seconds_left(self) -> float | None:
        """Estimated from the runs so far; None until there is an estimate."""
        done = sum(self._shares.values()) - self._before
        if self._begun is None or done < 0.05:
            return None
        left = len(self._arms) * len(self._seeds) - self._before - done
        return (self._clock() - self._begun) * left / done

    def columns(self) -> list[int]:
        """The seeds shown."""
        newest = max((self._seeds.index(seed) for _, seed in self._shares), default=0)
        first = max(0, newest + 1 - _COLUMNS)
        return self._seeds[first : first + _COLUMNS]

    def render(self) -> Group | str:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        if not self._arms:
            return ""
        table = Table(box=None, pad_edge=False, header_style="")
        for name in ("", *(f"seed {seed}" if place == 0 else str(seed) for place, seed in enumerate(self.columns()))):
            table.add_column(Text(name), justify="left" if not name else "right", no_wrap=True)
        for arm in self._arms:
            table.add_row(Text(printable(arm)), *(self.cell(arm, seed) for seed in self.columns()))
        total = len(self._arms) * len(self._seeds)
        counted = f"{len(self._ended)} of {total} runs" if total > 1 else ""
        left = self.seconds_left()
        parts = [counted, "" if left is None else f"{_time(left)} left at most", self._said]
        return Group(table, Text(printable("; ".join(part for part in parts if part))))


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
