from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from sepnorm import SepNormError
from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.recipe import ImageRecipe
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.experiment.running import compare
from sepnorm.experiment.runs import Outcome, perform
from sepnorm.experiment.slugs import slug

TINY = PRESETS["demo"].changed(
    dict(
        width=16,
        depth=2,
        heads=2,
        decoder_width=8,
        decoder_depth=1,
        decoder_heads=2,
        max_steps=6,
        batch_size=32,
        threads=0,
    )
)


METRICS = Metrics([Metric("accuracy", "accuracy", True, primary=True), Metric("uniformity", "uniformity", False)])


class Counting:
    """A recipe that trains nothing: the metric is the seed, plus one for every norm but ln."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    def run(self, config, folder, report):
        self.done.append((config.norm, config.seed))
        folder.mkdir(parents=True)
        (folder / "scratch").write_text("x")
        value = config.seed + (config.norm != "ln") * (1 + 0.001 * config.seed)
        return Outcome({"accuracy": value, "uniformity": -value}, [(1, 0.5)], {"cls": torch.ones(2, 3)}, self.save)

    def save(self, folder):
        folder.mkdir()


def arms():
    return [TINY, TINY.changed({"norm": "bn+ln"})]


def test_arms_are_paired_by_seed(tmp_path):
    found = compare(lambda base: Counting(), METRICS, TINY, arms(), [0, 1, 2], tmp_path)
    assert [arm.name for arm in found.arms] == ["ln", "bn+ln@final"]
    gap = found.decisions()["bn+ln@final"]
    assert gap.verdict == "better" and gap.mean == pytest.approx(1.001)
    other = found.difference(found.arms[1], METRICS.find("uniformity"))
    assert other.verdict is None  # what is not primary is not judged
    assert found.arms[0].interval("accuracy").half > 1  # unpaired, the seeds would hide it
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["primary"] == "accuracy" and plain["decisions"]["bn+ln@final"]["verdict"] == "better"
    assert plain["decisions"]["bn+ln@final"]["mean"] == pytest.approx(1.001)
    assert plain["arms"][1]["metrics"]["uniformity"]["difference"]["mean"] == pytest.approx(-1.001)
    assert "difference" not in plain["arms"][0]["metrics"]["uniformity"]
    assert "difference" not in plain["arms"][1]["metrics"]["accuracy"]  # its interval is that of its verdict


def test_finished_runs_are_not_repeated_and_new_seeds_are_added(tmp_path):
    recipe = Counting()
    compare(lambda base: recipe, METRICS, TINY, arms(), [0], tmp_path)
    compare(lambda base: recipe, METRICS, TINY, arms(), [0, 1], tmp_path)
    assert recipe.done == [("ln", 0), ("bn+ln", 0), ("ln", 1), ("bn+ln", 1)]
    run = tmp_path / "runs" / "bn+ln@final-seed1"
    assert sorted(path.name for path in run.iterdir()) == [
        ".lock",
        "config.json",
        "embeddings.npz",
        "environment.json",
        "losses.json",
        "metrics.json",
        "model",
    ]
    assert np.load(run / "embeddings.npz")["cls"].shape == (2, 3)


def test_a_folder_of_another_config_is_refused(tmp_path):
    perform(Counting(), TINY, tmp_path)
    with pytest.raises(SepNormError, match=r"another config \(epochs was 16 and is now 5\)"):
        perform(Counting(), TINY.changed({"epochs": 5}), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SepNormError, match=r"config\.json is damaged"):
        perform(Counting(), TINY, tmp_path)


def test_a_folder_that_another_process_works_in_is_refused(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from sepnorm.files import locked\n"
        f"with locked(Path({str(tmp_path)!r})):\n    print('held', flush=True); time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(SepNormError, match="another process is at work in"):
            perform(Counting(), TINY, tmp_path)
    finally:
        other.kill()
        other.wait()
    perform(Counting(), TINY, tmp_path)  # a killed process holds nothing
    assert (tmp_path / "metrics.json").is_file()


def test_equal_arms_are_refused_and_names_become_folders(tmp_path):
    with pytest.raises(SepNormError, match="arms must differ, found ln, ln"):
        compare(lambda base: Counting(), METRICS, TINY, [TINY, TINY], [0], tmp_path)
    assert slug("bn@enc*/x λ=0.01 both") == "bn@enc-x-lambda=0.01-both"


def test_a_real_run_leaves_a_model_that_opens(tmp_path):
    recipe = ImageRecipe(TINY)
    for norm in ("ln", "bn+ln"):
        perform(recipe, TINY.changed({"norm": norm}), tmp_path / norm)
        metrics = json.loads((tmp_path / norm / "metrics.json").read_text())
        assert all(math.isfinite(value) for value in metrics.values())
        assert ("recalibration_gain_knn" in metrics) == (norm == "bn+ln")
        encoder = open_encoder(str(tmp_path / norm / "model"))
        assert encoder.kind == "images" and encoder.prepare.size == (8, 8)
        assert all((tmp_path / norm / name).is_file() for name in ("layers.json", "reconstructions.npz"))
        kept = np.load(tmp_path / norm / "embeddings.npz")["cls"]
        pixels = recipe.pixels(recipe.data.test.images)
        with encoder.evaluating():
            again = torch.cat([encoder.encode({"pixel_values": part}).cls for part in pixels.split(256)])
        assert np.allclose(kept, again.numpy(), atol=1e-5)
        assert not (tmp_path / norm / "checkpoints").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[1]"),
        ("config.json", "[" * 100_000),
        ("metrics.json", "{"),
        ("metrics.json", '{"accuracy": "high"}'),
        ("metrics.json", "3"),
        ("losses.json", "[[1]]"),
        ("losses.json", '[[1, "x"]]'),
        ("losses.json", None),
    ],
)
def test_a_damaged_run_is_named_with_the_folder_to_remove(tmp_path, name, content):
    compare(lambda base: Counting(), METRICS, TINY, arms(), [0], tmp_path)
    path = tmp_path / "runs" / "ln-seed0" / name
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(SepNormError, match=rf"{name} is damaged: .*Remove the folder .*ln-seed0 to run it again"):
        compare(lambda base: Counting(), METRICS, TINY, arms(), [0], tmp_path)
