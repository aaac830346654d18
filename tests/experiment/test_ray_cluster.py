"""Runs on a real Ray cluster: two nodes of ``ray start`` on this machine, and one that is started for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from ray_nodes import ROOT, Nodes, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a dozen processes on cores that others may use too
    pytest.mark.skipif(
        not (ROOT / ".ray" / "ray").is_dir() and find_spec("ray") is None, reason="ray is not installed: make .ray"
    ),
]
MODEL = "width=16 depth=2 heads=2 decoder_width=8 decoder_depth=1 decoder_heads=2"
SETTINGS = f"{MODEL} batch_size=32 threads=1 checkpoints=9 monitor=0"
COMMAND = [
    *(sys.executable, "-m", "sepnorm", "compare", "images", "--norms", "ln,bn@final,bn+ln@final", "--seeds", "1"),
    *("--max-steps", "100", *(word for each in SETTINGS.split() for word in ("--set", each))),
]
ARMS = ("ln", "bn@final", "bn+ln@final")


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """A folder that the second node does not see."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def nodes(hidden):
    found = Nodes(hidden)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same comparison by the local launcher, which runs while the nodes are started: gives its results."""
    folder = tmp_path_factory.mktemp("alone")
    process = subprocess.Popen([*COMMAND, "--quiet", "--out", folder], env=environment())

    def wait():
        assert process.wait(600) == 0
        return scores(folder)

    return wait


def scores(folder):
    """All results but the speed, and the weights."""
    arms = json.loads((folder / "results.json").read_text())["arms"]
    for arm in arms:
        for found in (arm["metrics"], *arm["seeds"].values()):
            del found["images_per_second"]
    weights = {path.parts[-3:]: path.read_bytes() for path in folder.glob("runs/*/model/*.safetensors")}
    assert len(weights) == len(ARMS)
    return arms, weights


def resumed_from(folder):
    """The step from which each run went on, by name; 0 where it was not interrupted."""
    paths = folder.glob("runs/*/environment.json")
    return {path.parent.name: json.loads(path.read_text())["resumed_from"] for path in paths}


def begin(nodes, folder, apart=False):
    """The command on the cluster, when a run has saved itself for the first time; on the node that does not see it if ``apart``."""

    def saved():
        note = folder / "runs" / ".sepnorm-shared"
        if not apart:
            return list(folder.glob("runs/*/checkpoints/*/complete"))
        where = Path(tempfile.gettempdir()) / f"sepnorm-{note.read_text()}" if note.is_file() else folder / "nowhere"
        return list(where.glob("*/checkpoints/*/complete"))

    command = [*COMMAND, "--out", folder, "--launcher", f"ray address={nodes.address}"]
    log = open(folder / "log", "wb")  # noqa: SIM115
    process = subprocess.Popen(command, stdout=log, stderr=log, env=nodes.environment)
    deadline = time.monotonic() + 500
    while not saved():
        assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)
    return process


def test_three_arms_end_as_on_one_machine_though_a_worker_is_killed(alone, nodes, tmp_path):
    process = begin(nodes, tmp_path)
    os.kill(nodes.workers()[0], signal.SIGKILL)
    assert process.wait(600) == 0
    log = (tmp_path / "log").read_text()
    assert "lost its process" in log and "goes on from its last checkpoint: try 2 of 3" in log
    assert "Traceback" not in log and "(raylet)" not in log
    assert all(f"{arm}, seed 0: step 100 of 100" in log for arm in ARMS)
    assert scores(tmp_path) == alone()
    assert max(resumed_from(tmp_path).values()) > 0


def test_control_c_saves_and_the_same_command_goes_on(alone, nodes, hidden):
    """In a folder that one of the nodes does not see: what that one has saved is fetched, and sent along."""
    out = hidden / "stopped"
    out.mkdir()
    process = begin(nodes, out, nodes.apart)
    process.send_signal(signal.SIGINT)
    assert process.wait(500) == 130
    last = (out / "log").read_text().splitlines()[-1]
    assert (
        last == f"Stopped: the comparison was stopped and is saved in {out}/runs: the same command goes on from there."
    )
    saved = list(out.glob("runs/*/checkpoints/*/complete"))
    assert saved and not nodes.workers()
    begun = {path.parent.parent.parent.name for path in saved}
    command = [*COMMAND, "--out", out, "--quiet", "--launcher", f"ray address={nodes.address}"]
    subprocess.run(command, check=True, env=nodes.environment, timeout=600)
    assert scores(out) == alone()
    assert all(resumed_from(out)[name] > 0 for name in begun)


CLIENT = [sys.executable, Path(__file__).with_name("ray_client.py")]


def client(what, folder, launcher, env):
    done = subprocess.run([*CLIENT, what, folder, launcher], capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_failing_run_is_named_and_runs_come_from_a_node_that_does_not_see_our_folder(nodes, hidden):
    out = hidden / "out"
    told = client("failing", out, f"ray address={nodes.address}", nodes.environment)["told"]
    failed = out / "runs" / "bn@final-seed1"
    assert told == (
        f"the run of bn@final, seed 1 raised ValueError: odd ({failed / 'error.txt'}). The other runs are done and kept: the same "
        f"call runs only what is missing. The seeds that are complete are in {out / 'report.html'}. If an arm fails again, "
        "leave it out: the same folder goes on with the others."
    )
    assert "ValueError: odd" in (failed / "error.txt").read_text()
    assert len(list(out.glob("runs/*/metrics.json"))) == 8
    assert {path.read_text() for path in out.glob("runs/*/files/node.txt")} == nodes.hosts
    if not nodes.apart:
        pytest.skip("a node that does not see our folder takes unshare and mount, which are not allowed here")
    assert not list(Path("/tmp").glob(f"sepnorm-{(out / 'runs' / '.sepnorm-shared').read_text()}/*"))


def test_runs_of_a_node_that_is_killed_are_done_by_another(tmp_path):
    hidden, out = tmp_path / "hidden", tmp_path / "out"
    hidden.mkdir()
    nodes = Nodes(hidden)
    try:
        words = [*CLIENT, "lost", out, f"ray address={nodes.address}"]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=nodes.environment
        )
        deadline = time.monotonic() + 300
        while not any(path.read_text().endswith(".2") for path in out.glob("runs/*/files/node.txt")):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.1)
        nodes.kill_second()
        told, log = process.communicate(timeout=600)
    finally:
        nodes.stop()
    assert process.returncode == 0 and json.loads(told.splitlines()[-1])["told"] == "", log
    assert "lost its process" in log and "Traceback" not in log
    assert len(list(out.glob("runs/*/metrics.json"))) == 6
    assert all(path.read_text().endswith(".1") for path in out.glob("runs/*/files/node.txt"))


def test_a_cluster_of_our_own_adds_seeds_as_one_machine_does_and_is_stopped(tmp_path):
    found = client("auto", tmp_path / "ray", "ray address=local", environment())
    assert found == {"told": "", "left": []}
    client("auto", tmp_path / "alone", "local", environment())
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("ray", "alone")]
    assert results[0] == results[1] and 3 <= len(results[0]["arms"][0]["seeds"]) < 12
    nodes = {path.read_text() for path in (tmp_path / "ray").glob("runs/*/files/node.txt")}
    assert nodes and "here" not in nodes


def test_what_no_node_has_and_settings_that_ray_does_not_know_are_told_at_once(nodes, tmp_path):
    def refused(settings):
        command = [*COMMAND, "--quiet", "--out", tmp_path, "--launcher", f"ray {settings}"]
        done = subprocess.run(command, capture_output=True, text=True, env=nodes.environment, timeout=300)
        assert done.returncode == 1 and not list(tmp_path.glob("runs/*/config.json"))
        return done.stderr

    said = refused(f"address={nodes.address} num_cpus=9")
    assert said.startswith(
        "Error: no node of the Ray cluster has room for a run, which asks for num_cpus=9: the most that"
    )
    assert len(said.splitlines()) == 1
    assert "Invalid option keyword num_cpu " in refused(f"address={nodes.address} num_cpu=1")
