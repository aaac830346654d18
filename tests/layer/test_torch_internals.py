"""What the layer asks torch under private names, and that it still gives the right numbers where torch has them no more."""

from __future__ import annotations

import ast
import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from reference import randomise, reference
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from two_paths import is_fused

import sepnorm
from sepnorm import SepNorm
from sepnorm.layer import torch_internals
from sepnorm.layer.sep_norm import TokenNorm

SPECS = ["bn+ln", "bn+bn", "ln+ln", "bn"]


def build(spec: str = "bn+ln") -> TokenNorm:
    return randomise(SepNorm.from_spec(spec, 6, dtype=torch.float64))


def sample() -> Tensor:
    return torch.randn(5, 4, 6, dtype=torch.float64, requires_grad=True)


def assert_right(layer: TokenNorm, fused: bool) -> None:
    """Output and gradients of a step are those of the reference."""
    twin, x = copy.deepcopy(layer), sample()
    out, expected = layer(x), reference(twin, x)
    assert is_fused(out) == fused
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    grad = torch.randn_like(out)
    ours = torch.autograd.grad(out, [x, *layer.parameters()], grad)
    theirs = torch.autograd.grad(expected, [x, *twin.parameters()], grad)
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


# ---- the answers --------------------------------------------------------------------------------------------------------------


def test_in_backward_is_true_only_while_gradients_are_formed():
    x = torch.ones(2, requires_grad=True)
    seen: list[bool] = []
    y = x * 2
    y.register_hook(lambda grad: seen.append(torch_internals.in_backward()))
    assert not torch_internals.in_backward()
    y.sum().backward()
    assert seen == [True]
    assert not torch_internals.in_backward()


def test_transforms_are_seen():
    assert not torch_internals.transforms_active()
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(torch_internals.transforms_active())
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    with forward_ad.dual_level():
        function(torch.ones(2))
    assert seen == [True, True]


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_every_kind_of_hook_is_seen_and_called(register):
    layer, calls = SepNorm(4), []
    assert is_fused(layer(torch.randn(3, 5, 4, requires_grad=True)))
    handle = getattr(layer.cls_norm, register)(lambda *_: calls.append(1))
    out = layer(torch.randn(3, 5, 4, requires_grad=True))
    out.sum().backward()
    assert not is_fused(out)
    assert calls == [1]
    handle.remove()
    assert is_fused(layer(torch.randn(3, 5, 4, requires_grad=True)))


def test_a_dual_parameter_takes_the_plain_path():
    layer = build().eval()
    x, tangent = sample().detach(), torch.randn(6, dtype=torch.float64)
    with forward_ad.dual_level():
        weights = {"token_norm.bias": forward_ad.make_dual(layer.token_norm.bias.detach(), tangent)}
        out = torch.func.functional_call(layer, weights, (x,))
        found = forward_ad.unpack_dual(out).tangent
    assert not found[:, 0].any()
    torch.testing.assert_close(found[:, 1:], tangent.expand(5, 3, 6))


# ---- a torch without the names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_without_a_name_for_function_transforms_the_plain_path_serves(spec, monkeypatch):
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    assert_right(build(spec), fused=False)


@pytest.mark.parametrize("spec", SPECS)
def test_without_a_name_for_forward_mode_the_plain_path_serves(spec, monkeypatch):
    monkeypatch.delattr(forward_ad, "_current_level")
    assert_right(build(spec), fused=False)


def test_without_a_name_for_the_backward_pass_nothing_but_the_count_of_statistics_is_lost(monkeypatch):
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    assert not torch_internals.in_backward()
    assert_right(build(), fused=True)
    layer, x = build(), sample()
    twin, y = copy.deepcopy(layer), x.detach().clone().requires_grad_()
    checkpoint(layer, x, use_reentrant=True).square().sum().backward()
    twin(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert layer.cls_norm.num_batches_tracked == 2 * twin.cls_norm.num_batches_tracked


class NoTables(nn.Identity):
    """A module as a torch without tables of hooks would have it."""

    def __getattribute__(self, name: str) -> object:
        if name.endswith("hooks"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_without_tables_of_hooks_modules_are_called_and_hooks_stay():
    module = nn.Identity()
    module.register_forward_hook(lambda *_: None)
    module.__class__ = NoTables
    assert torch_internals.is_watched(module)
    torch_internals.remove_hooks(module, lambda hook: True)
    module.__class__ = nn.Identity
    assert torch_internals.is_watched(module)
    torch_internals.remove_hooks(module, lambda hook: True)
    assert not torch_internals.is_watched(module)


def test_without_a_name_for_casting_the_layer_still_trains(monkeypatch):
    monkeypatch.delattr(torch_internals.WideStatistics, "_apply")
    layer = build("bn+bn").bfloat16()
    assert layer.cls_norm.running_mean.dtype == torch.bfloat16
    x = sample().detach().bfloat16().requires_grad_()
    layer(x).float().square().sum().backward()
    assert x.grad.isfinite().all()


# ---- nowhere else -----------------------------------------------------------------------------------------------------------


def private_names(path: Path) -> list[str]:
    """Attributes and imports that begin with an underscore and are not of the file's own classes or functions."""
    tree = ast.parse(path.read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own |= {"_replace", "_places", "_warned"}  # of named tuples, and of the layer
    found = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    found += [name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names]
    return [name for name in found if name.startswith("_") and not name.startswith("__") and name not in own]


def test_private_names_of_torch_are_in_one_file():
    folder = Path(sepnorm.layer.__file__).parent
    found = {path.name: private_names(path) for path in folder.glob("*.py")}
    assert "_forward_hooks" in found.pop("torch_internals.py")
    assert not any(found.values()), found
    assert not {"_parameters", "_buffers"} & set(private_names(folder / "torch_internals.py"))


def test_the_gradient_of_a_softmax_is_the_same_without_the_private_operator(monkeypatch):
    scores = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    weights, gradient = scores.softmax(-1), torch.randn(3, 4, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad(weights, scores, gradient)
    assert torch.allclose(torch_internals.softmax_backward(gradient, weights.detach()), expected, atol=1e-14)
    monkeypatch.setattr(torch_internals.torch, "ops", SimpleNamespace(aten=SimpleNamespace()))
    assert torch.allclose(torch_internals.softmax_backward(gradient, weights.detach()), expected, atol=1e-14)
