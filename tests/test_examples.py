"""Every example runs, offline and in seconds, and prints what its docstring promises."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent.parent / "examples"
PYG = FOLDER.parent / ".pyg"  # which only some need
#: What the last lines of each hold if all went well.
PRINTED = {
    "compare_own_training": "Page: runs/own/report.html",
    "compare_scores": "separate minus shared: +0.018 ± 0.004 (better)",
    "convert_pretrained": "reverted: bit-equal to the original: True",
    "diagnose_folder": "Page: worst.html",
    "embed_smiles": "10 molecules, 48 dimensions, 1 left out",
    "finetune_classifier": "loaded again, bit-equal: True",
    "plain_torch": "largest difference once frozen: 0.0e+00",
    "published_graphormer": "cosine to the published vectors, with separate norms: 1.000",
    "pyg_loader": "a Batch and its Data give the same: True",
    "simcse_sentence_transformers": "loaded again: (2, 384)",
}


def run(name: str, folder: Path, *words: object) -> str:
    """What an example prints, run in a folder with one thread: two workers share the cores."""
    places = os.pathsep.join([os.environ.get("PYTHONPATH", ""), *([str(PYG)] if name == "pyg_loader" else [])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": places}
    found = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_every_example_is_short_and_says_what_it_shows():
    files = sorted(FOLDER.glob("*.py"))
    assert [file.stem for file in files] == sorted([*PRINTED, "mae_trainer"])
    for file in files:
        text = file.read_text()
        assert len(text.splitlines()) < 60, file.name
        assert ast.get_docstring(ast.parse(text)), file.name


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_examples_run_and_print_what_they_promise(name, tmp_path):
    if name == "pyg_loader" and not PYG.is_dir():
        pytest.skip("PyG is tested from a folder of its own: see the Makefile")
    assert PRINTED[name] in run(name, tmp_path)


def test_the_masked_autoencoder_learns_digits(tmp_path):
    printed = run("mae_trainer", tmp_path)
    assert float(printed.rsplit("linear probe on [CLS]: ", 1)[1]) > 0.7  # 0.27 where whole images are masked after all


def test_a_folder_of_embeddings_is_diagnosed_the_worst_first(tmp_path):
    import numpy as np

    spread = np.random.default_rng(0).normal(size=(100, 16))
    folder = tmp_path / "mine"
    folder.mkdir()
    np.save(folder / "a-spread.npy", spread)
    np.save(folder / "b-narrow.npy", spread + 10)
    (folder / "notes.txt").write_text("no embeddings")
    first, second = run("diagnose_folder", tmp_path, folder).splitlines()[1:3]
    assert first.startswith("b-narrow.npy") and "collapsed" in first
    assert second.startswith("a-spread.npy") and "healthy" in second
    assert (tmp_path / "worst.html").is_file()
