"""Vectors of models in half precision: they stay in float32, so that small steps count."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
import transformers as T
from models import BERT, bert

import sepnorm
from sepnorm import SepNormError, SepNormWarning, tuning

sys.path.insert(0, str(Path(__file__).parent))
from test_tuning import SEP, hidden, tuned, with_sep

NARROW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", NARROW)
def test_vectors_of_a_narrow_model_learn(dtype):
    torch.manual_seed(0)
    model = T.BertForSequenceClassification(T.BertConfig(**BERT)).to(dtype)
    sepnorm.tune_special(model, {"cls": None, "sep": SEP})
    model.classifier.float()
    model.classifier.register_forward_pre_hook(lambda module, args: (args[0].float(),))
    vectors = model.special_tokens.vectors("default")
    optimizer = tuning.PRESETS["mrpc"].optimizer(model)
    batch = with_sep() | {"labels": torch.arange(6) % 2}
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(model(**batch).loss)
        losses[-1].backward()
        optimizer.step()
    assert vectors.dtype == torch.float32 and vectors.isfinite().all()
    assert losses[-1].item() < losses[0].item()


@pytest.mark.parametrize("dtype", NARROW)
def test_small_steps_in_one_direction_add_up(dtype):
    model = bert().to(dtype)
    vectors = tuned(model, "cls").vectors("default")
    before = vectors.detach().clone()
    optimizer = tuning.PRESETS["mrpc"].optimizer(model)
    for _ in range(400):
        vectors.grad = -torch.ones_like(vectors)
        optimizer.step()
    torch.testing.assert_close(vectors.detach() - before, torch.full_like(before, 0.1), atol=1e-3, rtol=0)


@pytest.mark.parametrize("dtype", NARROW)
def test_zero_vectors_change_no_bit_of_a_narrow_model(dtype):
    model, inputs = bert().to(dtype), with_sep()
    before = hidden(model, inputs)
    sepnorm.tune_special(model, {"cls": None, "sep": SEP})
    after = hidden(model, inputs)
    assert after.dtype == dtype and torch.equal(after, before)


@pytest.mark.parametrize("cast", [torch.nn.Module.half, torch.nn.Module.bfloat16, lambda m: m.to(torch.float16)])
def test_casting_a_model_keeps_its_vectors(cast):
    model, inputs = bert(), with_sep()
    vectors = tuned(model).vectors("default")
    before = vectors.detach().clone()
    hidden(model, inputs)
    vectors.grad = torch.full_like(vectors, 0.1)
    cast(model)
    assert model.special_tokens.vectors("default") is vectors and torch.equal(vectors, before)
    assert vectors.grad.dtype == torch.float32
    assert hidden(model, inputs).dtype != torch.float32
    assert vectors.dtype == torch.float32
    assert model.double().special_tokens.vectors("default").dtype == torch.float64


def test_a_saved_set_is_loaded_as_it_was(tmp_path):
    model, plain = bert(), bert().half()
    vectors = tuned(model).vectors("default")
    tuning.save(model, tmp_path)
    tuning.load(plain, tmp_path)
    assert torch.equal(plain.special_tokens.vectors("default"), vectors)


def test_norms_of_cls_in_float16_are_refused_and_in_bfloat16_said():
    model = bert()
    sepnorm.convert(model, "ln+ln", sites="all")
    half, wide = copy.deepcopy(model).half(), copy.deepcopy(model).bfloat16()
    with pytest.raises(SepNormError, match=r"cls_norm\.\w+ is in float16 and Adam would make it NaN"):
        sepnorm.tune_special(half, train="cls_norm")
    assert all(parameter.requires_grad for parameter in half.parameters())
    with pytest.warns(SepNormWarning, match="is in bfloat16, whose step at 1 is 0.008"):
        sepnorm.tune_special(wide, train="cls_norm")
    sepnorm.tune_special(half.float(), train="cls_norm")
