"""Vectors by themselves: written and read."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest
import torch
from models import bert, text_model

import sepnorm
from sepnorm import SepNormError, tuning

sys.path.insert(0, str(Path(__file__).parent))
from test_tuning import SEP, hidden, tuned, with_sep


def test_a_folder_holds_the_vectors_alone_and_brings_them_back(tmp_path):
    from safetensors.torch import load_file

    torch.manual_seed(0)
    plain, inputs = bert(), with_sep()
    model = copy.deepcopy(plain)
    special = tuned(model, name="sst2", dropout=0.1)
    tuning.save(model, tmp_path / "sst2")
    files = sorted(path.name for path in (tmp_path / "sst2").iterdir())
    assert files == ["special.json", "special.safetensors"]
    assert {key: tuple(value.shape) for key, value in load_file(tmp_path / "sst2/special.safetensors").items()} == {
        "vectors": (2, 2, 16)
    }
    assert sum((tmp_path / "sst2" / name).stat().st_size for name in files) < 4 * special.vectors("sst2").numel() + 1000
    report = tuning.load(plain, tmp_path / "sst2")
    assert torch.equal(hidden(plain, inputs), hidden(model, inputs))
    assert report.parameters == 64 and plain.special_tokens.dropout == 0.1
    report = tuning.load(plain, tmp_path / "sst2", name="again")
    assert report.parameters == 64 and "vectors 'again' at" in str(report)  # the set in use alone
    plain.set_special(["again", "sst2"] * 3)
    torch.testing.assert_close(hidden(plain, inputs), hidden(model, inputs))
    with pytest.raises(SepNormError, match="one set is saved at a time"):
        tuning.save(plain, tmp_path / "both")
    tuning.save(plain, tmp_path / "again", "again")
    assert json.loads((tmp_path / "again/special.json").read_text())["name"] == "again"


def test_a_tokeniser_finds_the_ids(tmp_path):
    import transformers as T

    text_model(tmp_path)
    tokenizer, model = T.AutoTokenizer.from_pretrained(tmp_path), bert()
    sepnorm.tune_special(model, tokenizer=tokenizer)
    assert [kind.token for kind in model.special_tokens.kinds] == [None, SEP]


def test_norms_of_cls_alone(tmp_path):
    torch.manual_seed(0)
    model, inputs = bert(), with_sep()
    sepnorm.convert(model, "ln+ln", sites="all")
    other = copy.deepcopy(model)
    sepnorm.tune_special(model, train="cls_norm")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    tuning.save(model, tmp_path)
    assert tuning.load(other, tmp_path) is None
    assert torch.equal(hidden(other, inputs), hidden(model, inputs))
    with pytest.raises(SepNormError, match="no special vectors and no \\[CLS\\] norms"):
        tuning.save(bert(), tmp_path)


def test_a_model_with_vectors_and_separate_norms_is_saved_in_two_folders(tmp_path):
    torch.manual_seed(0)
    model, inputs = bert(), with_sep()
    sepnorm.convert(model, "ln+ln")
    tuned(model)
    with pytest.warns(sepnorm.SepNormWarning, match="special vectors of this model are not in the folder"):
        sepnorm.save(model, tmp_path / "model")
    tuning.save(model, tmp_path / "vectors")
    back = sepnorm.load(tmp_path / "model")
    tuning.load(back, tmp_path / "vectors")
    assert torch.equal(hidden(back, inputs), hidden(model, inputs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "has the format 9"),
        ({"train": "all"}, "does not say what was tuned"),
        ({"tokens": {"cls": "x"}}, "does not say what was tuned"),
        ({"tokens": {"cls": None}}, "was tuned for another model"),
        ({"name": "a/b"}, "letters, digits"),
        ({"dropout": 7}, "share below 1"),
        (None, "was not written by sepnorm.tuning.save"),
    ],
)
def test_folders_that_do_not_fit(tmp_path, change, message):
    model = bert()
    tuned(model)
    tuning.save(model, tmp_path)
    if change is None:
        (tmp_path / "special.safetensors").unlink()
    else:
        path = tmp_path / "special.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    plain = bert()
    with pytest.raises(SepNormError, match=message):
        tuning.load(plain, tmp_path)
    assert not hasattr(plain, "special_tokens")


def test_vectors_of_a_model_with_other_layers(tmp_path):
    model = bert()
    tuned(model)
    tuning.save(model, tmp_path)
    with pytest.raises(SepNormError, match="vectors is \\(2, 2, 16\\) there and \\(3, 2, 16\\) here"):
        tuning.load(bert(num_hidden_layers=3), tmp_path)
