"""Folders whose settings describe more than their weights hold are refused before anything of that size is built."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T
from models import text_model
from safetensors.torch import save_file

import sepnorm
from sepnorm import SepNormError
from sepnorm.surgery.opening import sizes
from sepnorm.surgery.opening.models import open_for_masked_words, open_model
from sepnorm.surgery.opening.sizes import Size, size_of
from sepnorm.surgery.opening.transformers_settings import vet_config
from sepnorm.surgery.saving import WEIGHTS

LARGER = "describes a larger model than its weights"
MODULES = "sentence_transformers.models"


@pytest.fixture
def no_spare(monkeypatch):
    """A model may be twice as large as its weights and no larger, so that a small one is already too large."""
    monkeypatch.setattr(sizes, "_SPARE_VALUES", 0)


def change(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def with_dense(folder: Path, **settings: Any) -> Path:
    """A sentence encoder whose Dense has a weight of 12 x 16."""
    text_model(folder)
    places = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"{MODULES}.{kind}"}
        for n, (path, kind) in enumerate(places.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"word_embedding_dimension": 16, "pooling_mode_cls_token": true}')
    (folder / "2_Dense").mkdir()
    sizes = {"in_features": 16, "out_features": 12, "bias": False}
    (folder / "2_Dense/config.json").write_text(json.dumps(sizes | settings))
    save_file({"linear.weight": torch.ones(12, 16)}, folder / "2_Dense/model.safetensors")
    return folder


@pytest.mark.parametrize(("shape", "end"), [([2**20, 2**20], 0), ([4, 2], 16)])
def test_a_header_that_claims_more_values_than_the_file_has_is_refused(tmp_path, shape, end):
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    (tmp_path / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + bytes(end))
    with pytest.raises(SepNormError, match="is no complete safetensors file"):
        size_of([tmp_path / WEIGHTS])


def test_the_longest_side_is_that_of_a_tensor_with_values(tmp_path):
    save_file({"x": torch.empty(0, 2**40), "y": torch.ones(3, 5)}, tmp_path / "x.safetensors")
    assert size_of([tmp_path / "x.safetensors"]) == Size(tensors=2, values=15, largest=5)


def test_a_dense_that_is_larger_than_its_weights_is_refused(tmp_path, no_spare):
    with_dense(tmp_path / "model", in_features=100, out_features=100)
    with pytest.raises(SepNormError, match=f"2_Dense/config.json {LARGER}, which have 1 tensors with 192 values"):
        open_model(str(tmp_path / "model"))


def test_a_saved_dense_that_is_larger_than_the_weights_is_refused(tmp_path, no_spare):
    model = open_model(str(with_dense(tmp_path / "model"))).model
    sepnorm.convert(model, "ln+ln", sites="all")
    saved = sepnorm.save(model, tmp_path / "saved")
    sepnorm.load(saved)
    change(saved / "2_Dense/config.json", in_features=500, out_features=500)
    with pytest.raises(SepNormError, match=f"2_Dense/config.json {LARGER}"):
        sepnorm.load(saved)


def test_the_class_with_its_head_is_refused_where_the_encoder_alone_would_fit(tmp_path, no_spare):
    options = dict(vocab_size=40, dim=8, n_layers=1, n_heads=1, hidden_dim=8, max_position_embeddings=64)
    model = T.DistilBertForSequenceClassification(T.DistilBertConfig(**options))
    sepnorm.convert(model, "ln+ln", sites="all")
    sepnorm.save(model, tmp_path)
    change(tmp_path / "config.json", dim=24, n_layers=0)
    with pytest.raises(SepNormError, match=LARGER):
        sepnorm.load(tmp_path)


def test_a_head_for_masked_words_is_refused_where_the_encoder_alone_would_fit(tmp_path, no_spare):
    text_model(tmp_path)
    change(tmp_path / "config.json", hidden_size=60, num_hidden_layers=0)
    with pytest.raises(SepNormError, match=LARGER):
        open_for_masked_words(str(tmp_path))


@pytest.mark.parametrize("settings", [{"num_labels": 100_001}, {"text_config": {"num_labels": 2_000_000}}])
def test_many_labels_are_refused_at_any_depth(settings):
    with pytest.raises(SepNormError, match=r"config.json has num_labels=[\d,]+, more than the 100,000"):
        vet_config({"model_type": "bert"} | settings, Path("config.json"), largest=2**40)
    vet_config({"model_type": "bert", "num_labels": 100_000}, Path("config.json"), largest=10)


@pytest.mark.parametrize("key", ["attention_window", "block_size", "local_attn_chunk_length", "window_size"])
@pytest.mark.parametrize("wrap", [int, lambda value: [value]])
def test_parts_that_an_input_is_padded_to_have_a_limit(key, wrap):
    config = {"model_type": "bert", "text_config": {key: wrap(4096)}}
    assert vet_config(config, Path("config.json"), 16) == config
    with pytest.raises(SepNormError, match=rf"has {key}=4,097, more than the 4,096 that sepnorm opens"):
        vet_config({"model_type": "bert", "text_config": {key: wrap(4097)}}, Path("config.json"), 16)


def test_tables_of_indices_count_by_their_bytes():
    wide = Size(1, 10, 10)

    def build() -> torch.nn.Module:
        model = torch.nn.Module()
        model.register_buffer("table", torch.zeros(sizes._SPARE_VALUES * 2 // 3, dtype=torch.int64))
        return model

    with pytest.raises(SepNormError, match=LARGER):
        sizes.require_fitting(build, wide, Path("config.json"))


def test_weights_of_other_shapes_are_one_sentence(tmp_path):
    text_model(tmp_path / "model")
    change(tmp_path / "model" / "config.json", intermediate_size=20)
    with pytest.raises(
        SepNormError, match=r"the weights of \S+model do not fit its config: some have other shapes\. Use"
    ):
        open_model(str(tmp_path / "model"))


@pytest.mark.parametrize("size", [2561, [224, 3200]])
def test_sides_of_images_have_a_limit(tmp_path, size):
    """No weights of a Swin depend on it, and a batch of such images takes gigabytes."""
    config = T.SwinConfig(image_size=64, patch_size=8, embed_dim=16, depths=[1], num_heads=[2], window_size=4)
    T.SwinModel(config).save_pretrained(tmp_path)
    assert open_model(str(tmp_path)).model.config.image_size == 64
    change(tmp_path / "config.json", image_size=size)
    with pytest.raises(SepNormError, match=r"has image_size=.*, more than the 2,560 that sepnorm opens"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("name", ["vocab.txt", "merges.txt", "tokenizer.json", "spiece.model"])
def test_vocabularies_of_gigabytes_are_refused(tmp_path, name):
    text_model(tmp_path)
    with open(tmp_path / name, "wb") as file:
        file.truncate(2**31)
    with pytest.raises(SepNormError, match=f"{name} has 2,048 MiB, and a vocabulary has at most 256: it is not read"):
        open_model(str(tmp_path))


def test_a_table_of_positions_that_is_computed_in_python_is_not_larger_than_the_weights(tmp_path):
    sizes = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "vocab_size": 50, "sinusoidal_pos_embds": True}
    T.DistilBertModel(T.DistilBertConfig(**sizes, max_position_embeddings=64)).save_pretrained(tmp_path)
    change(tmp_path / "config.json", max_position_embeddings=1_000_000)
    with pytest.raises(SepNormError, match=LARGER):
        open_model(str(tmp_path))
