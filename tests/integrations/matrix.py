"""Every client in three processes: one that writes, one that reads, one that reads without sepnorm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Libraries, and the folder in which those are that the main environment has not.
LIBRARIES = {
    "transformers": None,
    "sentence_transformers": None,
    "torch": None,
    "peft": ".peft",
    "lightning": ".lightning",
    "timm": os.environ.get("SEPNORM_TIMM") or ".timm",
}


def cases(library: str) -> list[str]:
    """The names of a client's cases, without importing its library."""
    source = (HERE / f"client_{library}.py").read_text()
    block = source[source.index("\nCASES = {") :]
    return [line.strip().split('"')[1] for line in block.splitlines()[2:] if line.startswith('    "')]


def is_there(library: str) -> bool:
    folder = LIBRARIES[library]
    return folder is None or (ROOT / folder / library).is_dir()


@cache
def seen(library: str) -> dict[str, dict[str, dict[str, Any]]]:
    """What was seen of each case: by name, then by ``write``, ``read`` and ``without``."""
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in cases(library)}
    with tempfile.TemporaryDirectory() as folder:
        for what in ("write", "read", "without"):
            command = [sys.executable, str(HERE / "client.py"), library, what, folder]
            environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
            lines = [line for line in done.stdout.splitlines() if line.startswith('{"case"')]
            for line in map(json.loads, lines):
                found[line.pop("case")][what] = line
            missing = [name for name in found if what not in found[name]]
            assert not missing, f"{missing[0]} was not {what}: {done.stderr[-3000:]}"
    return found
