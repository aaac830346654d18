"""Two hosts with addresses of their own, joined by torchrun: what they learn is what one process does, and what they say
when the other is cut off, slow or gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from nodes import ROOT, Nodes, two_nodes
from ports import free_port
from processes import IMAGES, jobs, worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RUNS = ("images", "text", "property", "masked")
STEPS = 24
WAIT = 15  # seconds that processes wait for each other
SETTINGS = IMAGES | {"threads": 1, "checkpoints": 11, "monitor": 0, "timeout": WAIT}
COMMAND = ["-m", "sepnorm", "pretrain", "images", "--norm", "bn+ln@all", "--max-steps", str(STEPS), "--out", "run"]
COMMAND += ["--resume", *(word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}"))]
GONE = "another process of this run is gone"


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    try:
        context = two_nodes(free_port())
        found = context.__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    try:
        yield found
    finally:
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> list[float]:
    """The losses of ``COMMAND`` in one process."""
    folder = tmp_path_factory.mktemp("alone")
    surroundings = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, *COMMAND], cwd=folder, env=surroundings, check=True, capture_output=True, timeout=200
    )
    return losses_in(folder)


def losses_in(folder: Path) -> list[float]:
    return [loss for _, loss in json.loads((folder / "run" / "losses.json").read_text())]


def environment(folder: Path) -> dict:
    return json.loads((folder / "run" / "environment.json").read_text())


def checkpoints(folder: Path) -> set[Path]:
    return set((folder / "run" / "checkpoints").glob("checkpoint-*/complete"))


def wait_for(what: Callable[[], object], nodes: Nodes, process: subprocess.Popen, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, nodes.said(process)
        time.sleep(0.05)


def begin(nodes: Nodes, folder: Path, *options: str) -> list[subprocess.Popen]:
    """Both hosts at work, and so far that a checkpoint is written that was not there before."""
    known = checkpoints(folder)
    started = nodes.both(COMMAND, folder, *options)
    wait_for(lambda: checkpoints(folder) - known, nodes, started[0], 200)
    return started


@pytest.mark.parametrize(("delay", "what"), [(0.0, RUNS), (0.2, RUNS[:1])], ids=["near", "far"])
def test_two_hosts_learn_what_one_process_does(nodes, tmp_path, delay, what):
    """Also to the end of a run whose every message is under way for 200 ms."""
    nodes.wire.delay = delay
    every, steps = jobs(tmp_path), {"max_steps": 6 if delay else 8}
    work = {name: (every[name][0], every[name][1] | steps) for name in (f"{each} bn+ln float32" for each in what)}
    (tmp_path / "work.json").write_text(json.dumps(work))
    started = nodes.both([str(Path(__file__).parent / "processes.py"), str(tmp_path)], tmp_path)
    for process in started:
        assert process.wait(timeout=400) == 0, nodes.said(process)
    mp.spawn(worker, (1, work, str(tmp_path)), nprocs=1, daemon=True)
    one, two = (torch.load(tmp_path / f"{world}-0.pt", weights_only=True) for world in (1, 2))
    for name in work:
        expected = [loss for _, loss in one[name]["losses"]]
        assert len(expected) == steps["max_steps"]
        assert [loss for _, loss in two[name]["losses"]] == pytest.approx(expected, rel=1e-4, abs=1e-4), name


def test_a_host_that_is_cut_off_slow_or_killed(nodes, tmp_path, alone):
    nodes.wire.delay = 0.02  # so that there is time to do something to it
    first, second = begin(nodes, tmp_path)
    nodes.cut()
    for process in (first, second):
        wait_for(lambda process=process: GONE in nodes.said(process), nodes, process, WAIT + 30)
    assert first.wait(timeout=60) != 0
    nodes.kill(second)  # torchrun itself waits there for the host that it is cut off from
    nodes.cut(False)

    nodes.wire.delay = 0.2
    first, second = begin(nodes, tmp_path)  # a slow one is waited for
    nodes.kill(second)
    assert first.wait(timeout=WAIT + 60) != 0
    assert GONE in nodes.said(first) and "--resume" in nodes.said(first)

    nodes.wire.delay = 0.0
    for process in nodes.both(COMMAND, tmp_path):
        assert process.wait(timeout=200) == 0, nodes.said(process)
    assert losses_in(tmp_path) == pytest.approx(alone, rel=1e-4)
    assert environment(tmp_path)["resumed_from"] > 0


def test_with_a_host_fewer_torchrun_begins_again_and_the_run_goes_on(nodes, tmp_path, alone):
    nodes.wire.delay = 0.02
    first, second = begin(nodes, tmp_path, "--nnodes", "1:2", "--max-restarts", "3")
    assert environment(tmp_path)["processes"] == 2
    nodes.kill(second)
    assert first.wait(timeout=200) == 0, nodes.said(first)
    assert environment(tmp_path)["processes"] == 1 and environment(tmp_path)["resumed_from"] > 0
    assert losses_in(tmp_path) == pytest.approx(alone, rel=1e-4)
