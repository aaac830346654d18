from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from sepnorm import SepNormError
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.recipe import ImageRecipe
from sepnorm.errors import InterruptedRunError
from sepnorm.training.batching import Samples, Steps
from sepnorm.training.checkpoints import last_checkpoint

TINY = PRESETS["demo"].changed(
    dict(width=16, depth=2, heads=2, decoder_width=8, decoder_depth=1, decoder_heads=2, max_steps=24, batch_size=32)
)
BN = TINY.changed({"norm": "bn+ln", "checkpoints": 3, "smallest_crop": 0.5})


@pytest.fixture(scope="module")
def recipe() -> ImageRecipe:
    return ImageRecipe(TINY)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_steps_are_a_function_of_the_seed_and_their_number():
    def steps(seed: int) -> Steps:
        config = TINY.changed({"seed": seed, "max_steps": None, "epochs": 3, "batch_size": 10})
        make = lambda chosen, own, generator: {"chosen": chosen, "draw": torch.rand(2, generator=generator)}  # noqa: E731
        return Steps(config, Samples(43, make))

    first, again, other = steps(1), steps(1), steps(2)
    assert len(first) == 12
    for number in (7, 3, 11, 0):  # in any order
        assert torch.equal(first[number]["chosen"], again[number]["chosen"])
        assert torch.equal(first[number]["draw"], again[number]["draw"])
    epoch = torch.cat([first[k]["chosen"] for k in range(4)])
    assert len(epoch.unique()) == 40
    assert not torch.equal(first[0]["chosen"], other[0]["chosen"])
    assert not torch.equal(first[0]["draw"], first[1]["draw"])
    assert not torch.equal(first[0]["chosen"], first[4]["chosen"])


def test_the_same_seed_gives_the_same_weights_and_training_learns(recipe, tmp_path):
    long = TINY.changed({"max_steps": 60})
    first, trained = recipe.pretrain(long, tmp_path / "a")
    second, _ = recipe.pretrain(long, tmp_path / "b")
    assert same(weights(first), weights(second))
    other, _ = recipe.pretrain(long.changed({"seed": 1}), tmp_path / "c")
    assert not same(weights(first), weights(other))
    assert [step for step, _ in trained.losses] == list(range(1, 61))
    early, late = (sum(loss for _, loss in part) / 10 for part in (trained.losses[:10], trained.losses[-10:]))
    assert late < 0.95 * early


def test_a_run_goes_on_from_its_checkpoint_bit_by_bit(recipe, tmp_path):
    whole, trained = recipe.pretrain(BN, tmp_path / "whole")
    kept = sorted(path.name for path in (tmp_path / "whole").glob("checkpoint-*"))
    assert "checkpoint-18" in kept
    shutil.copytree(tmp_path / "whole" / "checkpoint-18", tmp_path / "part" / "checkpoint-18")
    resumed, again = recipe.pretrain(BN, tmp_path / "part")
    assert same(weights(whole), weights(resumed))
    assert again.losses == trained.losses
    assert (trained.resumed_from, again.resumed_from) == (0, 18)


def test_a_checkpoint_cut_short_is_passed_over_and_the_one_before_is_used(recipe, tmp_path, caplog):
    whole, _ = recipe.pretrain(BN, tmp_path / "whole")
    part = tmp_path / "part"
    for step in (18, 24):
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", part / f"checkpoint-{step}")
    weights_file = part / "checkpoint-24" / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-100])
    (part / "checkpoint-30").mkdir()  # killed before it was written
    assert last_checkpoint(part) == part / "checkpoint-18"
    assert (
        "checkpoint-24 is incomplete or damaged" in caplog.text
        and "checkpoint-30 is incomplete or damaged" in caplog.text
    )
    resumed, _ = recipe.pretrain(BN, part)
    assert same(weights(whole), weights(resumed))
    assert last_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.parametrize("marker", ["", "{}", "[]", '{"sizes": {"gone": 3}}', '{"sizes": 3}'])
def test_a_damaged_marker_means_a_damaged_checkpoint(tmp_path, marker):
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / "complete").write_text(marker)
    assert last_checkpoint(tmp_path) is None


def test_control_c_saves_and_says_how_to_go_on(recipe, tmp_path):
    whole, _ = recipe.pretrain(BN, tmp_path / "whole")

    def stop(step, steps, loss, rate):
        if step == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRunError, match=r"stopped at step [78] of 24 and saved in .*part"):
        recipe.pretrain(BN, tmp_path / "part", stop)
    resumed, _ = recipe.pretrain(BN, tmp_path / "part")
    assert same(weights(whole), weights(resumed))


def test_a_killed_run_goes_on_bit_by_bit(recipe, tmp_path):
    config = BN.changed({"checkpoints": 11})
    whole, _ = recipe.pretrain(config, tmp_path / "whole")
    code = (
        "import sys; from pathlib import Path\n"
        "from sepnorm.domains.images.config import ImageConfig; from sepnorm.domains.images.recipe import ImageRecipe\n"
        f"config = ImageConfig.model_validate_json({config.model_dump_json()!r})\n"
        "import time\n"
        f"ImageRecipe(config).pretrain(config, Path({str(tmp_path / 'part')!r}), lambda *a: time.sleep(0.1))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while last_checkpoint(tmp_path / "part") is None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL  # it was killed on its way, not finished
    resumed, _ = recipe.pretrain(config, tmp_path / "part")
    assert same(weights(whole), weights(resumed))


def test_arms_of_a_seed_start_from_the_same_weights_and_see_the_same(recipe):
    from sepnorm.domains.images.model import MaskedAutoencoder

    plain, separate = MaskedAutoencoder(TINY), MaskedAutoencoder(TINY.changed({"norm": "bn+bn"}))
    old, new = weights(plain), weights(separate)
    shared = [key for key in old if key in new and new[key].shape == old[key].shape]
    assert len(shared) >= len(old) - 2
    assert all(torch.equal(old[key], new[key]) for key in shared)


def test_too_few_samples_are_refused():
    with pytest.raises(SepNormError, match="at least two samples, found 1"):
        Steps(TINY, Samples(1, lambda *_: {}))


def test_readings_on_the_way_change_no_bit_of_a_run_and_are_kept_when_it_goes_on(recipe, tmp_path):
    config = TINY.changed({"norm": "bn+ln"})
    plain, trained, none = recipe.watched(config.changed({"monitor": 0}), tmp_path / "plain")
    watched, again, found = recipe.watched(config.changed({"monitor": 3}), tmp_path / "watched")
    before, after = plain.state_dict(), watched.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before) and trained.losses == again.losses
    assert none == {} and found["monitor"]["steps"][0] == 1 and len(found["monitor"]["steps"]) >= 4
    resumed = recipe.watched(config.changed({"monitor": 3}), tmp_path / "watched")[2]  # from the last checkpoint
    for key, values in found["monitor"].items():
        assert torch.equal(resumed["monitor"][key], values), key
