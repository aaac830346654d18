"""Commands look before they work: what is wrong is refused before a worker starts, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from models import text_model

TINY = "width=16 depth=2 heads=2 decoder_width=8 decoder_depth=1 decoder_heads=2 batch_size=8 threads=0".split()
SETTINGS = [word for pair in TINY for word in ("--set", pair)]


def draw(folder: Path, size: tuple[int, int], count: int = 40, mode: str = "RGB", classes: int = 2) -> str:
    """Images of noise, of one size, in a folder for each class."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"class{number % classes}"
        place.mkdir(parents=True, exist_ok=True)
        values = rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(values).convert(mode).save(place / f"{number:02}.png")
    return str(folder)


@pytest.fixture
def no_workers(monkeypatch):
    """Fails where a run is begun."""
    monkeypatch.setattr("sepnorm.experiment.comparison.run_jobs", lambda *_: pytest.fail("a run was begun"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "images", "--norms", "ln,bn+ln@nowhere.*"], "matches no norm"),
        (["compare", "images", "--norms", "ln,bn+ln@somewhere"], "matches no norm"),
        (["compare", "molecules", "--norms", "ln,bn+ln@final,bn@layers.77.*"], "matches no norm"),
        (["compare", "text", "--set", "model=model", "--norms", "ln,bn+ln@encoder.layer.7.*"], "matches no norm"),
        (["compare", "text", "--set", "model=scratch", "--norms", "ln,bn+ln@encoder.layer.7.*"], "matches no norm"),
    ],
)
def test_sites_of_every_arm_are_checked_before_the_first_run(run, no_workers, tmp_path, words, said):
    text_model(tmp_path / "model")
    code, _, err = run(*words, "--out", "here")
    assert code == 1 and said in err, err
    assert not os.path.exists("here")


def test_a_wrong_arm_leaves_no_finished_run_that_blocks_the_next_try(run):
    words = [
        "compare",
        "images",
        *SETTINGS,
        "--set",
        "batch_size=64",
        "--max-steps",
        "2",
        "--seeds",
        "1",
        "--out",
        "here",
    ]
    code, _, err = run(*words, "--norms", "ln,bn+ln@nowhere")
    assert code == 1 and "matches no norm" in err
    code, _, err = run(*words, "--norms", "ln,bn+ln@final", "--set", "learning_rate=0.01")
    assert code == 0, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "images", "--data", "./missing"], "there is no file or folder ./missing."),
        (["compare", "text", "--data", "t.csv", "--column", "nope"], "t.csv has no column 'nope'"),
        (["compare", "molecules", "--data", "t.csv"], "which column of t.csv holds SMILES is not clear"),
        (["compare", "images", "--data", "t.csv", "--column", "nope"], "t.csv has no column 'nope'"),
        (["compare", "text", "--test", "missing.csv"], "there is no file or folder missing.csv"),
        (["compare", "images", "--set", "data=./missing"], "there is no file or folder ./missing."),
    ],
)
def test_data_are_read_before_workers_start(run, no_workers, tmp_path, words, said):
    (tmp_path / "t.csv").write_text("number,text\n" + "".join(f"{i},the cat sat on mat {i}\n" for i in range(30)))
    code, _, err = run(*words)
    assert code == 1 and said in err, err
    assert not os.path.exists("runs")
