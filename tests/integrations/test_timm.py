"""Weights of a user's own in an architecture of timm, opened by name and file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import matrix


@pytest.mark.slow
@pytest.mark.skipif(not matrix.is_there("timm"), reason="timm is tested from a folder of its own: see the Makefile")
def test_a_file_of_weights_is_opened_or_refused(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(matrix.ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "timm_process.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["distance"] == 0
    assert "timm cannot open" in seen["converted"] and "size mismatch for norm.weight" in seen["converted"]
    assert "pickles can run code" in seen["pickle"] and "no safetensors file" in seen["nothing"]
    assert "timm has no model 'vit_tiniest'" in seen["unknown"]
