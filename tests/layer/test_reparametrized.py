"""Weights that are no parameters of the norms: computed by a parametrization, handed in for a call, put there as attributes."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from reference import randomise, reference
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from two_paths import PATHS, is_fused

from sepnorm import SepNorm
from sepnorm.layer.sep_norm import TokenNorm

SPECS = ["bn+ln", "bn+bn", "ln+ln", "ln+bn"]
paths = pytest.mark.parametrize("path", PATHS)
either_mode = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def build(spec: str, training: bool) -> TokenNorm:
    return randomise(SepNorm.from_spec(spec, 6, dtype=torch.float64)).train(training)


def sample() -> Tensor:
    return torch.randn(5, 4, 6, dtype=torch.float64, requires_grad=True)


def assert_same(out: Tensor, leaves: Sequence[Tensor], expected: Tensor, others: Sequence[Tensor]) -> None:
    """Equal outputs, and equal gradients of what they came from."""
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    grad = torch.randn_like(out)
    found, wanted = torch.autograd.grad(out, leaves, grad), torch.autograd.grad(expected, others, grad)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


class Softplus(nn.Module):
    """A weight that is positive whatever its parameter is."""

    def forward(self, raw: Tensor) -> Tensor:
        return nn.functional.softplus(raw)


@paths
@either_mode
@pytest.mark.parametrize("place", ["cls_norm", "token_norm"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_parametrized_weight_has_the_outputs_and_gradients_of_the_reference(spec, place, training, path):
    layer = build(spec, training)
    raw = torch.randn(6, dtype=torch.float64)
    norm = layer.get_submodule(place)
    parametrize.register_parametrization(norm, "weight", Softplus())
    norm.parametrizations.weight.original.data.copy_(raw)
    assert "weight" not in dict(norm.named_parameters())
    layer = PATHS[path](layer)

    twin = build(spec, training)
    leaf = raw.clone().requires_grad_()
    delattr(twin.get_submodule(place), "weight")
    twin.get_submodule(place).weight = nn.functional.softplus(leaf)

    x = sample()
    y = x.detach().clone().requires_grad_()
    out = layer(x)
    assert is_fused(out) == (path == "fused")
    original = layer.get_submodule(place).parametrizations.weight.original
    ours, theirs = ([norm.bias for norm in each.children()] for each in (layer, twin))
    assert_same(out, [x, original, *ours], reference(twin, y), [y, leaf, *theirs])


@paths
@either_mode
@pytest.mark.parametrize("spec", SPECS)
def test_weights_that_are_plain_attributes_are_used(spec, training, path):
    """As sharded training puts them there: views of one flat parameter, in place of the parameters."""
    layer = build(spec, training)
    twin = copy.deepcopy(layer)
    layer = PATHS[path](layer)
    flat = torch.cat([p.detach() for p in layer.parameters()]).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]
    for name, view in zip(names, flat.split(6), strict=True):
        place, _, key = name.partition(".")
        delattr(layer.get_submodule(place), key)
        setattr(layer.get_submodule(place), key, view)
    assert not list(layer.parameters())
    x = sample()
    y = x.detach().clone().requires_grad_()
    out, expected = layer(x), reference(twin, y)
    assert is_fused(out) == (path == "fused")
    grad = torch.randn_like(out)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    ours = torch.autograd.grad(out, [x, flat], grad)
    dy, *theirs = torch.autograd.grad(expected, [y, *twin.parameters()], grad)
    torch.testing.assert_close(ours[0], dy, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours[1], torch.cat(theirs), rtol=1e-10, atol=1e-10)


@paths
@either_mode
@pytest.mark.parametrize("spec", SPECS)
def test_a_functional_call_has_the_outputs_and_gradients_of_what_it_was_given(spec, training, path):
    layer = PATHS[path](build(spec, training))
    before = copy.deepcopy(layer.state_dict())
    twin = randomise(build(spec, training), seed=7)
    given = {name: tensor.detach().clone() for name, tensor in twin.state_dict().items()}
    leaves = [given[name].requires_grad_() for name, _ in layer.named_parameters()]
    x = sample()
    y = x.detach().clone().requires_grad_()
    out = functional_call(layer, given, (x,))
    assert is_fused(out) == (path == "fused")
    assert_same(out, [x, *leaves], reference(twin, y), [y, *twin.parameters()])
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name
    for name, buffer in twin.named_buffers():
        if training and "running" in name:
            assert not torch.equal(given[name], buffer), f"{name} was tracked in what was given"


@pytest.mark.parametrize("place", ["cls_norm", "token_norm"])
def test_a_forward_put_on_a_norm_itself_is_called(place):
    """As libraries do that keep weights elsewhere and fetch them for the call."""
    layer = build("bn+ln", training=True)
    twin, x = copy.deepcopy(layer), sample()
    norm = layer.get_submodule(place)
    usual, calls = norm.forward, []

    def fetch_and_call(*args):
        calls.append(1)
        return usual(*args)

    norm.forward = fetch_and_call
    torch.testing.assert_close(layer(x), twin(x), rtol=1e-10, atol=1e-10)
    assert calls == [1]
