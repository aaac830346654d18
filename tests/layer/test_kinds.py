from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import sepnorm
from sepnorm import SepNorm, SepNormError
from sepnorm.layer.kinds import KINDS, DynamicTanh, NormSpec, build_norm, kind_of, token_norm_kind


@pytest.mark.parametrize(
    "text",
    [
        "ln",
        "bn",
        "rms",
        "bn+ln",
        "bn+bn",
        "ln+bn",
        "ln+ln",
        "bn+rms",
        "rms+rms",
        "dyt",
        "bn+dyt",
        "dyt+ln",
        "mix",
        "bn+mix",
        "mix+ln",
    ],
)
def test_what_is_read_is_written(text):
    assert str(NormSpec.parse(text)) == text
    assert str(NormSpec.parse(f" {text.upper()} ")) == text


def test_long_names_and_places():
    spec = NormSpec.parse("batch+layer")
    assert (spec.cls, spec.tokens) == ("batch", "layer")
    assert NormSpec.parse(spec) is spec
    assert NormSpec.parse("ln").cls is None
    assert NormSpec.parse("ln+bn").uses_batch
    assert not NormSpec.parse("ln+ln").uses_batch


def test_every_kind_builds():
    for kind in KINDS:
        assert isinstance(build_norm(kind, 4, eps=1e-5, momentum=0.1, affine=True), nn.Module)


@pytest.mark.parametrize("text", ["xx", "bn+", "+ln", "bn++ln", "a+b+c", "", None, 7])
def test_nonsense_is_refused(text):
    with pytest.raises(SepNormError):
        NormSpec.parse(text)


def test_every_kind_is_recognised_by_its_class():
    for name in KINDS:
        norm = build_norm(name, 4, eps=1e-5, momentum=0.1, affine=True)
        assert kind_of(norm) == name
        assert token_norm_kind(norm) == (None if KINDS[name].uses_batch else name)


class Renamed(nn.Module):
    """A norm as libraries write their own; what it is called says nothing."""

    def __init__(self, dim: int, centre: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(dim) + 0.5), nn.Parameter(torch.randn(dim)) if centre else None
        self.centre = centre

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True) if self.centre else x
        x = x * (x.square().mean(-1, keepdim=True) + 1e-12).rsqrt() * self.weight
        return x if self.bias is None else x + self.bias


class FalseLayerNorm(nn.Module):
    """Has the name and the weight of a norm, and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * self.weight


def test_a_librarys_own_class_is_known_by_what_it_does():
    T = pytest.importorskip("transformers")
    assert token_norm_kind(Renamed(8, centre=True)) == "layer"
    assert token_norm_kind(Renamed(8, centre=False)) == "rms"
    assert token_norm_kind(Renamed(8, centre=True).bfloat16()) == "layer"
    assert token_norm_kind(FalseLayerNorm()) is None
    assert token_norm_kind(nn.PReLU(8)) is None
    assert token_norm_kind(nn.Linear(8, 8)) is None
    assert token_norm_kind(T.models.t5.modeling_t5.T5LayerNorm(8)) == "rms"  # whatever it is called
    assert token_norm_kind(T.models.deberta.modeling_deberta.DebertaLayerNorm(8)) == "layer"


# ---- dynamic tanh, a kind that is one entry ---------------------------------------------------------------------------


def test_dynamic_tanh_is_its_formula():
    norm = DynamicTanh(5).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(norm(x), norm.weight * torch.tanh(norm.alpha * x) + norm.bias, rtol=0, atol=0)
    assert torch.autograd.gradcheck(lambda x, *p: norm(x), (x, *norm.parameters()))
    plain = build_norm("dyt", 5, eps=None, momentum=None, affine=False)
    torch.testing.assert_close(plain(x.float()), torch.tanh(0.5 * x.float()))


@pytest.mark.parametrize("spec", ["bn+dyt", "dyt+ln", "dyt", "ln+dyt"])
def test_dynamic_tanh_goes_anywhere(spec, tmp_path):
    T = pytest.importorskip("transformers")
    config = T.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, vocab_size=60
    )
    model = T.BertModel(config).eval()
    before = copy.deepcopy(model)
    ids = torch.randint(5, 60, (6, 7))
    sepnorm.convert(model, spec, sites="final", calibrate=[{"input_ids": ids}])
    out = model(input_ids=ids).last_hidden_state
    sepnorm.save(model, tmp_path)
    torch.testing.assert_close(sepnorm.load(tmp_path)(input_ids=ids).last_hidden_state, out)
    sepnorm.revert(model)
    assert torch.equal(model(input_ids=ids).last_hidden_state, before(input_ids=ids).last_hidden_state)
    layer = SepNorm.from_spec(spec, 8)
    layer(torch.randn(4, 5, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
