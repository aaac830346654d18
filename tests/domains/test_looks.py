"""Commands look before they work: what is wrong is refused before a worker starts, and nothing is left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from models import text_model

import sepnorm
from sepnorm.domains import open_domain
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.data import load_images
from sepnorm.domains.images.look import look_at
from sepnorm.domains.planning import default_folder
from sepnorm.domains.settings import meanings_of

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
    monkeypatch.setattr("sepnorm.experiment.running.run_jobs", lambda *_: pytest.fail("a run was begun"))


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
        (["compare", "molecules", "--data", "t.csv", "--set", "depth=deep"], "depth"),
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


# ---- what is trained on what ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "mode", "expected"),
    [
        ((8, 8), "L", {"image_size": 8, "patch_size": 2, "channels": 1, "width": 64}),
        ((8, 8), "RGB", {"image_size": 8, "patch_size": 2, "channels": 3, "width": 64}),
        ((12, 9), "L", {"image_size": 8, "patch_size": 2, "channels": 1, "width": 64}),
        ((28, 28), "L", {"image_size": 28, "patch_size": 4, "channels": 1, "width": 128}),
        ((32, 32), "RGB", {"image_size": 32, "patch_size": 4, "channels": 3, "width": 128}),
        ((160, 120), "RGB", {"image_size": 64, "patch_size": 8, "channels": 3, "width": 128}),
    ],
)
def test_size_and_channels_follow_the_data(tmp_path, size, mode, expected):
    source = draw(tmp_path / "pictures", size, mode=mode)
    config = open_domain("images").settings(None, {"data": source})
    assert {key: getattr(config, key) for key in expected} == expected


def test_what_the_user_set_is_kept(tmp_path):
    source = draw(tmp_path / "pictures", (32, 32))
    images = open_domain("images")
    assert images.settings("demo", {"data": source}).image_size == PRESETS["demo"].image_size
    assert images.settings(None, {"data": source, "image_size": 16}).image_size == 16
    found = images.settings(None, {"data": source, "channels": 1, "patch_size": 8})
    assert (found.image_size, found.patch_size, found.channels) == (32, 8, 1)
    assert images.settings(None, {}) == PRESETS["demo"]


def test_names_of_data_have_their_sizes_without_being_fetched():
    assert open_domain("images").settings(None, {"data": "cifar10"}).image_size == 32
    assert open_domain("images").settings(None, {"data": "digits"}) == PRESETS["demo"]


def test_idx_files_and_tables_are_looked_at(tmp_path):
    for part, count in (("train", 30), ("t10k", 10)):
        head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(head + bytes(count * 784))
        labels = bytes(i % 3 for i in range(count))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + count.to_bytes(4, "big") + labels)
    seen = look_at(str(tmp_path))
    assert (seen.train, seen.test, seen.size, seen.grey, seen.classes) == (30, 10, (28, 28), True, ("0", "1", "2"))
    folder = Path(draw(tmp_path / "t", (20, 10), count=10))
    files = sorted(folder.rglob("*.png"))
    rows = [f"{file.relative_to(folder)},{file.parent.name}" for file in files]
    (folder / "t.csv").write_text("\n".join(["image,label", *rows]))
    seen = look_at(str(folder / "t.csv"))
    assert (seen.train, seen.test, seen.size, seen.classes) == (8, 2, (20, 10), ("class0", "class1"))


@pytest.mark.parametrize("split", [True, False])
def test_a_parquet_file_is_counted_by_its_narrow_columns(tmp_path, split):
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(Path(draw(tmp_path / "t", (8, 8), count=100)).rglob("*.png"))
    columns: dict[str, list] = {"image": [{"bytes": file.read_bytes(), "path": None} for file in files]}
    columns["label"] = [file.parent.name for file in files]
    if split:
        columns["split"] = ["test" if number % 4 == 0 else "train" for number in range(len(files))]
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    seen = look_at(str(tmp_path / "t.parquet"))
    data = load_images(str(tmp_path / "t.parquet"), 8, 3)
    assert (seen.train, seen.test) == (len(data.train), len(data.test)) == ((75, 25) if split else (80, 20))
    assert seen.classes == tuple(data.train.classes) and seen.size == (8, 8)


def test_the_digits_are_as_many_as_is_said():
    seen, data = look_at("digits"), load_images("digits", 8, 1)
    assert (seen.train, seen.test) == (len(data.train), len(data.test)) and seen.classes == tuple(data.train.classes)


def test_a_run_begins_by_saying_what_is_trained_on_what(run, tmp_path):
    draw(tmp_path / "pictures", (28, 28), mode="L")
    words = ["--max-steps", "2", *SETTINGS, "--out", "here"]
    code, _, err = run("pretrain", "images", "--data", "pictures", *words)
    assert code == 0, err
    assert err.splitlines()[0] == (
        "Training a masked autoencoder of 2 blocks, width 16 on 32 images of pictures (28x28, grey): 2 steps of 8. "
        "Scored by probes on 8 test images of 2 classes. Norm: bn+ln@final."
    )
    code, _, err = run("pretrain", "images", "--data", "pictures", *words[:-1], "there", "--quiet")
    assert code == 0 and err == ""


def line(name: str, *changes: str, preset: str | None = None) -> str:
    domain = open_domain(name)
    config = domain.settings(preset, dict(change.split("=") for change in changes))
    return domain.look(config).line(config)


def test_the_colours_are_named_again_only_where_they_differ(tmp_path):
    data = draw(tmp_path / "photos", (50, 44))
    assert "(50x44, in colour, taken at 44x44): " in line("images", f"data={data}")
    assert "(50x44, in colour, taken at 44x44, grey): " in line("images", f"data={data}", "channels=1")
    assert "(8x8, grey): " in line("images", preset="demo")


def test_what_text_is_scored_on_is_said(tmp_path):
    lines = tmp_path / "mine.txt"
    lines.write_text("\n".join(f"sentence number {i}" for i in range(50)))
    assert "of the Lee corpus: 16 steps of 4 x 32. Scored" in line("text", "accumulation=4")
    assert "of the Lee corpus: 16 steps of 32. Scored by the 1,225 pairs of news" in line("text")
    assert "not of your data" not in line("text")
    said = line("text", f"data={lines}")
    assert open_domain("text").look(open_domain("text").settings(None, {"data": str(lines)})).foreign
    assert not open_domain("text").look(open_domain("text").settings(None, {})).foreign
    assert "on 40 sentences of mine.txt: " in said and "not of your data: --test PATH scores on" in said
    table = tmp_path / "rated.csv"
    table.write_text("sentence1,sentence2,score\n" + "".join(f"a {i},b {i},{i}\n" for i in range(9)))
    assert f"Scored by rated (9 pairs) of {table}." in line("text", f"data={lines}", f"test={table}")


SMILES = [f"{'C' * i}C1C{'C' * ring}C1{end}" for ring in range(10) for i in range(3) for end in ("O", "N")]


def test_molecules_without_a_property_are_pretrained_on(run, tmp_path):
    (tmp_path / "mine.smi").write_text("\n".join(f"{text} name{i}" for i, text in enumerate(SMILES)))
    (tmp_path / "mine.csv").write_text("\n".join(["smiles", *SMILES]))
    (tmp_path / "rated.csv").write_text("\n".join(["smiles,y", *(f"{text},{len(text)}" for text in SMILES)]))
    tiny = "width=16 depth=1 heads=2 feed_forward=16 batch_size=8 threads=0".split()
    words = [word for pair in tiny for word in ("--set", pair)]
    for name in ("mine.smi", "mine.csv"):
        code, _, err = run("pretrain", "molecules", "--data", name, "--max-steps", "2", *words, "--out", f"o-{name}")
        assert code == 0, err
        assert "(by hidden atoms and bonds) on 48 molecules of " in err and "the geometry of [CLS] alone" in err
    assert open_domain("molecules").settings(None, {"data": "rated.csv"}).task == "supervised"
    assert open_domain("molecules").settings(None, {}).task == "supervised"
    code, out, err = run(
        *(
            "pretrain",
            "molecules",
            "--data",
            "mine.smi",
            "--test",
            "rated.csv",
            "--max-steps",
            "2",
            *words,
            "--out",
            "o",
        )
    )
    assert code == 0 and "Scored by probes of rated" in err and "probe rated" in out, err


# ---- folders, configs and costs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "given", "expected"),
    [
        (None, {}, "compare-images-demo"),
        ("small", {}, "compare-images-small"),
        (None, {"data": "my/pictures"}, "compare-images-pictures"),
        ("small", {"data": "my/pictures"}, "compare-images-pictures-small"),
    ],
)
def test_the_default_folder_has_the_name_of_the_data(preset, given, expected):
    domain = open_domain("images")
    config = domain.settings(preset or "demo", given)
    assert default_folder("compare", domain, preset, given, config) == expected


def test_two_comparisons_of_different_data_do_not_meet(run, tmp_path):
    words = ["compare", "images", "--norms", "ln,bn+ln@final", "--seeds", "1", "--max-steps", "1", *SETTINGS]
    for name in ("first", "second"):
        draw(tmp_path / name, (8, 8), mode="L")
        code, out, err = run(*words, "--data", name)
        assert code == 0 and f"Report: runs/compare-images-{name}/report.html" in out, err


def test_a_dry_run_says_what_it_would_take_and_does_nothing(run, tmp_path):
    code, out, err = run("compare", "images", "--dry-run")
    assert code == 0, err
    assert "Training a masked autoencoder of 4 blocks" in out and "18 runs, 224 steps each, " in out
    assert "a run and" in out and "in all" in out and "Disk: about" in out and "Folder: runs/compare-images-demo" in out
    code, out, err = run("pretrain", "molecules", "--dry-run", "--max-steps", "7")
    assert code == 0 and "1 run, 7 steps each, " in out, err
    assert os.listdir(tmp_path) == []


def test_the_config_of_a_run_can_be_given_back(run, tmp_path):
    words = ["pretrain", "images", "--max-steps", "2", *SETTINGS, "--seed", "4"]
    code, _, err = run(*words, "--out", "first")
    assert code == 0, err
    code, _, err = run("pretrain", "images", "--config", "first/config.json", "--out", "second")
    assert code == 0, err
    first, second = (json.loads(Path(name, "metrics.json").read_text()) for name in ("first", "second"))
    assert first["loss"] == second["loss"] and first["cls_knn"] == second["cls_knn"]
    code, _, err = run("pretrain", "images", "--config", "first/config.json", "--norm", "ln", "--out", "third")
    assert code == 0 and json.loads(Path("third/config.json").read_text())["norm"] == "ln", err
    for more, said in (
        (["--preset", "small"], "not both: each sets everything"),
        (["--config", "nowhere.json"], "there is no file nowhere.json"),
    ):
        code, _, err = run("pretrain", "images", "--config", "first/config.json", *more)
        assert code == 1 and said in err
    code, _, err = run("pretrain", "text", "--config", "first/config.json")
    assert code == 1 and "first/config.json is no config of text: it has the setting" in err


def test_every_setting_has_a_meaning_and_a_value(run):
    for name in ("images", "text", "molecules"):
        domain = open_domain(name)
        cls = type(domain.presets["demo"])
        assert set(cls.model_fields) == set(meanings_of(cls)), set(cls.model_fields) - set(meanings_of(cls))
        code, out, _ = run("presets", name)
        assert code == 0 and all(f"  {field} = " in out for field in cls.model_fields)
        assert all(preset in out for preset in domain.presets)
    code, out, _ = run("presets")
    assert code == 0 and out.startswith("images\n  demo") and "molecules\n" in out


def test_the_version_is_told_at_once(run):
    code, out, _ = run("--version")
    assert code == 0 and out == f"sepnorm {sepnorm.__version__}\n"
