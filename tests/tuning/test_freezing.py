"""What tuning freezes, the statistics of batch norms among it, and what ``remove`` restores."""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers as T
from models import BERT, bert
from torch import nn

import sepnorm
from sepnorm import tuning

sys.path.insert(0, str(Path(__file__).parent))
from test_tuning import SEP, trainable, with_sep

TOKENS = {"cls": None, "sep": SEP}


def classifier(norm: str) -> nn.Module:
    """A classifier with statistics that were measured, always the same."""
    torch.manual_seed(0)
    model = T.BertForSequenceClassification(T.BertConfig(**BERT))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sepnorm.convert(model, norm, sites="all", calibrate=[with_sep(64)])
    return model.eval()


def trained(model: nn.Module, steps: int = 5) -> nn.Module:
    """Some steps on data unlike those of the statistics."""
    optimizer = tuning.PRESETS["conll"].optimizer(model)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(**with_sep(8, 5), labels=torch.randint(2, (8,))).loss.backward()
        optimizer.step()
    return model.eval()


def encoded(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model.bert(**inputs).last_hidden_state


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items() if "running_mean" in key}


@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn", "bn", "bn+mix"])
def test_batch_statistics_of_frozen_norms_stay(norm, tmp_path):
    model, inputs = classifier(norm), with_sep()
    base = encoded(model, inputs)
    sepnorm.tune_special(model, TOKENS)
    twin = copy.deepcopy(model)
    for each in (trained(model), trained(twin)):
        found = encoded(each, inputs)
        assert not torch.equal(found, base)
        tuning.save(each, tmp_path)
        each.set_special(None)
        assert torch.equal(encoded(each, inputs), base)
        other = classifier(norm)
        tuning.load(other, tmp_path)
        assert torch.equal(encoded(other, inputs), found)
    model.train()(**inputs)
    tuning.remove(model)
    assert all(module.training for module in model.modules())
    before = statistics(model)
    model(**inputs)
    assert not any(torch.equal(value, before[key]) for key, value in statistics(model).items())  # as before tuning


def test_statistics_of_trained_norms_of_cls_move_and_those_of_tokens_stay(tmp_path):
    model, inputs = classifier("bn+bn"), with_sep()
    before = statistics(model)
    sepnorm.tune_special(model, train="cls_norm")
    trained(model)
    moved = {key for key, value in statistics(model).items() if not torch.equal(value, before[key])}
    assert moved == {key for key in before if ".cls_norm." in key}
    tuning.save(model, tmp_path)
    other = classifier("bn+bn")
    tuning.load(other, tmp_path)
    assert torch.equal(encoded(other, inputs), encoded(model, inputs))


def test_statistics_stay_after_a_conversion_of_a_tuned_model_and_after_pickling(tmp_path):
    torch.manual_seed(0)
    model, inputs = T.BertForSequenceClassification(T.BertConfig(**BERT)), with_sep()
    sepnorm.tune_special(model, TOKENS)
    sepnorm.convert(model, "bn+bn", calibrate=[with_sep(64)])
    model.eval().set_special(None)
    base = encoded(model, inputs)
    model.set_special("default")
    torch.save(model, tmp_path / "whole.pt")
    for each in (model, torch.load(tmp_path / "whole.pt", weights_only=False)):
        trained(each).set_special(None)
        assert torch.equal(encoded(each, inputs), base)


def test_statistics_stay_where_parts_are_called_and_where_the_model_is_compiled():
    model, inputs = classifier("bn+bn"), with_sep()
    sepnorm.tune_special(model, "cls")
    before = statistics(model)
    model.train().bert.encoder.layer[1](torch.randn(4, 6, 16))
    torch.compile(model.train(), backend="eager")(**inputs)
    assert all(torch.equal(value, before[key]) for key, value in statistics(model).items())


class Headed(nn.Module):
    """An encoder and a head with batch norms, one of them without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = bert()
        self.head = nn.Sequential(nn.BatchNorm1d(16, affine=False), nn.Linear(16, 4), nn.BatchNorm1d(4))

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(**inputs).last_hidden_state[:, 0])


def test_batch_norms_of_a_head_are_trained():
    model = Headed()
    sepnorm.tune_special(model, "cls")
    model.train()(**with_sep())
    assert int(model.head[0].num_batches_tracked) == int(model.head[2].num_batches_tracked) == 1


@pytest.mark.parametrize("way", ["vectors", "cls_norm"])
def test_removal_trains_what_was_trained_before(way):
    model = bert()
    model.embeddings.requires_grad_(False)
    sepnorm.convert(model, "ln+ln", sites="all")
    before = trainable(model)
    sepnorm.tune_special(model, **({"tokens": "cls"} if way == "vectors" else {"train": "cls_norm"}))
    assert trainable(model) != before
    tuning.remove(model)
    assert trainable(model) == before
    with pytest.raises(sepnorm.SepNormError, match="has no special vectors or \\[CLS\\] norms that are tuned"):
        tuning.remove(model)


def test_removal_after_norms_and_vectors_undoes_both():
    model = bert()
    sepnorm.convert(model, "ln+ln", sites="all")
    before = trainable(model)
    sepnorm.tune_special(model, train="cls_norm")
    sepnorm.tune_special(model, "cls")
    assert trainable(model) == ["special_tokens.of_default"]
    tuning.remove(model)
    assert trainable(model) == before
