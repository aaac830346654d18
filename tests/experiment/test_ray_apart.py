"""Both ends of a run on a node that does not see our folder, each called in this process."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from noted_runs import jobs

sys.path.append(str(Path(__file__).parent))
from test_ray import StandIn, runs_on

from sepnorm import SepNormError
from sepnorm.experiment.launchers import ray as launcher
from sepnorm.experiment.launchers.jobs import Ended
from sepnorm.experiment.launchers.ray import _run_here
from sepnorm.experiment.launchers.transfer import Place, carried, pack, saved


class Node:
    """The far end: a process of another machine that cannot read our note."""

    def __init__(self, job):
        self.job = job
        self.place = replace(Place.of(job.folder.parent), token="of another folder")
        self.folder = self.place.apart(job.folder)

    def run(self, content=None):
        board = SimpleNamespace(write=SimpleNamespace(remote=lambda *news: None))
        return _run_here(self.job, self.place, "nowhere", saved(self.job.folder), content, board, 0)


@pytest.fixture
def node(tmp_path, monkeypatch):
    context = SimpleNamespace(get_node_id=lambda: "node 7")
    there = SimpleNamespace(
        get_gpu_ids=list,
        get=lambda asked: asked,
        get_runtime_context=lambda: context,
        util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7"),
    )
    (tmp_path / "node").mkdir()
    monkeypatch.setitem(sys.modules, "ray", there)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    monkeypatch.setattr(launcher, "as_notes", lambda silent: None)
    monkeypatch.setattr(launcher, "_on", lambda node, soft: (node, soft))
    return Node(jobs(tmp_path / "runs", 1)[0])


def ended(node, end):
    """Our end, which is told ``end`` of the node's only run."""
    ray = StandIn(end)
    runs = runs_on(ray, node.job.folder.parent)
    runs.place = node.place
    runs.hand_out([node.job])
    runs.look(stopping=False)
    return ray


def test_the_folder_stays_on_the_node_until_it_has_arrived(node, monkeypatch):
    result = node.run()
    assert result[0] == Ended("done") and (node.folder / "metrics.json").is_file()
    with pytest.raises(KeyboardInterrupt):  # a second Ctrl-C, as what it returned is on its way
        ended(node, KeyboardInterrupt())
    assert (node.folder / "metrics.json").is_file() and not node.job.folder.exists()

    def full(content, folder):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(launcher, "bring_home", full)
        with pytest.raises(
            SepNormError, match=r"seed 0, cannot be written to .* \(No space left on device\) and is kept"
        ):
            ended(node, result)
    assert (node.folder / "metrics.json").is_file()

    ray = ended(node, node.run())  # it is not done again
    assert (node.job.folder / "metrics.json").is_file() and not node.folder.exists()
    assert ray.tidied == [("node 7", False)]


def test_a_node_without_the_last_checkpoint_is_sent_it(node):
    node.job.folder.mkdir(parents=True)
    (node.job.folder / "config.json").write_text(node.job.config.model_dump_json())
    (node.job.folder / "begun").write_text("here")  # by a node that sees our folder
    first = node.run()
    assert first == (Ended("unsent"), None) and not node.folder.exists()
    ray = StandIn(first, (Ended("done"), None))
    runs = runs_on(ray, node.job.folder.parent)
    runs.hand_out([node.job])
    while runs.running:
        runs.look(stopping=False)
    assert ray.sent == [None, carried(node.job.folder)]
    assert [each.get("scheduling_strategy") for each in ray.options] == [None, ("node 7", True)]
    assert node.run(ray.sent[1])[0] == Ended("done") and (node.folder / "begun").read_text() == "here"


def test_a_node_that_has_more_than_we_keeps_it(node):
    node.run()
    node.job.folder.mkdir(parents=True)
    (node.job.folder / "config.json").write_text(node.job.config.model_dump_json())
    kept = (node.folder / "metrics.json").read_text()
    assert node.run(pack(node.job.folder))[0] == Ended("done")
    assert (node.folder / "metrics.json").read_text() == kept


def test_what_is_not_sent_is_not_begun_while_we_stop(node):
    ray = StandIn((Ended("unsent"), None))
    runs = runs_on(ray, node.job.folder.parent)
    runs.hand_out([node.job])
    runs.look(stopping=True)
    assert runs.running == 0 and len(ray.options) == 1


def test_a_run_that_cannot_be_sent_back_says_so_and_where_it_is(node, monkeypatch):
    def pack(folder):
        raise MemoryError("no room")

    monkeypatch.setattr(launcher, "pack", pack)
    found, content = node.run()
    assert content is None and found.how == "failed"
    assert found.why == (
        f"the run of ln, seed 0, could not be sent back (no room): it is kept in {node.folder} on node 10.0.0.7."
    )
    assert (node.folder / "metrics.json").is_file()
