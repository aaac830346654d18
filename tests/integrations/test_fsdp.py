"""Two processes with a part of the weights each: training is that of one process, and what needs whole weights says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as T
from torch import nn

import sepnorm
from sepnorm import SepNormError

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    from ports import free_port

    folder = tmp_path_factory.mktemp("fsdp")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--master_port",
        str(free_port()),
    ]
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(HERE / "fsdp_process.py"), str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=250,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, {line["what"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["FSDP2", "FSDP1", "whole state", "calibrate"])
def test_two_processes_do_what_one_does(seen, what):
    assert seen[1][what]["distance"] < 1e-9


@pytest.mark.slow
def test_statistics_are_float32_where_weights_are_gathered_in_bfloat16(seen):
    assert seen[1]["bfloat16"]["kinds"] == ["torch.float32"]
    assert 0 < seen[1]["bfloat16"]["distance"] < 0.05  # of outputs of size 1


@pytest.mark.slow
@pytest.mark.parametrize("what", ["convert", "freeze", "revert", "save"])
def test_what_needs_whole_weights_says_how_to_get_them(seen, what):
    assert "sharded" in seen[1][what]["refusal"] and "full_state_dict" in seen[1][what]["refusal"]


@pytest.mark.slow
def test_a_model_that_holds_a_wrapped_one_is_not_converted(seen):
    assert "found DistributedDataParallel at text" in seen[1]["DDP inside"]["refusal"]


@pytest.mark.slow
def test_the_whole_state_is_loaded_by_the_library(seen):
    sys.path.insert(0, str(HERE))
    import fsdp_process

    loaded = T.AutoModel.from_pretrained(seen[0])
    assert (fsdp_process.outputs(loaded) - torch.load(seen[0] / "expected.pt")).abs().max() < 1e-12


def test_a_compiled_model_is_not_converted():
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    model.layers[1].compile()
    with pytest.raises(SepNormError, match=r"before compile\(\): layers.1 is already compiled"):
        sepnorm.convert(model)
