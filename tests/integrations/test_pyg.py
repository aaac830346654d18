"""Batches, lists and loaders of the real PyG give what our own graphs give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYG = HERE.parents[1] / ".pyg"


@pytest.mark.slow
@pytest.mark.skipif(not PYG.is_dir(), reason="PyG is tested from a folder of its own: see the Makefile")
def test_every_verb_takes_graphs_of_pyg_for_what_they_are():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "pyg_process.py"), str(PYG)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["molecules"] > 200 and seen["different"] == []
