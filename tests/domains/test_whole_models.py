"""``sepnorm convert`` keeps the whole model that a folder holds, its head included."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as T
from models import BERT, text_model
from safetensors.torch import load_file, save_file

import sepnorm
from sepnorm.domains.encoders import convert_copy, open_encoder
from sepnorm.errors import SepNormError

FINAL = "bert.encoder.layer.1.output.LayerNorm"


@pytest.fixture
def texts(tmp_path) -> str:
    (tmp_path / "lines.txt").write_text("\n".join(f"the cat sat on mat {number % 10}" for number in range(30)))
    return str(tmp_path / "lines.txt")


def saved(folder, cls: str):
    text_model(folder)  # for its tokeniser
    torch.manual_seed(0)
    model = getattr(T, cls)(T.BertConfig(**BERT, num_labels=3)).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("cls", ["BertForSequenceClassification", "BertForMaskedLM", "BertForTokenClassification"])
def test_the_head_is_kept(tmp_path, texts, cls, run):
    model = saved(tmp_path / "model", cls)
    code, out, err = run("convert", tmp_path / "model", "--data", texts, "--out", tmp_path / "new")
    assert code == 0, err
    assert f"{cls} to bn+ln: 1 of" in out  # the last norm is the default here too
    loaded = sepnorm.load(tmp_path / "new")
    assert type(loaded) is getattr(T, cls)
    assert isinstance(loaded.get_submodule(FINAL), sepnorm.SepNorm)
    ours, theirs = loaded.state_dict(), model.state_dict()
    head = [key for key in theirs if not key.startswith("bert.")]
    assert head and all(torch.equal(ours[key], theirs[key]) for key in head)
    encoded = open_encoder(str(tmp_path / "new")).encode({"input_ids": torch.tensor([[2, 5, 6], [2, 7, 8]])})
    assert encoded.cls.shape == (2, BERT["hidden_size"])


def test_weights_that_are_no_part_of_the_class_are_told(tmp_path, texts):
    saved(tmp_path / "model", "BertForSequenceClassification")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    save_file(weights | {"other.weight": torch.zeros(2)}, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    report = convert_copy(str(tmp_path / "model"), texts, tmp_path / "new", "bn+ln", "final")
    assert "are no part of a BertForSequenceClassification and were left out, such as other.weight" in str(report)


def test_a_folder_with_the_encoder_alone_is_opened_as_one(tmp_path, texts):
    """Many a config names the class that a model was trained as, and the weights are those of its encoder."""
    text_model(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    convert_copy(str(tmp_path / "model"), texts, tmp_path / "new", "bn+ln", "final")
    assert type(sepnorm.load(tmp_path / "new")) is T.BertModel


@pytest.mark.parametrize("name", ["BertForSomethingElse", "ViTModel", "os.system", 3])
def test_a_class_that_is_none_for_the_config_is_refused(tmp_path, texts, name):
    saved(tmp_path / "model", "BertForSequenceClassification")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"architectures": [name]}))
    with pytest.raises(SepNormError, match="names the class"):
        convert_copy(str(tmp_path / "model"), texts, tmp_path / "new", "bn+ln", "final")
    assert not (tmp_path / "new").exists()


def test_an_encoder_is_more_than_what_is_called_the_base_model():
    from sepnorm.surgery.families import encoder_of

    config = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16)
    model = T.DINOv3ViTModel(T.DINOv3ViTConfig(**config, patch_size=4))
    assert encoder_of(model) is model  # its base_model is the stack of blocks, which takes no pixels
    classifier = T.BertForSequenceClassification(T.BertConfig(**BERT))
    assert encoder_of(classifier) is classifier.bert
