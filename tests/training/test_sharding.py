"""A run whose weights are spread over two processes (FSDP2, through accelerate) is the run of one process that has them all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from ports import free_port
from processes import IMAGES, jobs, releasing, worker

import sepnorm
from sepnorm.domains import open_domain
from sepnorm.errors import SepNormError
from sepnorm.training.sharding import check_sharding, refuse_sharding

SHORT = {"max_steps": 8, "checkpoints": 3}
RUNS = ("images", "accumulated", "text", "property", "masked")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[dict, dict, dict]:
    """By one process, by two that share the weights, and by these again from the last checkpoint but one."""
    folder = tmp_path_factory.mktemp("shards")
    every = jobs(folder)
    work = {name: (every[name][0], every[name][1] | SHORT) for name in (f"{each} bn+ln float32" for each in RUNS)}
    for name, (domain, settings) in list(work.items()):
        work[name.replace("float32", "bf16")] = (domain, settings | {"precision": "bf16"})
    sharded = {name: (domain, settings | {"sharded": True}) for name, (domain, settings) in work.items()}
    found = []
    for world, todo in ((1, work), (2, sharded), (2, sharded)):
        (folder / "meeting").unlink(missing_ok=True)
        mp.spawn(worker, (world, todo, str(folder)), nprocs=world, daemon=True)
        found.append(torch.load(folder / f"{world}-0.pt", weights_only=True))
        for name in todo:
            shutil.rmtree(folder / f"{world}" / name / "checkpoint-8")
    return found[0], found[1], found[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-4), ("bf16", 1e-2)])
@pytest.mark.parametrize("what", RUNS)
def test_two_processes_with_half_of_the_weights_learn_what_one_does(runs, what, precision, bound):
    one, two = (found[f"{what} bn+ln {precision}"] for found in runs[:2])
    losses = [[loss for _, loss in found["losses"]] for found in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=bound)
    assert losses[0][-1] < losses[0][0] * (1 - 2 * bound)  # something was learnt
    kinds = {value.dtype for name, value in two["weights"].items() if "running" in name}
    assert kinds == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("what", RUNS)
def test_a_sharded_run_that_goes_on_ends_with_the_same_weights(runs, what, precision):
    whole, resumed = (found[f"{what} bn+ln {precision}"] for found in runs[1:])
    assert resumed["losses"] == whole["losses"] and (whole["resumed_from"], resumed["resumed_from"]) == (0, 6)
    assert all(torch.equal(resumed["weights"][name], value) for name, value in whole["weights"].items())


@pytest.mark.slow
def test_the_whole_model_is_moved_by_the_first_process_when_the_copy_that_was_trained_is_gone(tmp_path):
    domain, settings = jobs(tmp_path)["images bn+ln float32"]
    work = {"images float32": (domain, settings | {"max_steps": 2, "sharded": True})}
    mp.spawn(releasing, (2, work, str(tmp_path)), nprocs=2, daemon=True)
    assert json.loads((tmp_path / "left-0.json").read_text()) == []
    assert not (tmp_path / "left-1.json").exists()


@pytest.mark.slow
def test_torchrun_ends_with_a_model_that_can_be_loaded(tmp_path):
    words = ["pretrain", "images", "--norm", "bn+ln@all", "--max-steps", "6", "--out", "run", "--set", "sharded=true"]
    words += [word for key, value in (IMAGES | {"threads": 1}).items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "sepnorm", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    model = sepnorm.load(tmp_path / "run" / "model")
    assert any(isinstance(module, sepnorm.SepNorm) for module in model.modules())
    assert json.loads((tmp_path / "run" / "config.json").read_text())["sharded"]
    assert (tmp_path / "run" / "metrics.json").is_file()


def test_sharding_takes_several_processes_and_is_asked_for_by_the_config(monkeypatch):
    config = open_domain("images").presets["demo"]
    with pytest.raises(SepNormError, match="and there is one"):
        check_sharding(config.changed({"sharded": True}))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(SepNormError, match="--set sharded=true"):
        check_sharding(config)
    check_sharding(config.changed({"sharded": True}))
    with pytest.raises(SepNormError, match="each run of a comparison has one process: start it without accelerate"):
        refuse_sharding(config)
    with pytest.raises(SepNormError, match="leave it out, or train each norm by sepnorm pretrain"):
        refuse_sharding(config.changed({"sharded": True}))
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    refuse_sharding(config)
