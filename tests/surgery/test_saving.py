from __future__ import annotations

import json
import os
import random

import pytest
import torch
from models import bert, embeddings, sentences

import sepnorm
from sepnorm import SepNormError
from sepnorm.surgery.saving import DESCRIPTION, WEIGHTS


@pytest.fixture
def saved(tmp_path):
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()], sites="all")
    return model, sepnorm.save(model, tmp_path / "model")


def test_everything_comes_back(saved):
    model, folder = saved
    loaded = sepnorm.load(folder)
    batch = sentences()
    assert torch.equal(embeddings(loaded, batch), embeddings(model, batch))
    ours, theirs = loaded.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert sorted(os.listdir(folder)) == ["config.json", DESCRIPTION, WEIGHTS]


def test_a_loaded_model_can_be_reverted_and_remembers_training(saved, tmp_path):
    model, folder = saved
    batch = sentences()
    loaded = sepnorm.load(folder)
    assert {site.reason for site in sepnorm.revert(loaded).sites} == {"as it was, bit for bit"}
    model.train()(**batch)
    sepnorm.save(model, tmp_path / "trained")
    report = sepnorm.revert(sepnorm.load(tmp_path / "trained"))
    assert not any("bit for bit" in site.reason for site in report.sites)
    sepnorm.revert(model)
    assert torch.equal(embeddings(loaded, batch), embeddings(model, batch))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes_come_back(dtype, tmp_path):
    model = bert().to(dtype)
    sepnorm.convert(model, "bn+ln", calibrate=[sentences()], sites="all")
    sepnorm.save(model, tmp_path)
    loaded = sepnorm.load(tmp_path)
    assert {k: v.dtype for k, v in loaded.state_dict().items()} == {k: v.dtype for k, v in model.state_dict().items()}
    batch = sentences()
    assert torch.equal(embeddings(loaded, batch), embeddings(model, batch))


def test_tied_weights_stay_tied(tmp_path):
    import transformers as T
    from models import BERT

    model = T.BertForMaskedLM(T.BertConfig(**BERT)).eval()
    sepnorm.convert(model, "bn+ln", sites="all")
    sepnorm.save(model, tmp_path)
    loaded = sepnorm.load(tmp_path)
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight


def test_saving_again_replaces_and_leaves_no_scratch_files(saved):
    model, folder = saved
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.add_(1)
    sepnorm.save(model, folder)
    batch = sentences()
    assert torch.equal(embeddings(sepnorm.load(folder), batch), embeddings(model, batch))
    assert not [name for name in os.listdir(folder) if name.startswith(".")]


def test_an_unconverted_model_is_not_saved(tmp_path):
    with pytest.raises(SepNormError, match=r"no separate norms"):
        sepnorm.save(bert(), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_foreign_folder_is_refused(tmp_path):
    with pytest.raises(SepNormError, match=r"was not written by sepnorm.save"):
        sepnorm.load(tmp_path)
    with pytest.raises(SepNormError, match=r"does not exist: give the folder"):
        sepnorm.load(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(SepNormError, match=r"file is a file: give the folder"):
        sepnorm.load(tmp_path / "file")
    with pytest.raises(SepNormError, match=r"folder is a path, found a NoneType"):
        sepnorm.load(None)
    (tmp_path / DESCRIPTION).write_text('{"model": "something else"}')
    with pytest.raises(SepNormError, match=r"is not a description"):
        sepnorm.load(tmp_path)


def test_missing_and_foreign_weights_are_refused(saved):
    _, folder = saved
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(b"not safetensors at all")
    with pytest.raises(SepNormError, match=r"no complete safetensors file"):
        sepnorm.load(folder)
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SepNormError, match=r"no complete safetensors file"):
        sepnorm.load(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(SepNormError, match=r"incomplete"):
        sepnorm.load(folder)


def test_truncation_anywhere_is_a_clear_error(saved):
    _, folder = saved
    for name in (DESCRIPTION, WEIGHTS):
        whole = (folder / name).read_bytes()
        for cut in random.Random(0).sample(range(len(whole)), 15):
            (folder / name).write_bytes(whole[:cut])
            with pytest.raises(SepNormError):
                sepnorm.load(folder)
        (folder / name).write_bytes(whole)
    sepnorm.load(folder)


def test_the_wrong_architecture_is_named(saved):
    _, folder = saved
    with pytest.raises(
        SepNormError, match=r"another architecture: encoder.layer.0.* 16 channels, found .* 32 channels"
    ):
        sepnorm.load(folder, bert(hidden_size=32))
    with pytest.raises(SepNormError, match=r"another architecture: encoder.layer.1.*found nothing"):
        sepnorm.load(folder, bert(num_hidden_layers=1))
    with pytest.raises(SepNormError, match=r"another architecture than this BertModel.*missing"):
        sepnorm.load(folder, bert(num_hidden_layers=3))
    with pytest.raises(SepNormError, match=r"of another shape"):
        sepnorm.load(folder, bert(vocab_size=61))


def test_a_class_that_the_library_does_not_have_is_refused(saved):
    _, folder = saved
    description = json.loads((folder / DESCRIPTION).read_text())
    for name in ("NoSuchModel", "AutoTokenizer", "__import__"):
        (folder / DESCRIPTION).write_text(json.dumps(description | {"class": name}))
        with pytest.raises(SepNormError, match=r"does not have"):
            sepnorm.load(folder)
    (folder / DESCRIPTION).write_text(json.dumps(description | {"format": 99}))
    with pytest.raises(SepNormError, match=r"upgrade sepnorm"):
        sepnorm.load(folder)


def test_a_layer_that_the_user_built_is_saved_too(tmp_path):
    def build():
        return torch.nn.Sequential(torch.nn.Linear(4, 6), sepnorm.SepNorm(6))

    model = build()
    model(torch.randn(5, 3, 4))
    sepnorm.save(model, tmp_path)
    loaded = sepnorm.load(tmp_path, build())
    x = torch.randn(2, 3, 4)
    assert torch.equal(loaded(x), model.eval()(x))


def changed(folder, **values):
    """The first site of a saved model with other values for its [CLS] norm."""
    description = json.loads((folder / DESCRIPTION).read_text())
    description["sites"][0]["children"]["cls_norm"] |= values
    (folder / DESCRIPTION).write_text(json.dumps(description))


@pytest.mark.parametrize("values", [{"eps": "small"}, {"eps": -1}, {"momentum": [1]}, {"affine": "yes"}, {"kind": [1]}])
def test_norms_that_cannot_be_are_refused(saved, values):
    _, folder = saved
    changed(folder, **values)
    with pytest.raises(SepNormError):
        sepnorm.load(folder)


def test_weights_of_another_kind_are_refused(saved):
    """A byte of the header makes whole numbers of the weights."""
    _, folder = saved
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content.replace(b'"F32"', b'"I32"', 1))
    with pytest.raises(SepNormError, match="1 of another shape or kind"):
        sepnorm.load(folder)


def test_a_description_that_is_nested_too_deeply_is_damaged(saved):
    _, folder = saved
    (folder / DESCRIPTION).write_text("[" * 100_000)
    with pytest.raises(SepNormError, match="is damaged"):
        sepnorm.load(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_attention_heads", 3), ("hidden_act", "nonsense"), ("hidden_size", "x"), ("id2label", 5)],
)
def test_a_damaged_config_beside_weights_of_the_library_is_one_sentence(tmp_path, key, value):
    model = bert()
    sepnorm.convert(model, "ln+ln", sites="all")
    model.save_pretrained(tmp_path)
    sepnorm.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(SepNormError, match=r"^the model in .* cannot be built \(.*\): copy or save it again\.$"):
        sepnorm.load(tmp_path)
