"""Padding on the left of a converted model, whose norms take the first position for [CLS]."""

from __future__ import annotations

import copy

import pytest
import torch
from models import bert, sentences, text_model
from torch import nn

import sepnorm
from sepnorm import SepNormError, tuning

MESSAGE = r"padded on the left, and a converted norm takes the first position for \[CLS\]: pad on the right"


def left() -> dict[str, torch.Tensor]:
    return {key: value.flip(1) for key, value in sentences().items()}


@pytest.mark.parametrize("norm", ["ln+ln", "bn+ln", "bn+bn"])
@pytest.mark.parametrize("sites", ["all", "final"])
def test_it_is_refused_under_any_separate_norm(norm, sites):
    model = bert()
    sepnorm.convert(model, norm, sites=sites, calibrate=[sentences()])
    for changed in (model, copy.deepcopy(model), model.train()):
        state = {key: value.clone() for key, value in changed.state_dict().items()}
        with pytest.raises(SepNormError, match=MESSAGE):
            changed(**left())
        assert all(torch.equal(value, state[key]) for key, value in changed.state_dict().items())
        changed(**sentences())  # nothing is left of it
        changed(input_ids=left()["input_ids"])


def test_it_is_refused_in_calibration():
    model = bert()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(SepNormError, match=MESSAGE):
        sepnorm.convert(model, "bn+ln", calibrate=[sentences(), left()])
    assert model.state_dict().keys() == before.keys()
    sepnorm.convert(model, "bn+ln")
    with pytest.raises(SepNormError, match=MESSAGE):
        sepnorm.calibrate(model, [sentences(), left()])


def test_it_is_refused_by_position_and_after_saving(tmp_path):
    model = bert()
    sepnorm.convert(model, "bn+ln", calibrate=[sentences()])
    sepnorm.save(model, tmp_path)
    loaded = sepnorm.load(tmp_path, bert())
    batch = left()
    with pytest.raises(SepNormError, match=MESSAGE):
        loaded(batch["input_ids"], batch["attention_mask"])


def test_it_is_refused_after_a_merge():
    model, batch = bert(), left()
    sepnorm.tune_special(model, "cls")
    model(**batch)  # vectors find [CLS] behind padding
    tuning.merge(model)
    with pytest.raises(SepNormError, match=MESSAGE):
        model(**batch)


def test_shared_norms_and_reverted_models_take_it():
    model, batch = bert(), left()
    before = model(**batch).last_hidden_state
    sepnorm.convert(model, "ln+ln", sites="all")
    sepnorm.revert(model)
    assert torch.equal(model(**batch).last_hidden_state, before)
    sepnorm.convert(model, "bn", calibrate=[sentences()])
    model(**batch)


def test_samples_that_are_all_padding_are_taken():
    model, batch = bert(), sentences()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()])
    batch["attention_mask"][1] = 0
    model.train()(**batch)
    batch["attention_mask"][:] = 0
    model(**batch)


class OwnCls(nn.Module):
    """An encoder that puts its [CLS] before the tokens that it is given, so that the mask is of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(8))
        self.first, self.norm = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, padding_mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.first(torch.cat([self.cls.expand(len(x), 1, 8), x], 1))
        return self.norm(x + x.mean(1, keepdim=True))


def test_a_mask_of_the_tokens_behind_cls_may_begin_with_padding():
    model = OwnCls()
    sepnorm.convert(model, "bn+ln", sites=["norm"], example=(torch.randn(4, 5, 8),))
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[0, 0] = True
    model.train()(torch.randn(4, 5, 8), mask)


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_encoder(batch_first):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2)
    words = torch.randn(3, 6, 16)
    words[:, 0] = 1
    words = words if batch_first else words.transpose(0, 1)
    sepnorm.convert(model, "ln+ln", sites="all", example=(words,))
    padding = torch.arange(6) < torch.tensor([[2], [0], [1]])
    with pytest.raises(SepNormError, match=MESSAGE):
        model(words, src_key_padding_mask=padding)
    model(words, src_key_padding_mask=padding.flip(1))


def test_a_sentence_transformer(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    text_model(tmp_path)
    model = library.SentenceTransformer(str(tmp_path), device="cpu")
    sepnorm.convert(model, "ln+ln", sites="all")
    model.encode(["the cat sat", "dog"])
    model.tokenizer.padding_side = "left"
    with pytest.raises(SepNormError, match=MESSAGE):
        model.encode(["the cat sat", "dog"])


def test_compiled_models_do_not_read_the_mask():
    model, batch = bert(), left()
    sepnorm.convert(model, "ln+ln", sites="all")
    torch.compile(model, backend="eager", fullgraph=True)(**batch)
