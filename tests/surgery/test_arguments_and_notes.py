"""What ``convert`` says of a model beside its table, and which batches and weights it takes."""

from __future__ import annotations

import copy

import pytest
import torch
from models import bert, sentences
from torch import nn

import sepnorm
from sepnorm import SepNorm, SepNormError, SepNormWarning


def test_a_later_norm_of_another_width_is_told():
    """Nothing tells the second stage of a pyramid from a decoder but the user."""

    class Stages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cls = nn.Parameter(torch.randn(1, 1, 8))
            options = dict(batch_first=True, norm_first=True)
            wide = nn.TransformerEncoderLayer(16, 2, 16, **options)
            self.first = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 8, **options) for _ in range(2))
            self.widen, self.second = nn.Linear(8, 16), wide

        def forward(self, x):
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
            for layer in self.first:
                x = layer(x)
            return self.second(self.widen(x))[:, 0]

    model, example = Stages(), torch.randn(3, 5, 8)
    with pytest.warns(
        SepNormWarning,
        match=r"first.1.norm2 is assumed to be the encoder's last norm.*second.norm2.*16 channels, not 8",
    ):
        report = sepnorm.convert(model, example=example)
    assert "set sites=" in str(report)
    sepnorm.convert(named := Stages(), sites="second.norm2", example=example)
    assert isinstance(named.second.norm2, SepNorm)


def test_only_a_part_of_a_users_module_was_run():
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert(trained=False)

        def forward(self, **batch):
            return self.bert(**batch).last_hidden_state[:, 1:].mean(1)

    report = sepnorm.convert(Wrapped(), "bn+ln")
    assert "Note: only bert was run, as no example was given: whether Wrapped reads its [CLS] is not known." in str(
        report
    )
    with pytest.warns(SepNormWarning, match=r"Wrapped does not read \[CLS\] after"):
        sepnorm.convert(Wrapped(), "bn+ln", example=sentences(padded=False))


@pytest.mark.parametrize("form", ["lists", "arrays", "one mapping"])
def test_batches_of_lists_and_arrays_calibrate_as_tensors_do(form):
    model, batch = bert(), sentences(16)
    twin = copy.deepcopy(model)
    sepnorm.convert(model, "bn+ln", calibrate=[batch])
    given = {key: value.tolist() if form == "lists" else value.numpy() for key, value in batch.items()}
    sepnorm.convert(twin, "bn+ln", calibrate=given if form == "one mapping" else [given])
    for ours, theirs in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_arrays_in_double_precision_take_the_models_dtype():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)
    x = torch.randn(6, 4, 8)
    twin = copy.deepcopy(model)
    sepnorm.convert(model, "bn+ln", calibrate=x)
    sepnorm.convert(twin, "bn+ln", calibrate=x.double().numpy())
    assert torch.equal(model.layers[0].norm2.cls_norm.running_mean, twin.layers[0].norm2.cls_norm.running_mean)


@pytest.mark.parametrize("verb", ["convert", "inspect", "calibrate"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_are_told(verb, value):
    model = bert()
    if verb == "calibrate":
        sepnorm.convert(model, "bn+ln", calibrate=[sentences()])
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[3, 4] = value
    data = {
        "convert": dict(calibrate=[sentences()]),
        "inspect": dict(data=[sentences()]),
        "calibrate": dict(data=[sentences()]),
    }
    with pytest.raises(SepNormError, match=r"hold NaN or infinity, such as encoder.layer.0.output.dense.weight"):
        getattr(sepnorm, verb)(model, **data[verb])
    assert verb == "calibrate" or not any(isinstance(module, SepNorm) for module in model.modules())


def test_models_without_values_are_refused_in_a_sentence(tmp_path):
    with torch.device("meta"):
        empty = bert(trained=False)
    message = (
        r"^the weights of BertModel are not there yet \(\S+ is on the device meta\): load or initialise them first.$"
    )
    converted = bert(trained=False)
    sepnorm.convert(converted)
    sepnorm.save(converted, tmp_path)
    for call in (
        lambda: sepnorm.convert(empty),
        lambda: sepnorm.inspect(empty, [sentences()]),
        lambda: sepnorm.load(tmp_path, empty),
        lambda: sepnorm.save(converted.to("meta"), tmp_path / "new"),
        lambda: sepnorm.freeze(converted.to("meta")),
        lambda: sepnorm.calibrate(converted.to("meta"), [sentences()]),
    ):
        with pytest.raises(SepNormError, match=message):
            call()
    with pytest.raises(SepNormError, match=r"are not there yet \(weight is lazy\)"):
        sepnorm.convert(nn.LazyLinear(3))
