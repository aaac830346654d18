"""The code of the pages in docs/use runs, one process a page, in a folder with a small ``my-model`` and ``my-encoder``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import matrix
import models
import pytest

PAGES = sorted(path for path in (matrix.ROOT / "docs/use").glob("*.md") if path.stem != "index")
FOLDERS = {"peft": "peft", "lightning": "lightning", "timm": "timm"}
#: Defines the operators that torchvision misses beside a build of torch that it does not fit.
TORCHVISION = """
import torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def code_of(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))


def encoder(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    words = modules.Transformer(str(folder / "my-model"))
    SentenceTransformer(modules=[words, modules.Pooling(16, "cls")], device="cpu").save(str(folder / "my-encoder"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path):
    library = FOLDERS.get(page.stem)
    if library is not None and not matrix.is_there(library):
        pytest.skip(f"{library} is tested from a folder of its own: see the Makefile")
    models.text_model(tmp_path / "my-model")
    encoder(tmp_path)
    folder = matrix.ROOT / (matrix.LIBRARIES[library] or "") if library else matrix.ROOT
    start = f"import sys; sys.path.append({str(folder)!r})\n" + (TORCHVISION if library == "timm" else "")
    environment = os.environ | {"PYTHONPATH": str(matrix.ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", start + code_of(page)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_library_has_a_page_of_about_twenty_lines():
    assert {page.stem for page in PAGES} == {
        "transformers",
        "sentence-transformers",
        "peft",
        "lightning",
        "timm",
        "plain-torch",
    }
    for page in PAGES:
        assert 10 <= len([line for line in code_of(page).splitlines() if line.strip()]) <= 45, page
