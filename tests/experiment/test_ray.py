"""The launcher of Ray, on a stand-in with Ray's calls; ``test_ray_cluster.py`` has the real one."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from noted_runs import Watching, jobs

from sepnorm import SepNormError
from sepnorm.errors import RunFailedError
from sepnorm.experiment.launchers import ray as launcher
from sepnorm.experiment.launchers.jobs import Ended, Tally
from sepnorm.experiment.launchers.ray import _connected, _knock, _needed, _Runs
from sepnorm.experiment.launchers.transfer import Place


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        self.cause = cause


class StandIn:
    """A cluster that ends tasks as it was told: by a result, or by what is raised."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, RayActorError=RayActorError, GetTimeoutError=GetTimeoutError
    )

    def __init__(self, *ends, nodes=({"CPU": 2.0},)):
        self.ends, self.options, self.cancelled, self.sent, self.tidied = list(ends), [], [], [], []
        self._nodes = nodes

    def nodes(self):
        return [{"Resources": node, "Alive": node is not None} for node in self._nodes]

    def remote(self, function):
        def options(**options):
            if function is launcher._remove_there:
                self.tidied.append(options["scheduling_strategy"])
                return SimpleNamespace(remote=lambda *given: function(*given))
            self.options.append(options)
            return SimpleNamespace(remote=begin)

        def begin(*given):
            self.sent.append(given[4])
            return len(self.options), given[-1]

        return SimpleNamespace(options=options)

    def wait(self, started, timeout):
        return started[:1], started[1:]

    def get(self, asked, timeout=None):
        if asked == "news":
            return [(0, "node 7", ()), (9, "nobody's", ())]
        if asked is None:  # what tidying returns
            return None
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    def cancel(self, started, force):
        self.cancelled.append(force)


def runs_on(ray, folder, watch=None, **options):
    board = SimpleNamespace(take=SimpleNamespace(remote=lambda: "news"))
    options = {"num_cpus": 1} | options
    return _Runs(ray, options, _needed(options), Tally(watch), Place.of(folder), board)


@pytest.fixture(autouse=True)
def _strategy(monkeypatch):
    monkeypatch.setattr(launcher, "_on", lambda node, soft: (node, soft))


LOST = RayError("The worker died unexpectedly. Check logs.")


def test_room_is_what_all_nodes_have_less_what_runs(tmp_path):
    runs = runs_on(StandIn(nodes=({"CPU": 5.0}, {"CPU": 2.0}, {"CPU": 1.0})), tmp_path, num_cpus=2)
    assert runs.room() == 3
    runs.hand_out(jobs(tmp_path, 2))
    assert runs.room() == 1 and runs.running == 2
    assert runs_on(StandIn(nodes=({"CPU": 2.0},)), tmp_path, num_cpus=0).room() == 2
    assert runs_on(StandIn(nodes=({"CPU": 4.0, "GPU": 1.0}, {"CPU": 8.0})), tmp_path, num_gpus=0.5).room() == 2


def test_what_no_node_can_ever_have_is_refused(tmp_path):
    runs = runs_on(StandIn(nodes=({"CPU": 4.0}, {"CPU": 1.0, "tpu": 1})), tmp_path, num_cpus=9, resources={"tpu": 1})
    with pytest.raises(
        SepNormError, match=r"asks for num_cpus=9, tpu=1: the most that a node has is num_cpus=4, tpu=1\."
    ):
        runs.room()


def test_a_run_whose_process_is_lost_is_tried_again_where_it_was(tmp_path, caplog):
    watch = Watching([])
    ray = StandIn(LOST, (Ended("stopped"), None), (Ended("done"), None))
    runs = runs_on(ray, tmp_path, watch)
    runs.hand_out(jobs(tmp_path, 1))
    with caplog.at_level(logging.WARNING, "sepnorm"):
        for _ in range(3):
            runs.look(stopping=False)
    assert runs.running == 0 and watch.ended == [(0, False)]
    assert [each.get("scheduling_strategy") for each in ray.options] == [None, ("node 7", True), ("node 7", True)]
    assert "ln, seed 0, lost its process (The worker died unexpectedly)" in caplog.text
    assert "(it was told to stop)" in caplog.text and "try 3 of 3" in caplog.text


def test_a_run_that_is_lost_again_and_again_is_given_up(tmp_path):
    watch = Watching([])
    runs = runs_on(StandIn(LOST, LOST, LOST), tmp_path, watch)
    runs.hand_out(jobs(tmp_path, 1))
    while runs.running:
        runs.look(stopping=False)
    assert watch.ended == [(0, True)]
    with pytest.raises(RunFailedError, match="ln, seed 0, lost its process 3 times"):
        runs.tally.close()


def test_what_is_lost_while_we_stop_is_not_tried_again(tmp_path):
    ray = StandIn(LOST)
    runs = runs_on(ray, tmp_path)
    runs.hand_out(jobs(tmp_path, 1))
    runs.stop(now=False)
    runs.look(stopping=True)
    assert runs.running == 0 and len(ray.options) == 1 and ray.cancelled == [False]
    runs.tally.close()


def test_a_node_without_sepnorm_is_told_of_in_a_sentence(tmp_path):
    runs = runs_on(StandIn(RayTaskError(ModuleNotFoundError("No module named 'sepnorm'"))), tmp_path)
    runs.hand_out(jobs(tmp_path, 1))
    runs.look(stopping=False)
    with pytest.raises(RunFailedError, match=r"did not begin on its node of the cluster .*No module named 'sepnorm'"):
        runs.tally.close()


def test_nobody_at_an_address_is_found_out_at_once(free_port):
    with pytest.raises(OSError, match="refused"):
        _knock(f"127.0.0.1:{free_port}")
    for address in ("", "auto", "local"):
        _knock(address)


def test_a_cluster_that_does_not_start_in_time_is_one_sentence():
    def init(**_):
        raise Exception("The current node timed out during startup. This could happen because a component failed.")

    stopped = []
    ray = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: stopped.append(True))
    with (
        pytest.raises(SepNormError, match=r"cannot be reached or started: The current node timed out during startup"),
        _connected(ray, "local"),
    ):
        raise AssertionError("it has not started")
    assert stopped


STALE = Ended("failed", "the run of ln, seed 0 raised OSError: Stale file handle (error.txt).", again=True)


def test_an_error_that_may_pass_is_tried_once_more(tmp_path, caplog):
    watch = Watching([])
    ray = StandIn((STALE, None), (Ended("done"), None))
    runs = runs_on(ray, tmp_path, watch)
    runs.hand_out(jobs(tmp_path, 1))
    with caplog.at_level(logging.WARNING, "sepnorm"):
        while runs.running:
            runs.look(stopping=False)
    assert watch.ended == [(0, False)] and len(ray.options) == 2
    assert "OSError: Stale file handle (error.txt): it is tried once more, from its last checkpoint." in caplog.text
    runs.tally.close()


@pytest.mark.parametrize(
    ("ends", "stopping", "tries"),
    [([STALE, STALE], False, 2), ([STALE._replace(again=False)], False, 1), ([STALE], True, 1)],
)
def test_an_error_that_stays_is_told_of(tmp_path, ends, stopping, tries):
    ray = StandIn(*((end, None) for end in ends))
    runs = runs_on(ray, tmp_path)
    runs.hand_out(jobs(tmp_path, 1))
    while runs.running:
        runs.look(stopping)
    assert len(ray.options) == tries
    with pytest.raises(RunFailedError, match="seed 0 raised OSError: Stale file handle"):
        runs.tally.close()


def test_a_board_that_is_lost_is_no_news(tmp_path):
    class Boardless(StandIn):
        def get(self, asked, timeout=None):
            if asked == "news":
                raise RayActorError("The actor died unexpectedly.")
            return super().get(asked)

    watch = Watching([])
    runs = runs_on(Boardless((Ended("done"), None)), tmp_path, watch)
    runs.hand_out(jobs(tmp_path, 1))
    runs.look(stopping=False)
    assert runs.running == 0 and watch.ended == [(0, False)]
