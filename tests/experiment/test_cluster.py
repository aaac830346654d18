"""What clusters have in common, on one that is made up."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from noted_runs import Noting, Watching, jobs, metrics

from sepnorm import SepNormError
from sepnorm.domains.own_training import OwnRecipe
from sepnorm.errors import InterruptedRunError, RunFailedError
from sepnorm.experiment.launchers.cluster import drive
from sepnorm.experiment.launchers.jobs import Ended, Tally, attempt


class MadeUp:
    """Two places; each look ends the job that was handed out first, while ``events`` happen."""

    def __init__(self, *events) -> None:
        self.events, self.handed, self.most, self.stops, self.under_way = list(events), [], 0, [], []

    @property
    def running(self):
        return len(self.under_way)

    def room(self):
        return 2 - self.running

    def hand_out(self, jobs):
        self.handed += jobs
        self.under_way += jobs
        self.most = max(self.most, self.running)

    def look(self, stopping):
        if self.events:
            self.events.pop(0)()
        self.under_way.pop(0)

    def stop(self, now):
        self.stops.append(now)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_jobs_are_asked_for_when_there_is_a_place():
    cluster, asked = MadeUp(), []
    drive(cluster, (asked.append(job) or job for job in range(5)), Path("there"))
    assert cluster.handed == asked == [0, 1, 2, 3, 4] and cluster.most == 2 and cluster.stops == []
    first = MadeUp(lambda: pytest.fail("more") if len(first.handed) > 2 else None)
    drive(first, iter(range(3)), Path("there"))


def test_control_c_lets_jobs_save_and_hands_out_no_more():
    cluster = MadeUp(interrupt)
    with pytest.raises(InterruptedRunError, match="saved in there: the same command goes on"):
        drive(cluster, iter(range(5)), Path("there"))
    assert cluster.handed == [0, 1] and cluster.stops == [False] and not cluster.running


def test_a_second_control_c_waits_no_longer():
    cluster = MadeUp(interrupt, interrupt)
    with pytest.raises(
        InterruptedRunError, match="in there was stopped at once: the same command continues its runs from their last"
    ):
        drive(cluster, iter(range(5)), Path("there"))
    assert cluster.stops == [False, True] and cluster.running


def test_jobs_do_not_go_on_alone_when_something_goes_wrong_here():
    cluster = MadeUp(lambda: {}["gone"])
    with pytest.raises(KeyError):
        drive(cluster, iter(range(5)), Path("there"))
    assert cluster.stops == [False]


@pytest.mark.parametrize(
    ("data", "ended"),
    [
        ("digits", Ended("done")),
        ("broken", Ended("failed", "the run of ln, seed 0, failed: the data are broken, found nothing: repair them.")),
    ],
)
def test_how_a_job_ends_is_returned(tmp_path, data, ended):
    assert attempt(jobs(tmp_path, 1, data=data)[0], lambda *_: None) == ended


def test_what_a_run_raises_is_a_sentence_and_its_traceback_a_file(tmp_path):
    ended = attempt(jobs(tmp_path, 1, data="odd")[0], lambda *_: None)
    assert ended.how == "failed" and not ended.again
    assert ended.why == f"the run of ln, seed 0 raised ValueError: odd ({tmp_path / '0' / 'error.txt'})."
    assert "Traceback" in (tmp_path / "0" / "error.txt").read_text()


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (OSError(116, "Stale file handle"), True),
        (ConnectionResetError("the peer is gone"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), True),
        (MemoryError(), True),
        (FileNotFoundError(2, "No such file or directory"), False),
        (PermissionError(13, "Permission denied"), False),
        (NotADirectoryError(20, "Not a directory"), False),
        (IsADirectoryError(21, "Is a directory"), False),
        (ValueError("odd"), False),
        (RuntimeError("the shapes differ"), False),
        (SepNormError("the data are broken, found nothing: repair them."), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_may_pass_are_told_apart_from_those_that_stay(tmp_path, monkeypatch, error, again):
    def fail(*_):
        raise error

    job = jobs(tmp_path, 1)[0]
    with monkeypatch.context() as patch:
        patch.setattr(Noting, "run", fail)
        assert attempt(job, lambda *_: None).again is again
    of_a_user = replace(job, recipe=OwnRecipe(fail, ()).opened, folder=tmp_path / "own")
    assert attempt(of_a_user, lambda *_: None).again is again
    assert attempt(job, lambda *_: None).how == "done" and not (job.folder / "error.txt").exists()


def test_a_job_that_is_interrupted_is_stopped(tmp_path):
    def report(*_):
        raise KeyboardInterrupt

    assert attempt(jobs(tmp_path, 1)[0], report) == Ended("stopped")


def test_a_process_reads_its_data_once(tmp_path):
    first, second = jobs(tmp_path, 2)
    attempt(first, lambda *_: None)
    opened = []
    first.recipe.__init__, usual = lambda self, base: opened.append(base), first.recipe.__init__
    try:
        assert attempt(second, lambda *_: None).how == "done"
    finally:
        first.recipe.__init__ = usual
    assert opened == [] and len(metrics(tmp_path, 2)) == 2


def test_runs_are_told_of_and_failures_named_at_the_end(tmp_path):
    seen: list[tuple] = []
    watch = Watching(seen)
    tally = Tally(watch)
    many = jobs(tmp_path, 8)
    tally.progress(many[0], ())
    tally.progress(many[0], (1, 2, 0.5, 10.0))
    tally.end(many[0])
    for job in many[1:]:
        tally.end(job, f"{job.name}, failed: it is odd.")
    assert seen == [(0, 1, 2, 0.5, 10.0)]
    assert watch.ended == [(seed, seed > 0) for seed in range(8)]
    with pytest.raises(RunFailedError, match=r"ln, seed 1, failed: it is odd; .*seed 2, .*; 5 more failed\. The other"):
        tally.close()
    Tally(None).close()
    assert issubclass(RunFailedError, SepNormError)
