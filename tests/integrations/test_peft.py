"""Adapters: what ``keep_norms`` adds and refuses, and batch norms that a library wraps."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from models import bert, sentences
from torch import nn

import sepnorm
from sepnorm import SepNormError, SepNormWarning
from sepnorm.integrations.peft import keep_norms

LAST = "encoder.layer.1.output.LayerNorm"


@pytest.fixture
def model():
    found = bert()
    sepnorm.convert(found, "bn+ln", calibrate=[sentences(), sentences()])
    return found


class Wrapper(nn.Module):
    """A copy of a module that is trained in its place, as adapters have it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_norms_are_added_to_what_is_saved(model):
    config = SimpleNamespace(modules_to_save=["classifier"], is_prompt_learning=False)
    assert keep_norms(model, config) is config
    assert config.modules_to_save == ["classifier", LAST]


def test_what_cannot_be_kept_is_refused(model):
    with pytest.raises(SepNormError, match=r"puts learnt tokens in front of \[CLS\]"):
        keep_norms(model, SimpleNamespace(modules_to_save=None, is_prompt_learning=True))
    with pytest.raises(SepNormError, match=r"keeps no further modules"):
        keep_norms(model, SimpleNamespace())
    with pytest.raises(SepNormError, match=r"convert it before"):
        keep_norms(bert(), SimpleNamespace(modules_to_save=None))


def test_a_wrapped_batch_norm_gets_rows(model):
    """Of rank 3 it would take tokens for channels."""
    batch, other = sentences(), copy.deepcopy(model)
    norm = other.get_submodule(LAST)
    norm.cls_norm = Wrapper(norm.cls_norm)
    outs = [one.eval()(**batch).last_hidden_state for one in (model, other)]
    torch.testing.assert_close(*outs, rtol=0, atol=1e-6)
    for one in (model, other):
        torch.manual_seed(0)
        one.train()(**batch)
    means = model.get_submodule(LAST).cls_norm.running_mean, norm.cls_norm.inner.running_mean
    torch.testing.assert_close(*means, rtol=0, atol=1e-6)


def test_a_wrapped_batch_norm_over_tokens_cannot_leave_padding_out():
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()])
    norm = model.get_submodule(LAST)
    norm.token_norm = Wrapper(norm.token_norm)
    with pytest.raises(SepNormError, match=r"wrap the whole layer"):
        model.train()(**sentences())
    model.eval()(**sentences())


def test_frozen_weights_with_moving_statistics_are_said_once(model):
    model.requires_grad_(False)
    head = nn.Linear(16, 1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            head(model.train()(**sentences()).last_hidden_state[:, 0]).sum().backward()
    texts = [str(each.message) for each in seen if issubclass(each.category, SepNormWarning)]
    assert len(texts) == 1 and "running statistics move" in texts[0]


def test_a_copy_of_one_norm_still_finds_the_mask_of_its_model():
    """Adapters copy a norm alone; the copy has to leave padding out as the norm did."""
    batch = sentences()
    means = []
    for copied in (False, True):
        torch.manual_seed(1)
        model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        sepnorm.convert(model, "bn+bn", calibrate=[batch])
        if copied:
            model.encoder.layer[1].output.LayerNorm = copy.deepcopy(model.encoder.layer[1].output.LayerNorm)
        model.train()(**batch)
        means.append(model.get_submodule(LAST).token_norm.running_mean)
    assert torch.equal(*means)


def test_a_copied_model_has_a_mask_of_its_own():
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()])
    other = copy.deepcopy(copy.deepcopy(model))
    assert other.get_submodule(LAST).padding is not model.get_submodule(LAST).padding
    hooks = [hook.context for hook in other._forward_pre_hooks.values() if hasattr(hook, "context")]
    assert hooks and all(context is other.get_submodule(LAST).padding for context in hooks)
