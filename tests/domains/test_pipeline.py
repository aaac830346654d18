"""pretrain, evaluate, embed and export as users type them: one small run, and what the other commands make of it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from models import text_model

import sepnorm
from sepnorm.data.pixels import Picture
from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.encoder import ImageBody
from sepnorm.domains.images.finetuning import finetune
from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.domains.pretraining import pretrain
from sepnorm.errors import InterruptedRunError
from sepnorm.report.terminal import metric_lines

TINY = "width=16 depth=2 heads=2 decoder_width=8 decoder_depth=1 decoder_heads=2 batch_size=32 threads=0".split()
SETTINGS = [word for setting in TINY for word in ("--set", setting)]
PRETRAIN = ["pretrain", "images", "--max-steps", "8", *SETTINGS]


def tiny(norm: str) -> MaskedAutoencoder:
    return MaskedAutoencoder(PRESETS["demo"].changed(dict(s.split("=") for s in TINY) | {"norm": norm}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An untrained image model with bn+ln whose statistics are those of noise."""
    folder = tmp_path_factory.mktemp("saved")
    vit = tiny("bn+ln").mae.vit
    vit.config.mask_ratio = 0.0
    sepnorm.calibrate(vit, [{"pixel_values": torch.randn(64, 1, 8, 8)}])
    vit.config.mask_ratio = 0.75
    sepnorm.save(vit, folder)
    Picture((8, 8), [0.3], [0.4]).save(folder)
    return folder


@pytest.fixture
def pictures(tmp_path):
    """Two classes of bright and dark images, six each, of different sizes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(12):
        folder = tmp_path / "pictures" / ("bright" if number % 2 else "dark")
        folder.mkdir(parents=True, exist_ok=True)
        values = rng.integers(0, 100, (9 + number, 12), dtype=np.uint8) + (150 if number % 2 else 0)
        Image.fromarray(values.astype(np.uint8)).save(folder / f"{number:02}.png")
    return tmp_path / "pictures"


def test_a_run_is_kept_and_the_commands_that_it_names_work(run):
    code, out, err = run(*PRETRAIN, "--norm", "bn+ln@final", "--seed", "3")
    assert code == 0, err
    folder = Path("runs/pretrain-images-demo-bn+ln@final-seed3")
    assert out.strip().endswith(f"Model: {folder}/model") and "mean of tokens" in out
    config = json.loads((folder / "config.json").read_text())
    assert (config["norm"], config["seed"], config["width"], config["max_steps"]) == ("bn+ln", 3, 16, 8)
    metrics = json.loads((folder / "metrics.json").read_text())
    commands = [line.strip().split()[1:] for line in out.splitlines() if line.startswith("  sepnorm ")]
    assert [words[0] for words in commands] == ["evaluate", "embed", "diagnose", "export"]
    for words in commands[:3]:
        code, out, err = run(*words)
        assert code == 0, err
    with open(f"runs/evaluate-{folder.name}/results.json") as file:
        found = json.load(file)
    for key, value in found["metrics"].items():  # from the files, the same as when it was trained
        assert value == pytest.approx(metrics[key], abs=1e-5), key
    assert {f"{place}_{name}" for place in ("cls", "mean") for name in ("linear_top1", "linear_bn_top1", "knn")} < set(
        found["metrics"]
    )
    code, out, err = run("embed", folder, "digits", "--split", "test", "--out", "test.npy")
    assert code == 0, err
    assert np.allclose(np.load("test.npy"), np.load(folder / "embeddings.npz")["cls"], atol=1e-5)
    written = os.stat(folder / "metrics.json").st_mtime_ns
    code, out, err = run(*PRETRAIN, "--seed", "3", "--json")
    assert code == 0 and json.loads(out)["metrics"] == metrics
    code, out, _ = run(*PRETRAIN, "--seed", "3")
    assert f"{folder} holds this run already, finished" in out
    assert os.stat(folder / "metrics.json").st_mtime_ns == written


def test_an_interrupted_run_goes_on_when_told_to(run):
    words = [*PRETRAIN, "--set", "checkpoints=7", "--out", "here", "--quiet"]

    def press(step, *others):
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRunError, match=r"stopped at step 3 of 8 .*: --resume makes the same command go on"):
        pretrain("images", "demo", {"max_steps": 8}, [*TINY, "checkpoints=7"], Path("here"), start=lambda *arm: press)
    code, out, err = run(*words)
    assert code == 1 and out == ""
    assert "here holds an unfinished run: add --resume" in err
    assert Path("here/checkpoints/checkpoint-3").is_dir() and not Path("here/model").exists()
    code, out, err = run(*words, "--resume")
    assert code == 0 and out == "Model: here/model\n", err
    code, _, err = run(*words[:-1], "--out", "whole")
    assert code == 0
    one, other = (json.loads(Path(place, "metrics.json").read_text()) for place in ("here", "whole"))
    assert one["cls_linear_top1"] == other["cls_linear_top1"] and one["loss"] == other["loss"]


def test_a_run_that_could_not_begin_leaves_nothing_to_resume(run):
    code, _, err = run(*PRETRAIN, "--sites", "nowhere*", "--out", "here")
    assert code == 1 and "matches no norm" in err
    assert not Path("here/config.json").exists()
    code, _, err = run(*PRETRAIN, "--out", "here", "--quiet")
    assert code == 0, err


def test_images_of_a_folder_are_embedded_in_order_with_names_and_labels(run, saved, pictures):
    import pyarrow.parquet

    (pictures / "bright" / "00.png").write_bytes(b"no image")
    code, out, err = run("embed", saved, pictures, "--out", "new/e.parquet", "--batch-size", "5")
    assert code == 0 and out == "Saved: new/e.parquet (12 x 16)\n" and "1 in all" in err
    table = pyarrow.parquet.read_table("new/e.parquet")
    names = [f"{label}/{n:02}.png" for label, first in (("bright", 1), ("dark", 0)) for n in range(first, 12, 2)]
    assert table["name"].to_pylist() == names
    assert table["label"].to_pylist() == ["bright"] * 6 + ["dark"] * 6
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: float>[16]"
    encoder = open_encoder(str(saved))
    images = {record.name: record.content for record in encoder.read(str(pictures))}
    with encoder.evaluating():
        encoded = encoder.encode(encoder.prepare([images[name] for name in names]))
    assert np.allclose(np.stack(table["embedding"].to_pylist()), encoded.cls, atol=1e-5)
    code, _, err = run("embed", saved, pictures, "--out", "m.npy", "--pooling", "mean", "--quiet")
    rows = np.load("m.npy")
    assert code == 0 and rows.dtype == np.float32 and np.allclose(rows, encoded.tokens.mean(1), atol=1e-5)
    for pooling in ("cls+mean", "moments"):
        code, _, err = run("embed", saved, pictures, "--out", "m.npy", "--pooling", pooling, "--quiet")
        assert code == 0 and np.allclose(np.load("m.npy"), encoded.pooled(pooling), atol=1e-3), err
    assert sorted(os.listdir("new")) == ["e.parquet"]
    code, out, err = run("diagnose", "new/e.parquet", "--json")
    assert code == 0 and json.loads(out)["embeddings"]["count"] == 12


def test_texts_are_embedded_in_their_order_though_batches_are_by_length(run, tmp_path):
    text_model(tmp_path / "model")
    texts = ["the cat sat on the mat and the dog sat", "a", "the cat", "a dog and a cat", "mat"]
    (tmp_path / "lines.txt").write_text("\n".join([*texts[:2], "", *texts[2:]]))
    code, out, err = run("embed", "model", "lines.txt", "--out", "e.npy", "--batch-size", "2")
    assert code == 0 and out == "Saved: e.npy (5 x 16)\n" and "1 in all" in err
    encoder = open_encoder("model")
    with encoder.evaluating():
        alone = torch.cat([encoder.encode(encoder.prepare([text])).cls for text in texts])
    assert np.allclose(np.load("e.npy"), alone, atol=1e-5)
    code, out, err = run("diagnose", "e.npy", "--quiet")
    assert code == 0, err


def test_what_cannot_be_embedded_to_its_end_leaves_the_old_file_whole(run, saved, pictures, monkeypatch):
    from sepnorm.domains.encoders import Encoder

    assert run("embed", saved, pictures, "--out", "e.parquet")[0] == 0
    before = Path("e.parquet").read_bytes()
    encode, calls = Encoder.encode, []

    def fail(self, batch):
        calls.append(1)
        if len(calls) > 1:
            raise sepnorm.SepNormError("enough.")
        return encode(self, batch)

    monkeypatch.setattr(Encoder, "encode", fail)
    for name in ("e.parquet", "e.npy"):
        calls.clear()
        code, _, err = run("embed", saved, pictures, "--out", name, "--batch-size", "5")
        assert code == 1 and err == "Error: enough.\n"
    assert Path("e.parquet").read_bytes() == before
    assert sorted(os.listdir()) == ["e.parquet", "pictures"]


@pytest.mark.parametrize("kind", ["images", "text"])
def test_an_exported_model_gives_the_same_for_any_batch(run, saved, tmp_path, kind):
    onnxruntime = pytest.importorskip("onnxruntime")
    if kind == "text":
        text_model(tmp_path / "model")
    target = saved if kind == "images" else "model"
    code, out, err = run("export", target, "--out", "m.onnx")
    assert code == 0 and "Largest difference to the original" in out, err
    encoder = open_encoder(str(target))
    if kind == "images":
        batch = {"pixel_values": torch.randn(5, 1, 8, 8)}
    else:
        batch = encoder.prepare(["the cat sat", "a dog", "the mat and the mat and the mat", "b"])
    session = onnxruntime.InferenceSession("m.onnx")
    inputs = {place.name: batch[place.name].numpy() for place in session.get_inputs()}
    assert [place.name for place in session.get_outputs()] == ["cls", "last_hidden_state"]
    for _ in range(2):  # nothing random is in it
        cls, hidden = session.run(None, inputs)
        with encoder.evaluating():
            encoded = encoder.encode(batch)
        assert np.allclose(cls, encoded.cls, atol=1e-4)
        assert np.allclose(hidden[:, 1:][encoded.keep], encoded.tokens[encoded.keep], atol=1e-4)
    assert sorted(os.listdir()) == (["m.onnx"] if kind == "images" else ["m.onnx", "model"])


def test_the_mean_of_a_text_is_the_same_wherever_it_is_asked_for(run, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    from sepnorm.domains.encoders import open_encoder
    from sepnorm.domains.text.embedding import sentence_embedder

    text_model(tmp_path / "text")
    texts = ["the cat sat", "a dog and the cat sat on the mat", "mat"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    code, _, err = run("embed", "text", "texts.txt", "--out", "m.npy", "--pooling", "mean")
    assert code == 0, err
    assert np.allclose(np.load("m.npy"), sentence_embedder(open_encoder("text"), "mean")(texts), atol=1e-6)
    first = Transformer("text")
    theirs = SentenceTransformer(modules=[first, Pooling(first.get_embedding_dimension(), "mean")], device="cpu")
    assert np.allclose(np.load("m.npy"), theirs.encode(texts), atol=1e-5)


def test_evaluate_probes_what_it_is_asked_for(run, saved):
    code, out, err = run(
        "evaluate", saved, "--data", "digits", "--on", "knn", "--pooling", "cls", "--json", "--out", "o"
    )
    assert code == 0 and "Results: o/results.json" in err
    found = json.loads(out)
    assert list(found["metrics"]) == ["cls_knn", "cls_uniformity", "cls_effective_rank", "cls_mean_cosine"]
    assert found["used"] == "900 images for training, 897 for testing, 10 classes"
    with np.load("o/features.npz") as features:
        assert features["train_cls"].shape == (900, 16) and features["test_labels"].shape == (897,)
    code, out, err = run(
        "evaluate", saved, "--data", "digits", "--on", "knn", "--pooling", "moments,cls+mean", "--json", "--out", "o"
    )
    assert code == 0, err
    both = json.loads(out)["metrics"]
    assert both.keys() >= {"moments_knn", "cls+mean_knn", "cls+mean_uniformity"} and "cls_knn" not in both
    with np.load("o/features.npz") as features:
        assert features["train_moments"].shape == (900, 17 * 18 // 2) and features["test_cls+mean"].shape == (897, 32)


@pytest.mark.parametrize("norm", ["ln", "bn+bn"])
def test_fine_tuning_learns_and_leaves_the_encoder_as_it_was(norm, monkeypatch):
    monkeypatch.setattr("sepnorm.domains.images.finetuning.EPOCHS", 3)
    monkeypatch.setattr("sepnorm.domains.images.finetuning.RATES", (3e-3, 1e-2))
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(130) % 2
    images = (torch.rand(130, 1, 8, 8, generator=generator) * 100 + labels[:, None, None, None] * 100).byte()
    body = ImageBody(tiny(norm).mae.vit)
    before = {key: value.clone() for key, value in body.state_dict().items()}
    state = torch.get_rng_state()
    seen: list[int] = []
    train, test = (images[:97], labels[:97]), (images[97:], labels[97:])
    found = finetune(body, 16, 2, train, test, lambda part: part.float() / 255, progress=lambda d, t: seen.append(d))
    assert found["top1"] > 0.9 and 1 <= found["epochs"] <= 3 and found["rate"] in (3e-3, 1e-2)
    assert seen == list(range(1, 7 + int(found["epochs"])))
    assert all(torch.equal(before[key], value) for key, value in body.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(sepnorm.SepNormError, match="at least two training samples of some class"):
        finetune(body, 16, 2, (images[:2], labels[:2]), test, lambda part: part.float() / 255)


def test_metrics_of_both_poolings_stand_side_by_side():
    lines = metric_lines({"cls_knn": 0.5, "cls_uniformity": -2.25, "mean_knn": 0.625, "loss": 0.25, "rate": 1e-4})
    assert lines == [
        "            [CLS]   mean of tokens",
        "knn         0.500   0.625",
        "uniformity  -2.250",
        "loss: 0.250",
        "rate: 0.0001",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["pretrain", "imagse"],
            "unknown domain 'imagse': choose from images, molecules, text. Did you mean 'images'?",
        ),
        (["pretrain", "tables"], "choose from images, molecules, text.\n"),  # none of them is meant
        (["pretrain", "images", "--preset", "dmeo"], "Did you mean 'demo'?"),
        (["pretrain", "images", "--norm", "bm+ln"], "Did you mean"),
        (["pretrain", "images", "--set", "depht=2"], "Did you mean 'depth'?"),
        ([*PRETRAIN, "--out", "file.txt/x"], "the folder file.txt/x cannot be made"),
        (["evaluate", "./nowhere", "--data", "digits"], "there is no model ./nowhere"),
        (["evaluate", "SAVED", "--data", "flat"], "flat has images without a label"),
        (["evaluate", "SAVED", "--data", "digits", "--on", "liner"], "Did you mean 'linear'?"),
        (["evaluate", "SAVED", "--data", "digits", "--pooling", "cl"], "Did you mean 'cls'?"),
        (["evaluate", "SAVED", "--data", "digits", "--out", "file.txt"], "the folder file.txt cannot be made"),
        (["evaluate", "text", "--on", "linear"], "unknown evaluation set 'linear'"),
        (["embed", "SAVED", "digits", "--out", "e.csv"], "written to .parquet or .npy files, found e.csv"),
        (["embed", "SAVED", "digits", "--out", "e.npy", "--pooling", "maen"], "Did you mean 'mean'?"),
        (["embed", "SAVED", "empty", "--out", "e.npy"], "empty holds no image"),
        (["embed", "text", "file.txt", "--out", "e.npy"], "file.txt gives nothing to embed"),
        (["embed", "./nowhere", "digits", "--out", "e.npy"], "there is no model ./nowhere"),
        (["export", "SAVED", "--out", "m.pt"], "exported to a .onnx file, found m.pt"),
        (["export", "./nowhere", "--out", "m.onnx"], "there is no model ./nowhere"),
    ],
)
def test_bad_input_is_one_sentence(run, saved, tmp_path, words, said):
    from PIL import Image

    (tmp_path / "flat").mkdir()
    for number in range(20):
        Image.new("L", (8, 8), number).save(tmp_path / "flat" / f"{number}.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("\n")
    if "text" in words:
        text_model(tmp_path / "text")
    there = sorted(os.listdir())
    code, out, err = run(*(str(saved) if word == "SAVED" else word for word in words))
    assert code == 1 and out == ""
    assert said in err and "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("Error: ")
    assert [name for name in sorted(os.listdir()) if name not in there] in ([], ["runs"])
