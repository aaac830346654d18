"""``sepnorm compare`` as users see it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from sepnorm import SepNormError
from sepnorm.domains.comparison import parse_arms

TINY = "width=16 depth=2 heads=2 decoder_width=8 decoder_depth=1 decoder_heads=2 batch_size=32".split()


def words(*more: str, threads: int = 0) -> list[str]:
    """A small comparison, one run at a time unless it has threads."""
    begin = ["compare", "images", "--max-steps", "4", "--out", "here", *more]
    settings = [word for setting in [*TINY, f"threads={threads}"] for word in ("--set", setting)]
    return [*begin[:2], *settings, *begin[2:]]


@pytest.fixture
def pictures(tmp_path):
    """Draws images of a class into ``pictures/CLASS``, or without a class into ``pictures``."""
    from PIL import Image

    rng = np.random.default_rng(0)

    def draw(name: str, count: int) -> None:
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            values = rng.integers(0, 100, (9, 12), dtype=np.uint8) + (100 if name == "bright" else 0)
            Image.fromarray(values.astype(np.uint8)).save(folder / f"{number:02}.png")

    return draw


def test_arms_and_seeds_are_run_and_what_is_there_is_not_repeated(run):
    small = words("--seeds", "2", "--norms", "ln,bn+ln@final")
    code, out, err = run(*small)
    assert code == 0, err
    assert "[CLS] linear against ln: bn+ln@final is " in out and "minus ln" in out
    assert (
        max(map(len, out.split("\n\n")[1].splitlines())) <= 100
        and "| minus ln |" in Path("here/results.md").read_text()
    )
    assert out.strip().endswith("Report: here/report.html")
    begun = [line for line in err.splitlines() if line.endswith("begins")]
    assert begun == [f"{arm}, seed {seed}: begins" for seed in (0, 1) for arm in ("ln", "bn+ln@final")]
    with open("here/results.json") as file:
        found = json.load(file)
    assert [arm["name"] for arm in found["arms"]] == ["ln", "bn+ln@final"] and found["baseline"] == "ln"
    assert found["decisions"]["bn+ln@final"]["verdict"] in ("better", "worse", "equal", "undecided")
    assert "verdict" not in found["arms"][1]["metrics"]["cls_knn"]["difference"]  # it is not what decides
    with open("here/results.csv") as file:
        assert len(file.readlines()) == 5
    with open("here/results.tex") as file:
        assert file.read().count("tabular") == 4
    with open("here/report.html") as file:
        assert "Reconstructions" in file.read()
    written = os.stat("here/runs/ln-seed0/metrics.json").st_mtime_ns
    code, out, err = run(*small, "--json")
    assert code == 0 and json.loads(out)["arms"] == found["arms"]
    assert os.stat("here/runs/ln-seed0/metrics.json").st_mtime_ns == written
    code, _, err = run(*small, "--set", "learning_rate=0.5")
    assert code == 1 and "holds a run of another config (learning_rate was 0.001 and is now 0.5)" in err


@pytest.mark.slow
def test_runs_side_by_side_give_the_same_as_one_at_a_time(run, monkeypatch):
    monkeypatch.setattr("sepnorm.experiment.launchers.local.places", lambda config: 2)
    code, _, err = run(*words("--seeds", "1", "--norms", "ln,bn+ln@final", threads=1))
    assert code == 0, err
    monkeypatch.setattr("sepnorm.experiment.launchers.local.places", lambda config: 1)
    code, _, err = run(*words("--seeds", "1", "--norms", "ln,bn+ln@final", "--out", "there", threads=1))
    assert code == 0, err
    for arm in ("ln", "bn+ln@final"):
        first, second = (np.load(f"{place}/runs/{arm}-seed0/embeddings.npz")["cls"] for place in ("here", "there"))
        assert np.array_equal(first, second)


def test_a_sweep_has_every_norm_with_every_weight_on_every_target():
    arms = parse_arms("ln,bn,ln+ln@all,ln+bn@all,bn+ln@all,bn+bn@all", "0,0.01,0.1,1", "tokens,cls,both")
    assert len(arms) == 6 * (1 + 3 * 3)
    assert {"norm": "bn+ln", "sites": "all", "uniformity_weight": 0.1, "uniformity_on": "tokens"} in arms


@pytest.mark.slow
def test_a_sweep_is_run_and_drawn(run):
    small = words("--seeds", "1", "--norms", "ln,bn@final", "--lambdas", "0,1", "--targets", "cls,both")
    code, out, err = run(*small)
    assert code == 0, err
    assert "ln λ=1 cls" in out and "bn@final λ=1 both" in out
    with open("here/report.html") as file:
        assert "lambda" in file.read()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("", "", ""), "at least two arms, found ''"),
        (("ln", "much", ""), "numbers separated by commas, found 'much'"),
        (("ln,bn", "", "cls"), "give both"),
    ],
)
def test_arms_that_cannot_be_read_are_refused(options, said):
    with pytest.raises(SepNormError, match=said):
        parse_arms(*options)


def test_images_without_labels_are_compared_by_geometry(run, pictures):
    pictures("", 40)
    code, out, err = run(*words("--seeds", "2", "--norms", "ln,bn+ln", "--data", "pictures", "--set", "batch_size=8"))
    assert code == 0, err
    assert "[CLS] uniformity" in out and "linear" not in out


def test_images_of_one_class_are_refused_before_anything_is_trained(run, pictures):
    pictures("dark", 40)
    code, _, err = run(*words("--data", "pictures"))
    assert code == 1 and "all 32 training images have one class, 'dark'" in err
    assert not os.path.exists("here/runs/ln-seed0/tensorboard")


def test_a_full_disk_is_told_and_loses_nothing(run, monkeypatch):
    small = words("--seeds", "1", "--norms", "ln,bn+ln@final")
    import sepnorm.experiment.runs as experiment

    write, full = experiment.write_arrays, []

    def fail(path, arrays):
        if "bn+ln" in str(path):
            full.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, arrays)

    monkeypatch.setattr(experiment, "write_arrays", fail)
    code, _, err = run(*small)
    assert code == 1 and err.splitlines()[-1].endswith("No space left on device.") and full
    assert os.path.exists("here/runs/ln-seed0/metrics.json")
    assert not os.path.exists("here/runs/bn+ln@final-seed0/metrics.json")
    monkeypatch.setattr(experiment, "write_arrays", write)
    code, _, err = run(*small)
    assert code == 0 and "ln, seed 0: begins" not in err.splitlines()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--norms", "ln"], "at least two arms"),
        (["--norms", "ln,bm+ln"], "Did you mean"),
        (["--preset", "dmo"], "Did you mean 'demo'"),
        (["--set", "widht=3"], "Did you mean 'width'"),
        (["--set", "patch_size=3"], "cannot be cut into patches of 3"),
        (["--set", "mask_ratio=0.99"], "leaves none visible"),
        (["--lambdas", "0,1", "--targets", "tokns"], "uniformity_on='tokns'"),
        (["--launcher", "slurm"], "unknown launcher 'slurm'"),
        (["--data", "./nowhere"], "nowhere"),
        (["--data", "empty"], "empty"),
        (["--out", "file/out"], "file/out"),
    ],
)
def test_bad_input_is_one_sentence(run, tmp_path, more, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    code, out, err = run(*words(*more))
    assert code == 1 and out == ""
    assert said in err and "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("Error: ")


def test_a_domain_that_there_is_not(run):
    code, _, err = run("compare", "image")
    assert code == 1 and "unknown domain 'image'" in err and "Did you mean 'images'" in err
