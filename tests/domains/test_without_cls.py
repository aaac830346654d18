"""Models without [CLS]: no other token is passed off as one, and the mean is over all tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers as T
from models import text_model

from sepnorm.domains.encoders import open_encoder

SIZES = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
)


@pytest.fixture
def siglip(tmp_path):
    """A SigLIP, whose tokens are patches alone, and a folder of images."""
    from PIL import Image

    T.SiglipVisionModel(T.SiglipVisionConfig(**SIZES)).save_pretrained(tmp_path / "siglip")
    T.ViTModel(T.ViTConfig(**SIZES)).save_pretrained(tmp_path / "vit")
    rng = np.random.default_rng(0)
    for number in range(20):
        place = tmp_path / "pictures" / ("odd" if number % 2 else "even")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(place / f"{number:02}.png")
    return tmp_path / "siglip"


def test_a_patch_is_not_written_as_cls(run, siglip):
    code, _, err = run("embed", "siglip", "pictures", "--out", "e.npy")
    assert code == 1 and "siglip has no [CLS]" in err and "--pooling mean" in err
    assert not (siglip.parent / "e.npy").exists()


def test_the_mean_is_over_all_patches(run, siglip):
    code, _, err = run("embed", "siglip", "pictures", "--out", "e.npy", "--pooling", "mean")
    assert code == 0, err
    encoder = open_encoder(str(siglip))
    records = sorted(encoder.read("pictures"), key=lambda record: record.name)
    with torch.no_grad():
        states = encoder.model(**encoder.prepare([record.content for record in records])).last_hidden_state
    assert states.shape[1] == 4
    assert np.allclose(np.load("e.npy"), states.double().mean(1).numpy(), atol=1e-5)


def test_a_vision_transformer_with_cls_is_left_as_it_was(siglip):
    encoder = open_encoder(str(siglip.parent / "vit"))
    assert encoder.has_cls
    records = list(encoder.read(str(siglip.parent / "pictures")))
    batch = encoder.prepare([record.content for record in records])
    with encoder.evaluating():
        found = encoder.encode(batch)
        with torch.no_grad():
            states = encoder.model(**batch).last_hidden_state
    assert torch.equal(found.cls, states[:, 0]) and torch.equal(found.tokens, states[:, 1:])


def test_diagnose_shows_the_mean_and_says_so(run, siglip):
    code, out, err = run("diagnose", "siglip", "--data", "pictures", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert "siglip has no [CLS]: these are the means of its tokens" in found["embeddings"]["notes"][0]
    assert found["layers"] is None and found["mean_of_tokens"] is None and found["embeddings"]["count"] == 20
    assert not any("diagnose MODEL" in line for line in found["verdict"]["advice"])


def test_evaluate_probes_the_mean_and_export_is_refused(run, siglip):
    code, out, err = run("evaluate", "siglip", "--data", "pictures", "--on", "knn")
    assert code == 0 and "the model has no [CLS]" in out and "mean of tokens" in out and "moments" in out, err
    code, _, err = run("evaluate", "siglip", "--data", "pictures", "--on", "knn", "--pooling", "cls")
    assert code == 1 and "siglip has no [CLS]" in err
    code, _, err = run("export", "siglip", "--out", "m.onnx")
    assert code == 1 and "siglip has no [CLS]" in err


def test_a_tokeniser_without_cls_means_a_model_without(run, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    text_model(tmp_path / "model")
    words = Tokenizer(
        models.WordLevel({"[UNK]": 0, "[PAD]": 1, "the": 2, "cat": 3, "dog": 4, "sat": 5}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    for file in (tmp_path / "model").glob("*token*"):
        file.unlink()
    T.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        tmp_path / "model"
    )
    (tmp_path / "lines.txt").write_text("the cat sat\nthe dog\ncat sat\nthe dog sat dog\n")
    code, _, err = run("embed", "model", "lines.txt", "--out", "e.npy")
    assert code == 1 and "model has no [CLS]" in err
    code, out, err = run("diagnose", "model", "--data", "lines.txt")
    assert code == 0 and "model has no [CLS]" in out, err


def test_an_encoder_with_a_decoder_is_told_from_its_settings(run, tmp_path):
    config = T.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=30)
    T.T5Model(config).save_pretrained(tmp_path / "t5")
    (tmp_path / "lines.txt").write_text("a\nb\nc\n")
    for words in (["embed", "t5", "lines.txt", "--out", "e.npy"], ["diagnose", "t5", "--data", "lines.txt"]):
        code, _, err = run(*words)
        assert code == 1 and "t5 is an encoder-decoder model (model type 't5'), which has no [CLS]" in err
