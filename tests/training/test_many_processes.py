"""A run in two gloo processes, with half of every batch each, is the run of one process with the whole batch.

Weights are compared in float64, where it can be seen that nothing but rounding is different. In float32 the losses are: Adam
divides a gradient by its own size, and so makes steps of full length from the rounding of gradients that are 0, as those of a
bias before a batch norm are.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from PIL import Image

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from ports import free_port
from processes import IMAGES, STEPS, dropping, jobs, streaming, train, worker

from sepnorm.domains import open_domain
from sepnorm.errors import SepNormError
from sepnorm.training.batching import Samples, Steps

SHORT = 8  # steps of the shortest runs that are compared, here and in other files
BOUND = 1e-4  # of their losses in float32
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # eight processes on two cores that others may use too


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[dict, dict]:
    folder = tmp_path_factory.mktemp("processes")
    work = jobs(folder)
    for world in (1, 2):
        mp.spawn(worker, (world, work, str(folder)), nprocs=world, daemon=True)
    one, two = (torch.load(folder / f"{world}-0.pt", weights_only=True) for world in (1, 2))
    assert torch.load(folder / "2-1.pt", weights_only=True) == {}
    return one, two


@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn"])
@pytest.mark.parametrize("what", ["images", "accumulated", "text", "property", "masked"])
def test_two_processes_learn_what_one_does(runs, what, norm):
    one, two = (found[f"{what} {norm} float64"] for found in runs)
    assert [step for step, _ in one["losses"]] == [step for step, _ in two["losses"]] == list(range(1, STEPS + 1))
    assert [loss for _, loss in two["losses"]] == pytest.approx([loss for _, loss in one["losses"]], abs=1e-6)
    assert one["weights"].keys() == two["weights"].keys()
    for name, value in one["weights"].items():
        assert torch.allclose(two["weights"][name].double(), value.double(), atol=1e-6), name


@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn"])
@pytest.mark.parametrize("what", ["images", "accumulated", "text", "property", "masked"])
def test_two_processes_learn_what_one_does_in_float32(runs, what, norm):
    one, two = (found[f"{what} {norm} float32"]["losses"] for found in runs)
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], rel=BOUND, abs=BOUND)


@pytest.mark.parametrize("what", ["images", "accumulated", "text", "property", "masked"])
def test_the_losses_tell_another_norm_and_weights_that_do_not_move(tmp_path, what):
    """In so few steps and by ten times the bound, or it would show nothing that losses are alike."""
    domain, settings = jobs(tmp_path)[f"{what} bn+ln float32"]
    settings |= {"max_steps": SHORT, "monitor": 0}
    right, *wrong = (
        torch.tensor([loss for _, loss in train(domain, settings | change, tmp_path / str(number))["losses"]])
        for number, change in enumerate(({}, {"norm": "ln"}, {"learning_rate": 1e-12}))
    )
    for other in wrong:
        assert float(((other - right).abs() / (BOUND * (1 + right))).max()) > 10


def test_each_process_drops_out_other_parts_and_the_run_goes_on_bit_by_bit(tmp_path):
    domain, settings = jobs(tmp_path)["property bn+ln float32"]
    settings |= {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1, "max_steps": 8, "checkpoints": 3}
    found = []
    for _ in range(2):
        (tmp_path / "meeting").unlink(missing_ok=True)
        mp.spawn(dropping, (2, {"dropout": (domain, settings)}, str(tmp_path)), nprocs=2, daemon=True)
        run = torch.load(tmp_path / "2-0.pt", weights_only=True)["dropout"]
        found.append((run, *(torch.load(tmp_path / f"masks-{rank}.pt", weights_only=True) for rank in (0, 1))))
        shutil.rmtree(tmp_path / "2" / "dropout" / "checkpoint-8")
    (whole, first, second), (resumed, *again) = found
    assert first["weights"].keys() == second["weights"].keys()
    assert all(torch.equal(value, second["weights"][name]) for name, value in first["weights"].items())
    assert len(first["masks"]) == len(second["masks"]) > 8
    assert not any(torch.equal(*pair) for pair in zip(first["masks"], second["masks"], strict=True))
    for masks, later in ((first["masks"], again[0]["masks"]), (second["masks"], again[1]["masks"])):
        assert 0 < len(later) < len(masks)
        assert all(torch.equal(*pair) for pair in zip(masks[-len(later) :], later, strict=True))
    assert resumed["losses"] == whole["losses"] and (whole["resumed_from"], resumed["resumed_from"]) == (0, 6)
    assert all(torch.equal(resumed["weights"][name], value) for name, value in whole["weights"].items())


def test_two_processes_share_a_stream_and_go_on_within_a_buffer(tmp_path):
    domain, settings = jobs(tmp_path)["text bn+ln float32"]
    words = ["the cat", "a dog", "the mat", "b c d", "cat and dog", "on the mat", "e"]
    (tmp_path / "shards").mkdir()
    for shard in range(4):
        lines = [f"{words[n % 7]} {n % 10} {n // 10} {shard}" for n in range(40)]
        (tmp_path / "shards" / f"{shard}.txt").write_text("\n".join(lines))
    settings |= {"data": str(tmp_path / "shards"), "sentences": None, "stream": 48, "max_steps": 10, "checkpoints": 3}
    found = []
    for _ in range(2):
        (tmp_path / "meeting").unlink(missing_ok=True)
        mp.spawn(streaming, (2, {"stream": (domain, settings)}, str(tmp_path)), nprocs=2, daemon=True)
        run = torch.load(tmp_path / "2-0.pt", weights_only=True)["stream"]
        found.append((run, *(torch.load(tmp_path / f"batches-{rank}.pt", weights_only=True) for rank in (0, 1))))
        shutil.rmtree(tmp_path / "2" / "stream" / "checkpoint-10")
    (whole, *batches), (resumed, *again) = found
    rows = [
        {tuple(row[row > 0].tolist()) for number in range(6) for row in each[number]["input_ids"]} for each in batches
    ]
    assert len(rows[0]) == len(rows[1]) == 6 * 8 and not rows[0] & rows[1]  # of two buffers, each line once
    for first, second in zip(batches, again, strict=True):
        assert sorted(first) == [*range(10)] and sorted(second) == [8, 9]
        for number, batch in second.items():
            assert all(torch.equal(value, first[number][key]) for key, value in batch.items() if torch.is_tensor(value))
    assert (whole["resumed_from"], resumed["resumed_from"]) == (0, 8) and resumed["losses"] == whole["losses"]
    assert all(torch.equal(resumed["weights"][name], value) for name, value in whole["weights"].items())


def test_a_batch_that_cannot_be_shared_is_refused(monkeypatch):
    config = open_domain("images").presets["demo"].changed({"batch_size": 15})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SepNormError, match="choose a batch_size that is a multiple of 2"):
        Steps(config, Samples(100, lambda *_: {}))
    even = config.changed({"batch_size": 64})
    assert Steps(even, Samples(33, lambda *_: {})).batch == 32
    with pytest.raises(SepNormError, match="3 samples are too few for 2 processes"):
        Steps(even, Samples(3, lambda *_: {}))


def test_torchrun_runs_the_command_and_only_the_first_process_writes_and_speaks(tmp_path):
    """On a stream, of which each process uses rows of its own."""
    for number in range(120):
        folder = tmp_path / "data" / ("test" if number % 6 == 0 else "train") / str(number % 4)
        folder.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((8, 8), 64).save(folder / f"{number}.png")
    words = ["pretrain", "images", "--norm", "bn+ln@all", "--max-steps", "6", "--out", "run", "--data", "data"]
    settings = IMAGES | {"threads": 1, "stream": 64}
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    done = subprocess.run(
        [*command, "-m", "sepnorm", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Model: run/model") == 1
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["processes"] == 2
    assert (tmp_path / "run" / "metrics.json").is_file()


def test_processes_that_are_interrupted_or_killed_say_so_and_the_run_goes_on(tmp_path):
    """What is done to the second is said by the first, which torchrun would end before it can speak: so both are started here."""
    settings = IMAGES | {"threads": 1, "checkpoints": 30}
    words = ["pretrain", "images", "--norm", "bn+ln@all", "--max-steps", "400", "--out", "run", "--resume"]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    checkpoints = tmp_path / "run" / "checkpoints"

    def start() -> list[subprocess.Popen]:
        names = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        started = []
        for rank in (0, 1):
            own = {key: str(value) for key, value in (names | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            command = [sys.executable, "-m", "sepnorm", *words]
            started.append(
                subprocess.Popen(command, cwd=tmp_path, env=os.environ | own, stderr=subprocess.PIPE, text=True)
            )
        return started

    def said_after(number: signal.Signals) -> tuple[int, str]:
        before = set(checkpoints.glob("checkpoint-*/complete"))
        first, second = start()
        deadline = time.monotonic() + 120
        while not set(checkpoints.glob("checkpoint-*/complete")) - before:
            assert time.monotonic() < deadline and first.poll() is None, first.communicate()[1]
            time.sleep(0.05)
        second.send_signal(number)
        said = first.communicate(timeout=120)[1]
        second.communicate(timeout=120)
        assert "Traceback" not in said
        return first.returncode, said

    code, said = said_after(signal.SIGINT)
    assert code == 130 and "was stopped at step" in said and "--resume" in said
    code, said = said_after(signal.SIGKILL)
    assert code not in (0, None) and "another process of this run is gone" in said and "--resume" in said
    first, second = start()
    assert first.wait(timeout=200) == 0 and second.wait(timeout=200) == 0, first.communicate()[1]
    assert (tmp_path / "run" / "metrics.json").is_file()
