"""Features of atoms and bonds are those of OGB, and scores over several tasks are those of its evaluators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sepnorm.data.tables import suffix_of

HERE = Path(__file__).parent
OGB = HERE.parents[1] / ".ogb"


#: A folder with tables of SMILES, in folders or not, such as those of ZINC and MoleculeNet.
MOLECULES = os.environ.get("SEPNORM_MOLECULES")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (OGB / "ogb").is_dir(), reason="OGB is tested from a folder of its own: see the Makefile"),
]


def beside_ogb(*tables: str) -> dict[str, Any]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "ogb_process.py"), str(OGB), *tables]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_features_and_scores_are_those_of_ogb():
    seen = beside_ogb("nci")
    assert seen["compared"][0] > 4900 and seen["different"] == []
    assert seen["molhiv"] < 1e-12 and seen["molpcba"] < 1e-12


@pytest.mark.skipif(not MOLECULES, reason="SEPNORM_MOLECULES names no folder with tables of SMILES")
def test_features_of_other_sets_are_those_of_ogb():
    tables = sorted(str(path) for path in Path(str(MOLECULES)).rglob("*.csv*") if suffix_of(path) == ".csv")
    seen = beside_ogb(*tables)
    assert len(seen["compared"]) == len(tables) and sum(seen["compared"]) >= 2000, "name a folder with more molecules"
    assert seen["different"] == []
