"""Every client in three processes: one that writes, one that reads, one that reads without sepnorm.

python tests/integrations/matrix.py        # runs all, and writes the table in docs/use/index.md
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
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


NAMES = {"sentence_transformers": "sentence-transformers", "lightning": "Lightning"}
PAGE = ROOT / "docs/use/index.md"
_BEGIN, _END = "<!-- matrix -->\n", "<!-- end -->"


def table() -> str:
    """What works and what does not, as Markdown. The tests of the matrix hold each row to it."""
    from refusals import REFUSALS

    rows = ["| library | what | result | why |", "|---|---|---|---|"]
    for library in LIBRARIES:
        rows += [f"| {NAMES.get(library, library)} | {case} | works | |" for case in cases(library)]
    rows += ["| torch | FSDP2, FSDP1: trained, whole state saved and loaded | works | |"]
    rows += [f"| {each.library} | {each.what} | refused | {each.why or each.sentence} |" for each in REFUSALS]
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """The page with the table in its place."""
    start, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    return f"{page[:start]}\n{table()}\n{page[end:]}"


if __name__ == "__main__":
    for name in LIBRARIES:
        for case, ways in seen(name).items():
            assert ways["read"].get("distance", 1) <= 1e-6 and "error" in ways["without"], (name, case, ways)
    PAGE.write_text(written(PAGE.read_text()))
