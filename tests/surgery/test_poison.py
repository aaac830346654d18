"""Numbers that are none, or too large to square: in data for calibration, in padding, in batches with nothing to measure."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from models import bert, sentences
from reference import randomise
from torch import Tensor, nn
from two_paths import PATHS, assert_near, assert_same_state, state, step

import sepnorm
from sepnorm import SepNorm, SepNormError
from sepnorm.layer.sep_norm import TokenNorm

NAN, INF = float("nan"), float("inf")
poisons = pytest.mark.parametrize("poison", [NAN, INF, -INF], ids=["nan", "inf", "-inf"])
paths = pytest.mark.parametrize("path", PATHS)
BROKEN = 6  # of the batches, counted from zero
COUNT = 9


def statistics_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in module.named_buffers() if "running" in name or "tracked" in name}


def hooks_in(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def assert_names_the_batch(error: pytest.ExceptionInfo, *paths: str) -> None:
    """The message names one of the paths, and the broken batch, counted from zero or one."""
    text = str(error.value)
    named = [path for path in paths if path in text]
    assert named, f"none of {paths} in: {text}"
    for path in sorted(named, key=len, reverse=True):
        text = text.replace(path, "")
    assert re.search(rf"batch\D*\b({BROKEN}|{BROKEN + 1})\b", text), text


# ---- calibration -----------------------------------------------------------------------------------------------------------


def by_calibrate(model: nn.Module, data: Any) -> None:
    sepnorm.calibrate(model, data)


def by_convert(model: nn.Module, data: Any) -> None:
    sepnorm.convert(model, "bn+bn", calibrate=data, sites="all")


CALLS = {"calibrate": by_calibrate, "convert": by_convert}
calls = pytest.mark.parametrize("call", CALLS)


def model_for(call: str) -> nn.Module:
    model = bert()
    if call == "calibrate":
        sepnorm.convert(model, "bn+bn", calibrate=embedded(broken=None), sites="all")
    return model


def embedded(broken: int | None = BROKEN, poison: float = NAN) -> Iterator[dict[str, Tensor]]:
    """Batches of embeddings; one token of one sample of the broken batch is poison."""
    for number in range(COUNT):
        x = torch.randn(4, 6, 16)
        if number == broken:
            x[2, 3, 5] = poison
        yield {"inputs_embeds": x, "attention_mask": torch.ones(4, 6, dtype=torch.long)}


@poisons
@calls
def test_poison_in_the_data_of_a_calibration_is_refused_and_changes_nothing(call, poison):
    model = model_for(call)
    before, hooks, kinds = state(model), hooks_in(model), [type(m) for m in model.modules()]
    sites = [name for name, m in model.named_modules() if isinstance(m, TokenNorm | nn.LayerNorm)]
    with pytest.raises(SepNormError) as error:
        CALLS[call](model, embedded(poison=poison))
    assert_names_the_batch(error, *sites)
    assert_same_state(model, before)
    assert hooks_in(model) == hooks
    assert [type(m) for m in model.modules()] == kinds
    assert not model.training
    CALLS[call](model, embedded(broken=None))  # and can be done again with better data
    assert all(b.isfinite().all() for b in statistics_of(model).values())


@calls
def test_the_refusal_names_the_first_site_that_saw_the_poison(call):
    model = model_for(call)
    broken = False

    def break_one_sample(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        if broken:
            out = out.clone()
            out[1] = NAN
        return out

    def batches() -> Iterator[dict[str, Tensor]]:
        nonlocal broken
        for number, batch in enumerate(embedded(broken=None)):
            broken = number == BROKEN
            yield batch

    model.encoder.layer[1].intermediate.register_forward_hook(break_one_sample)
    before = state(model)
    with pytest.raises(SepNormError) as error:
        CALLS[call](model, batches())
    assert_names_the_batch(error, "encoder.layer.1.output.LayerNorm")
    assert_same_state(model, before)


@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "ln+bn", "bn"])
def test_calibrating_a_layer_by_itself_on_poison_is_refused_and_changes_nothing(spec):
    layer = randomise(SepNorm.from_spec(spec, 6))
    batches = [torch.randn(4, 5, 6) for _ in range(COUNT)]
    batches[BROKEN][1] = NAN
    before = state(layer)
    with pytest.raises(SepNormError) as error:
        sepnorm.calibrate(layer, batches)
    assert_names_the_batch(error, "")
    assert_same_state(layer, before)
    assert layer.training
    assert not hooks_in(layer)


@poisons
@pytest.mark.parametrize("spec", ["bn+bn", "ln+bn", "bn"])
def test_poison_in_padding_is_no_reason_to_refuse_a_calibration(spec, poison):
    layer = SepNorm.from_spec(spec, 6)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[1, 3:] = True
    batches = [torch.randn(4, 5, 6) for _ in range(3)]
    sepnorm.calibrate(layer, [(x, mask) for x in batches])
    expected = statistics_of(layer)
    sepnorm.calibrate(layer, [(x.masked_fill(mask.unsqueeze(-1), poison), mask) for x in batches])
    for name, b in statistics_of(layer).items():
        assert torch.equal(b, expected[name]), name


def finite_or_refused(model: nn.Module, call: Callable[[], object], x: Tensor) -> None:
    """A refusal that changes nothing, or statistics that evaluation can use."""
    before = state(model)
    try:
        call()
    except SepNormError:
        assert_same_state(model, before)
        return
    for name, b in statistics_of(model).items():
        assert b.isfinite().all(), name
    with torch.no_grad():
        assert model.eval()(x).isfinite().all()


#: Far from zero, or also far from each other.
SPREADS = {"far": 1e-6, "wide": 1.0}


def large(dtype: torch.dtype, size: float, spread: float, *shape: int) -> Tensor:
    """Input with one channel of numbers of that size."""
    x = torch.randn(*shape, dtype=dtype)
    x[..., 3] = size * (1 + spread * torch.randn(shape[:-1], dtype=dtype))
    assert x.isfinite().all()
    return x


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e20), (torch.float64, 1e200)], ids=["1e20", "1e200"])
@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "ln+bn", "bn"])
def test_calibrating_on_a_channel_too_large_to_square_is_finite_or_refused(spec, dtype, size, spread):
    layer = SepNorm.from_spec(spec, 6, dtype=dtype)
    batches = [large(dtype, size, SPREADS[spread], 8, 5, 6) for _ in range(3)]
    finite_or_refused(layer, lambda: sepnorm.calibrate(layer, batches), batches[0])


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e20), (torch.float64, 1e200)], ids=["1e20", "1e200"])
@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn"])
def test_converting_on_a_channel_too_large_to_square_is_finite_or_refused(norm, dtype, size, spread):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True, dtype=dtype)
    final = nn.LayerNorm(16, dtype=dtype)
    model = nn.TransformerEncoder(layer, 2, norm=final, enable_nested_tensor=False).eval()
    batches = [large(dtype, size, SPREADS[spread], 8, 5, 16) for _ in range(3)]
    finite_or_refused(
        model, lambda: sepnorm.convert(model, norm, calibrate=batches, sites="all"), torch.randn(4, 5, 16, dtype=dtype)
    )


# ---- padding ---------------------------------------------------------------------------------------------------------------


def poison_padding(model: nn.Module, mask: Tensor, poison: float) -> None:
    """Puts ``poison`` into padding before every layer and takes it out after: attention would spread it."""
    where = mask.unsqueeze(-1)
    for layer in model.modules():
        if isinstance(layer, TokenNorm):
            layer.register_forward_pre_hook(lambda module, args: (args[0].masked_fill(where, poison), *args[1:]))
            layer.register_forward_hook(lambda module, args, out: out.masked_fill(where, 0.0))


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], path: str) -> None:
    for name, value in expected.items():
        assert_near(found[name], value, 0.0 if path == "fused" else 1e-6, name)


@paths
@pytest.mark.parametrize("poison", [NAN, INF, 1e30], ids=["nan", "inf", "1e30"])
@pytest.mark.parametrize("norm", ["bn+bn", "ln+bn", "bn"])
def test_a_model_trains_the_same_whatever_is_in_padding(norm, poison, path):
    model = bert(trained=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    sepnorm.convert(model, norm, sites="all")
    batch = sentences()
    mask = batch["attention_mask"] == 0

    def train(poison: float) -> dict[str, Tensor]:
        twin = PATHS[path](model).train()
        poison_padding(twin, mask, poison)
        optimiser = torch.optim.SGD(twin.parameters(), lr=0.01)
        for _ in range(2):
            optimiser.zero_grad()
            out = twin(**batch).last_hidden_state[~mask]
            out.square().mul(torch.linspace(0, 1, 16)).mean().backward()
            optimiser.step()
        grads = {f"gradient of {name}": p.grad for name, p in twin.named_parameters() if p.grad is not None}
        return {"output": out.detach(), **grads, **statistics_of(twin)}

    assert_same(train(poison), train(0.0), path)


@paths
@pytest.mark.parametrize("poison", [NAN, INF, 1e30], ids=["nan", "inf", "1e30"])
@pytest.mark.parametrize("token_dim", [1, 0])
@pytest.mark.parametrize("spec", ["bn+bn", "ln+bn", "bn", "bn+ln", "ln+ln"])
def test_a_layer_trains_the_same_whatever_is_in_padding(spec, token_dim, poison, path):
    layer = randomise(SepNorm.from_spec(spec, 8, token_dim=token_dim))
    batches = [torch.randn(5, 7, 8) for _ in range(3)]
    mask = torch.rand(5, 7) < 0.4
    mask[:, 0] = False
    where = mask.unsqueeze(-1)

    def train(poison: float) -> dict[str, Tensor]:
        twin = PATHS[path](layer)
        optimiser = torch.optim.SGD(twin.parameters(), lr=0.01)
        for x in batches:
            x = x.masked_fill(where, poison)
            x = (x if token_dim == 1 else x.transpose(0, 1).contiguous()).requires_grad_()
            optimiser.zero_grad()
            out = twin(x, mask)
            out = (out if token_dim == 1 else out.transpose(0, 1))[~mask]
            out.pow(3).mean().backward()
            optimiser.step()
        real = x.grad if token_dim == 1 else x.grad.transpose(0, 1)
        if isinstance(twin._places()[1], nn.BatchNorm1d):
            assert real[mask].isfinite().all()
        grads = {f"gradient of {name}": p.grad for name, p in twin.named_parameters()}
        return {"output": out.detach(), "gradient of x": real[~mask], **grads, **state(twin)}

    assert_same(train(poison), train(0.0), path)


# ---- nothing to measure ----------------------------------------------------------------------------------------------------

ALL_PADDED = torch.ones(4, 5, dtype=torch.bool)
ONE_LEFT = ALL_PADDED.clone()
ONE_LEFT[2, 3] = False
SCARCE = {
    "all padded, bn+bn": ("bn+bn", "token_norm", (4, 5), ALL_PADDED),
    "all padded, ln+bn": ("ln+bn", "token_norm", (4, 5), ALL_PADDED),
    "all padded, bn": ("bn", "norm", (4, 5), ALL_PADDED),
    "one token left, bn+bn": ("bn+bn", "token_norm", (4, 5), ONE_LEFT),
    "one token left, bn": ("bn", "norm", (4, 5), ONE_LEFT),
    "one token, ln+bn": ("ln+bn", "token_norm", (1, 2), None),
    "one token, bn": ("bn", "norm", (1, 1), None),
    "one token, not padded, bn+bn": ("bn+bn", "token_norm", (1, 2), torch.zeros(1, 2, dtype=torch.bool)),
    "one sample, bn+ln": ("bn+ln", "cls_norm", (1, 5), None),
    "one sample, bn+bn": ("bn+bn", "cls_norm", (1, 5), None),
}


@pytest.mark.filterwarnings("ignore::sepnorm.SepNormWarning")
@paths
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("token_dim", [1, 0])
@pytest.mark.parametrize("case", SCARCE)
def test_a_batch_with_nothing_to_measure_leaves_the_statistics_alone(case, token_dim, momentum, path):
    spec, name, shape, mask = SCARCE[case]
    layer = randomise(SepNorm.from_spec(spec, 6, token_dim=token_dim, momentum=momentum))
    x = torch.randn(*shape, 6)
    x = x if token_dim == 1 else x.transpose(0, 1).contiguous()
    before, twin = state(layer.get_submodule(name)), copy.deepcopy(layer)
    twin.get_submodule(name).eval()
    layer = PATHS[path](layer)
    found = step(layer, x, mask, torch.ones_like(x))
    assert_same_state(layer.get_submodule(name), before)
    assert_near(found.out, twin(x, mask).detach(), 1e-5, "output by running statistics")
    assert found.out.isfinite().all()
    assert all(grad.isfinite().all() for grad in found.grads.values())
