"""Batches that workers make ahead: the same as without them, in order, going on exactly, and nothing hangs or is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from sepnorm import SepNormError
from sepnorm.data.streams import Stream, open_rows
from sepnorm.domains.images.config import PRESETS, ImageConfig
from sepnorm.training.batching import Samples
from sepnorm.training.prefetch import Prefetched, _gone, _Worker, prefetched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
CONFIG = PRESETS["demo"].changed({"batch_size": 4, "max_steps": 40})
ROWS, BUFFER = 96, 16
SPOILED = SepNormError("7 is spoiled.")


@pytest.fixture
def shards(tmp_path) -> Path:
    """Four files of 24 numbers each."""
    for shard in range(4):
        (tmp_path / f"{shard}.txt").write_text("\n".join(str(24 * shard + row) for row in range(24)))
    return tmp_path


class TwoPartsError(Exception):
    """As of some libraries, such as botocore: it is pickled by its message, from which it cannot be made again."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"no answer from {host}:{port}")


def steps_of(
    folder: Path,
    workers: int,
    config: ImageConfig = CONFIG,
    spoiled: str = "",
    error: Exception = SPOILED,
) -> Prefetched:
    def number(row: dict) -> list[int] | None:
        if row["text"] == spoiled:
            raise error
        return [int(row["text"])]

    def read(found: list[int]) -> Samples:
        return Samples(len(found), lambda chosen, own, generator: {"found": torch.tensor(found)[chosen][own]})

    open_stream = partial(Stream, str(folder), open_rows(str(folder)), number, 0)
    steps = prefetched(config.changed({"workers": workers}), BUFFER, open_stream, read)
    assert isinstance(steps, Prefetched)
    return steps


def batches(steps: Prefetched, numbers: range) -> list[list[int]]:
    return [steps[number]["found"].tolist() for number in numbers]


def worker_of(steps: Prefetched, number: int = 0) -> int:
    pid = steps._workers[number]._process.pid
    assert pid is not None
    return pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_one_worker_makes_what_none_makes(shards):
    here, ahead = steps_of(shards, 0), steps_of(shards, 1)
    assert batches(here, range(40)) == batches(ahead, range(40))
    pid = worker_of(ahead)
    assert is_running(pid)
    ahead.close()
    assert not is_running(pid)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_share_the_samples_and_a_run_goes_on_exactly(shards, tmp_path_factory, workers):
    whole = steps_of(shards, workers)
    found = batches(whole, range(30))
    if workers < 3:  # of four shards, three workers have one or two each, and begin again after different times
        assert sorted(number for batch in found[: ROWS // 4] for number in batch) == list(range(ROWS))
    for done in (1, 5, 9):
        first = steps_of(shards, workers)
        batches(first, range(done))
        checkpoint = tmp_path_factory.mktemp("checkpoint")
        first.save(checkpoint)
        first.close()
        again = steps_of(shards, workers)
        again.resume(checkpoint)
        assert batches(again, range(done, 30)) == found[done:]
        again.close()
    whole.close()
    with pytest.raises(SepNormError, match=f"written by {workers} workers that shared a stream, and now there are 4"):
        steps_of(shards, 4).resume(checkpoint)


def test_a_buffer_is_shared_by_the_workers(shards):
    with pytest.raises(SepNormError, match="stream=16 is smaller than a batch of 4 for each of 5 workers"):
        steps_of(shards, 5)


def test_what_a_worker_refuses_is_said_here_as_it_was_said_there(shards):
    steps = steps_of(shards, 1, spoiled="7")
    with pytest.raises(SepNormError, match=r"^7 is spoiled\.$"):
        batches(steps, range(40))
    steps.close()


@pytest.mark.timeout(60)
def test_an_error_that_cannot_be_sent_is_told_of_and_nothing_hangs(shards):
    class LocalError(TwoPartsError):
        """One that cannot even be pickled."""

    for error in (TwoPartsError("host", 443), LocalError("host", 443)):
        steps = steps_of(shards, 1, spoiled="7", error=error)
        said = rf"failed by {type(error).__name__}: no answer from host:443\. Reading in the training process"
        with pytest.raises(SepNormError, match=said) as caught:
            batches(steps, range(40))
        assert "in number" in caught.value.__notes__[0]  # the worker's traceback
        steps.close()


@pytest.mark.timeout(60)
def test_a_batch_that_shared_memory_has_no_room_for_is_told_of_and_not_left_out(shards, monkeypatch):
    share = torch.Tensor.share_memory_

    def full(batch: torch.Tensor) -> torch.Tensor:
        if 7 in batch:
            raise RuntimeError(
                "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"
            )
        return share(batch)

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    steps = steps_of(shards, 1)
    with pytest.raises(SepNormError, match=r"ran out of shared memory: give the container more of it .*--shm-size"):
        batches(steps, range(40))
    steps.close()


@pytest.mark.timeout(60)
def test_what_fails_here_while_a_worker_runs_is_told_of_too(shards, monkeypatch):
    steps = steps_of(shards, 1)

    def get(timeout: float) -> None:
        raise RuntimeError("unable to mmap 4096 bytes")

    forked = _Worker.begin

    def begin(worker: _Worker) -> None:
        worker._made.get = get
        forked(worker)

    monkeypatch.setattr(_Worker, "begin", begin)
    with pytest.raises(SepNormError, match="failed by RuntimeError: unable to mmap 4096 bytes"):
        steps[0]
    steps.close()


def test_a_worker_goes_on_at_ctrl_c_and_one_that_is_killed_is_told_of(shards):
    steps = steps_of(shards, 1)
    batches(steps, range(2))
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(worker_of(steps), number)
    batches(steps, range(2, 20))
    os.kill(worker_of(steps), signal.SIGKILL)
    with pytest.raises(SepNormError, match=r"is gone \(killed by SIGKILL\), often for want of memory"):
        batches(steps, range(20, 40))
    steps.close()
    assert "--shm-size" in _gone(-signal.SIGBUS)


def test_workers_do_not_outlive_a_process_that_is_killed(shards):
    code = (
        "import sys, time; from pathlib import Path; from training.test_prefetch import *\n"
        f"steps = steps_of(Path({str(shards)!r}), 2); batches(steps, range(2))\n"
        "print(worker_of(steps, 0), worker_of(steps, 1), flush=True); time.sleep(60)"
    )
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), str(tests.parent)])
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_running, pids))
        process.kill()
    until = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_running, pids))
