from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from sepnorm.report.progress import Grid, Lines, training_progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(grid: Grid) -> list[str]:
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(grid.render())
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_grid_says_how_far_every_run_is():
    clock = Clock()
    grid = Grid(clock)
    grid.expect(["ln", "bn+ln@final"], [0, 1, 2])
    assert [line.split() for line in shown(grid)[1:3]] == [["ln", "·", "·", "·"], ["bn+ln@final", "·", "·", "·"]]
    grid.finish("ln", 0)  # of an earlier call
    report = grid.start("bn+ln@final", 0)
    assert report is not None
    clock.now = 10.0
    report(50, 100, 0.5, 900.0)
    lines = shown(grid)
    assert lines[0].split() == ["seed", "0", "1", "2"]
    assert [line.split() for line in lines[1:3]] == [["ln", "✓", "·", "·"], ["bn+ln@final", "50", "%", "·", "·"]]
    # half a run took 10 s; 4.5 of the 5 that were to be done are left
    assert (
        lines[3] == "1 of 6 runs; 90 s left at most; bn+ln@final, seed 0: loss 0.500, 900 samples/s"
        or "2 min" in lines[3]
    )
    assert grid.seconds_left() == pytest.approx(90.0)
    grid.finish("bn+ln@final", 0, failed=True)
    assert grid.cell("bn+ln@final", 0) == "✗"


def test_of_many_seeds_those_of_now_are_shown():
    grid = Grid()
    grid.expect(["ln"], range(40))
    assert grid.columns() == list(range(12))
    grid.start("ln", 30)
    assert grid.columns() == list(range(19, 31))


def test_lines_where_there_is_no_terminal(capsys):
    with training_progress(quiet=False) as watch:
        assert isinstance(watch, Lines)
        report = watch.start("ln", 3)
        for step in range(1, 9):
            report(step, 8, 0.25, 100.0)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "ln, seed 3: begins"
    assert [line.split(" of ")[0] for line in said[1:]] == [f"ln, seed 3: step {step}" for step in (2, 4, 6, 8)]
    with training_progress(quiet=True) as nobody:
        assert nobody is None


_OWN = """
import sepnorm
def run(arm, seed, folder):
    return {"accuracy": 0.5 + 0.1 * (arm.norm != "ln") + 0.001 * seed}
sepnorm.compare(run, ["ln", "bn@final"], seeds=3, out="runs", metrics={"accuracy": True})
"""


@pytest.mark.slow
def test_a_terminal_gets_one_grid(tmp_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _OWN],
        cwd=tmp_path,
        stderr=theirs,
        stdin=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:
        pass  # the other end is closed
    assert process.wait() == 0
    text = said.decode()
    assert "6 of 6 runs" in text and text.count("✓") >= 6, text
