"""The plain path of a layer, forced, and one step of either path with all that it leaves behind."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.layer.sep_norm import TokenNorm


def plain_copy(model: nn.Module) -> Any:
    """A copy of a layer, or of a model with layers, that takes the plain path: watched children cannot be fused."""
    twin = copy.deepcopy(model)
    for layer in twin.modules():
        if isinstance(layer, TokenNorm):
            for child in layer.children():
                child.register_forward_hook(_watch)
    return twin


def _watch(*_: object) -> None: ...


def is_fused(out: Tensor) -> bool:
    """Whether an output came by the fused path."""
    return "SepNormBackward" in str(out.grad_fn)


#: Copies for the two ways through a layer, by name.
PATHS = {"fused": copy.deepcopy, "plain": plain_copy}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for torch, for the time being."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(eq=False)
class Step:
    """What a forward and a backward pass gave; gradients by name, that of the input as ``x``."""

    out: Tensor
    grads: dict[str, Tensor]
    buffers: dict[str, Tensor]


def step(layer: Any, x: Tensor, mask: Tensor | None, grad: Tensor) -> Step:
    """One step with the incoming gradient ``grad``; a gradient that there is none of is zero."""
    x = x.detach().clone().requires_grad_()
    out = layer(x, mask)
    leaves = {"x": x, **dict(layer.named_parameters())}
    found = torch.autograd.grad(out, list(leaves.values()), grad, allow_unused=True, materialize_grads=True)
    buffers = {name: b.clone() for name, b in layer.named_buffers()}
    return Step(out.detach(), dict(zip(leaves, found, strict=True)), buffers)


def assert_near(found: Tensor, expected: Tensor, tolerance: float, name: str) -> None:
    """Equal to ``tolerance`` of the largest number there is, or of one."""
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=0, atol=tolerance * scale, msg=lambda text: f"{name}: {text}"
    )


def assert_same_step(found: Step, expected: Step, tolerance: float) -> None:
    """The same output, gradients and statistics."""
    assert_near(found.out, expected.out, tolerance, "output")
    for name, grad in expected.grads.items():
        assert_near(found.grads[name], grad, tolerance, f"gradient of {name}")
    for name, buffer in expected.buffers.items():
        assert_near(found.buffers[name], buffer, tolerance, name)


def assert_same_state(layer: nn.Module, before: dict[str, Tensor]) -> None:
    """Every entry of the state dict is as it was, to the bit."""
    now = layer.state_dict()
    assert now.keys() == before.keys()
    for name, old in before.items():
        assert now[name].dtype == old.dtype, name
        assert torch.equal(now[name], old), name


def state(layer: nn.Module) -> dict[str, Tensor]:
    """A copy of the state dict."""
    return {name: value.clone() for name, value in layer.state_dict().items()}
