"""The fastest device by default; what is not here, or cannot compute in bfloat16, is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sepnorm import SepNormError
from sepnorm.domains.images.config import PRESETS
from sepnorm.experiment.launchers.local import places
from sepnorm.training import devices
from sepnorm.training.devices import device_of, uses_bfloat16

TINY = "width=16 depth=2 heads=2 decoder_width=8 decoder_depth=1 decoder_heads=2 batch_size=32 threads=0".split()


@pytest.fixture
def accelerator(monkeypatch):
    """As if there were two devices of another kind."""

    def pretend(kind: str) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)

    return pretend


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_the_fastest_is_taken_and_others_can_be_asked_for(accelerator, kind):
    accelerator(kind)
    assert device_of() == torch.device(kind) and device_of("cpu") == torch.device("cpu")
    assert device_of(f"{kind}:1").index == 1
    with pytest.raises(SepNormError, match=f"there is no device '{kind}:2' here: choose from auto, {kind}, cpu"):
        device_of(f"{kind}:2")
    assert places(PRESETS["demo"]) == 1  # runs do not share an accelerator
    assert places(PRESETS["demo"].changed({"device": "cpu"})) >= 1


def test_a_device_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert device_of() == torch.device("cpu")
    for name in ("cuda", "mps", "nonsense"):
        with pytest.raises(SepNormError, match=f"there is no device '{name}'"):
            device_of(name)


def test_a_precision_that_a_device_has_not_is_refused(monkeypatch):
    cpu = torch.device("cpu")
    assert not uses_bfloat16("auto", cpu) and not uses_bfloat16("fp32", cpu) and uses_bfloat16("bf16", cpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    gpu = torch.device("cuda")
    assert not uses_bfloat16("auto", gpu)
    with pytest.raises(SepNormError, match="cuda does not support precision=bf16 here"):
        uses_bfloat16("bf16", gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert uses_bfloat16("auto", gpu) and uses_bfloat16("bf16", gpu) and not uses_bfloat16("fp32", gpu)


def test_a_run_in_bfloat16_differs_from_one_in_single_precision_a_little(run):
    settings = [word for pair in TINY for word in ("--set", pair)]
    losses = {}
    for precision in ("fp32", "bf16"):
        words = [
            "pretrain",
            "images",
            *settings,
            "--set",
            f"precision={precision}",
            "--max-steps",
            "4",
            "--out",
            precision,
        ]
        code, _, err = run(*words, "--device", "cpu")
        assert code == 0, err
        losses[precision] = json.loads(Path(precision, "metrics.json").read_text())["loss"]
    assert losses["fp32"] != losses["bf16"] and losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)


def test_a_device_is_refused_before_data_are_read(run, monkeypatch):
    monkeypatch.setattr(devices, "available", lambda: ["cpu"])
    monkeypatch.setattr("sepnorm.domains.images.recipe.load_images", lambda *_, **__: pytest.fail("data were read"))
    for verb in ("compare", "pretrain"):
        code, _, err = run(verb, "images", "--device", "cuda")
        assert code == 1 and "there is no device 'cuda' here: choose from auto, cpu." in err
