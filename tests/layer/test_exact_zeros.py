"""[CLS] and tokens are apart to the last bit, and statistics keep their precision whatever becomes of the weights."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from models import bert, sentences
from reference import randomise
from torch import Tensor, nn
from two_paths import PATHS, Step, step, threads

import sepnorm
from sepnorm import SepNorm
from sepnorm.layer.sep_norm import TokenNorm

PAIRS = ["bn+ln", "ln+ln", "bn+bn", "ln+bn"]
layouts = pytest.mark.parametrize("token_dim", [1, 0])


def build(spec: str, dim: int, **options) -> TokenNorm:
    return randomise(SepNorm.from_spec(spec, dim, **options))


def laid_out(layer: TokenNorm, x: Tensor) -> Tensor:
    """(batch, tokens, channels) in the layout of the layer, or back."""
    return x if layer.token_dim == 1 else x.transpose(0, 1).contiguous()


def step_of_part(layer: TokenNorm, x: Tensor, part: str) -> Step:
    """A step for a loss on ``cls`` or ``tokens`` alone; ``x`` and what comes back are (batch, tokens, channels)."""
    grad = torch.randn_like(x)
    grad[:, layer.num_cls :] *= part == "tokens"
    grad[:, : layer.num_cls] *= part == "cls"
    found = step(layer, laid_out(layer, x), None, laid_out(layer, grad))
    found.out, found.grads["x"] = laid_out(layer, found.out), laid_out(layer, found.grads["x"])
    return found


# ---- gradients --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_cls", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@layouts
@pytest.mark.parametrize("spec", PAIRS)
def test_a_loss_on_one_part_has_no_gradient_in_the_other(spec, token_dim, dtype, num_cls):
    for width, count, seed in itertools.product((7, 64, 384), (1, 2, 3, 4), range(2)):
        torch.manual_seed(seed)
        layer = build(spec, width, token_dim=token_dim, num_cls=num_cls, dtype=dtype)
        x = torch.randn(9, num_cls + 6, width, dtype=dtype) * 2 + 1
        for part, others, first in (("cls", "token_norm", num_cls), ("tokens", "cls_norm", 0)):
            with threads(count):
                found = step_of_part(layer, x, part)
            for name in ("weight", "bias"):
                grad = found.grads[f"{others}.{name}"]
                assert not grad.any(), (
                    f"{others}.{name} of width {width}, {count} threads: {grad.abs().max().item():.1e}"
                )
            others_of_x = found.grads["x"][:, first : None if first else num_cls]
            assert not others_of_x.any(), f"input of the other part, width {width}, {count} threads"


@pytest.mark.parametrize("count", [1, 4], ids=["one thread", "four threads"])
@pytest.mark.parametrize("spec", PAIRS)
def test_training_on_cls_alone_leaves_the_tokens_norm_where_it_was(spec, count):
    """AdamW takes a step of the learning rate for a gradient of rounding errors too."""
    layer = build(spec, 16)
    before = copy.deepcopy(layer.token_norm)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.0)
    x, wanted = torch.randn(9, 5, 16) * 2 + 1, torch.randn(9, 16)
    with threads(count):
        for _ in range(400):
            optimiser.zero_grad()
            (layer(x)[:, 0] - wanted).square().sum().backward()
            optimiser.step()
    assert torch.equal(layer.token_norm.bias, before.bias)
    assert torch.equal(layer.token_norm.weight, before.weight)
    assert not torch.equal(layer.cls_norm.bias, build(spec, 16).cls_norm.bias)


@pytest.mark.parametrize("spec", PAIRS)
def test_training_on_tokens_alone_leaves_the_norm_of_cls_where_it_was(spec):
    layer = build(spec, 16)
    before = copy.deepcopy(layer.cls_norm)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.0)
    x, wanted = torch.randn(8, 5, 16) * 2 + 1, torch.randn(8, 4, 16)
    for _ in range(50):
        optimiser.zero_grad()
        (layer(x)[:, 1:] - wanted).square().sum().backward()
        optimiser.step()
    assert torch.equal(layer.cls_norm.bias, before.bias)
    assert torch.equal(layer.cls_norm.weight, before.weight)
    assert not torch.equal(layer.token_norm.bias, build(spec, 16).token_norm.bias)


# ---- numbers that are none ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@layouts
@pytest.mark.parametrize("spec", PAIRS)
def test_poison_in_one_cls_never_reaches_tokens(spec, token_dim, training, poison, path):
    layer = build(spec, 8, token_dim=token_dim).train(training)
    x = torch.randn(5, 6, 8)
    wild = x.clone()
    wild[2, 0, 3] = poison
    steps = []
    for value in (x, wild):
        torch.manual_seed(1)
        steps.append(step_of_part(PATHS[path](layer), value, "tokens"))
    clean, found = steps
    assert torch.equal(found.out[:, 1:], clean.out[:, 1:])
    assert torch.equal(found.grads["x"][:, 1:], clean.grads["x"][:, 1:])
    for name in ("token_norm.weight", "token_norm.bias"):
        assert torch.equal(found.grads[name], clean.grads[name]), name
    for name, buffer in clean.buffers.items():
        if name.startswith("token_norm"):
            assert torch.equal(found.buffers[name], buffer), name


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@layouts
@pytest.mark.parametrize("spec", PAIRS)
def test_poison_in_one_token_never_reaches_cls(spec, token_dim, training, poison, path):
    layer = build(spec, 8, token_dim=token_dim).train(training)
    x = torch.randn(5, 6, 8)
    wild = x.clone()
    wild[2, 4, 3] = poison
    steps = []
    for value in (x, wild):
        torch.manual_seed(1)
        steps.append(step_of_part(PATHS[path](layer), value, "cls"))
    clean, found = steps
    assert torch.equal(found.out[:, 0], clean.out[:, 0])
    assert torch.equal(found.grads["x"][:, 0], clean.grads["x"][:, 0])
    for name in ("cls_norm.weight", "cls_norm.bias"):
        assert torch.equal(found.grads[name], clean.grads[name]), name
    for name, buffer in clean.buffers.items():
        if name.startswith("cls_norm"):
            assert torch.equal(found.buffers[name], buffer), name


# ---- statistics of a model in half precision -----------------------------------------------------------------------------------

WITH_STATISTICS = ["bn+ln", "bn+bn", "ln+bn", "bn"]
CASTS = {
    "half()": lambda module: module.half(),
    "bfloat16()": lambda module: module.bfloat16(),
    "to(bfloat16)": lambda module: module.to(torch.bfloat16),
    "to(dtype=float16)": lambda module: module.to(dtype=torch.float16),
    "to(device, dtype)": lambda module: module.to("cpu", torch.float16),
    "to(a tensor)": lambda module: module.to(torch.zeros(1, dtype=torch.bfloat16)),
    "twice": lambda module: module.half().bfloat16(),
}
casts = pytest.mark.parametrize("cast", CASTS)


def statistics_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: b for name, b in module.named_buffers() if "running" in name}


@casts
@pytest.mark.parametrize("spec", WITH_STATISTICS)
def test_statistics_keep_their_bits_when_the_layer_goes_to_half_precision(spec, cast):
    layer = build(spec, 8)
    before = copy.deepcopy(statistics_of(layer))
    assert CASTS[cast](layer) is layer
    assert all(p.dtype in (torch.float16, torch.bfloat16) for p in layer.parameters())
    for name, b in statistics_of(layer).items():
        assert b.dtype == torch.float32, name
        assert torch.equal(b, before[name]), name


@casts
def test_statistics_keep_their_bits_when_a_model_goes_to_half_precision(cast):
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences(16)], sites="all")
    before = copy.deepcopy(statistics_of(model))
    CASTS[cast](model)
    assert before
    for name, b in statistics_of(model).items():
        assert b.dtype == torch.float32, name
        assert torch.equal(b, before[name]), name
    out = model.train()(**sentences()).last_hidden_state
    assert out.dtype == next(model.parameters()).dtype
    assert out.isfinite().all()


@pytest.mark.parametrize("spec", WITH_STATISTICS)
def test_statistics_follow_to_double_and_back(spec):
    layer = build(spec, 8)
    before = copy.deepcopy(statistics_of(layer))
    assert all(b.dtype == torch.float64 for b in statistics_of(layer.double()).values())
    for name, b in statistics_of(layer.float()).items():
        assert b.dtype == torch.float32
        assert torch.equal(b, before[name])
    layer.half().float()
    for name, b in statistics_of(layer).items():
        assert b.dtype == torch.float32
        assert torch.equal(b, before[name]), "there and back by way of half precision"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", WITH_STATISTICS)
def test_a_layer_in_half_precision_tracks_what_half_precision_cannot_hold(spec, dtype, path):
    """The mean moves by 1/4096 a step, which is nothing beside one in either type."""
    layer = SepNorm.from_spec(spec, 8, momentum=1 / 1024).to(dtype)
    for name, b in statistics_of(layer).items():
        b.fill_(1.0 if "mean" in name else 2.0)
    layer = PATHS[path](layer)
    x = torch.tensor([0.25, 2.25]).repeat(4, 3)[:, :6, None].expand(4, 6, 8)  # every position: mean 1.25, variance 1
    x = torch.cat([x[:2], x[:2].flip(1)]).to(dtype)  # and every sample of [CLS] as well
    expected = 1.0
    for _ in range(8):
        out = layer(x)
        expected += (1.25 - expected) / 1024
    assert out.dtype == dtype
    for name, b in statistics_of(layer).items():
        assert b.dtype == torch.float32, name
        if "mean" in name:
            torch.testing.assert_close(b, torch.full((8,), expected), rtol=1e-6, atol=0)
        else:
            assert (b < 2.0).all()
            assert (b > 1.99).all()
    evaluated = layer.eval()(x)
    assert evaluated.dtype == dtype
    assert evaluated.isfinite().all()


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", WITH_STATISTICS)
def test_a_state_dict_of_half_precision_holds_whole_statistics(spec, dtype, assign, tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), build(spec, 8)).to(dtype)
    model(torch.randn(6, 5, 8, dtype=dtype))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    twin = nn.Sequential(nn.Linear(8, 8), SepNorm.from_spec(spec, 8)).to(dtype)
    twin.load_state_dict(torch.load(tmp_path / "state.pt"), assign=assign)
    for name, b in statistics_of(twin).items():
        assert b.dtype == torch.float32, name
        assert torch.equal(b, statistics_of(model)[name]), name
    x = torch.randn(6, 5, 8, dtype=dtype)
    assert torch.equal(twin.eval()(x), model.eval()(x))


def test_statistics_of_a_layer_built_in_half_precision_are_in_float32():
    layer = SepNorm(4, dtype=torch.bfloat16)
    assert layer.cls_norm.weight.dtype == torch.bfloat16
    assert layer.cls_norm.running_mean.dtype == layer.cls_norm.running_var.dtype == torch.float32
