"""Features of atoms and bonds are those of OGB, and scores over several tasks are those of its evaluators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OGB = HERE.parents[1] / ".ogb"


@pytest.mark.slow
@pytest.mark.skipif(not (OGB / "ogb").is_dir(), reason="OGB is tested from a folder of its own: see the Makefile")
def test_features_and_scores_are_those_of_ogb():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "ogb_process.py"), str(OGB), "nci"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["compared"] > 4900 and seen["different"] == []
    assert seen["molhiv"] < 1e-12 and seen["molpcba"] < 1e-12
