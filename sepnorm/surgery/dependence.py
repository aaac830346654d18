"""What depends on what in a forward pass, computed exactly by autograd instead of compared within rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


@dataclass(eq=False)
class NormCall:
    """One call of a norm: its position, its shape, and what was found out about it."""

    order: int
    shape: tuple[int, ...]
    token_dim: int | None
    input: Tensor = field(repr=False)
    output: Tensor = field(repr=False)
    degenerate: bool = False  #: [CLS] does not depend on any other token here
    cls_reaches: bool = True  #: the output at [CLS] influences the output of the model
    scores_only: bool = False  #: the output acts only through attention scores


class Dependence:
    """Dependences in one pass. ``leaves`` are tensors that differ between samples, each with its token dimension."""

    def __init__(
        self, calls: Mapping[str, list[NormCall]], leaves: Sequence[tuple[Tensor, int | None]], num_cls: int
    ) -> None:
        self.calls, self.leaves, self.num_cls = calls, leaves, num_cls

    def _every_call(self) -> Iterator[NormCall]:
        for calls in self.calls.values():
            yield from calls

    def find_degenerate(self) -> None:
        """Marks the calls in which [CLS] depends on no other token."""
        for call in self._every_call():
            x = call.input
            if call.token_dim is None or x.shape[call.token_dim] <= self.num_cls:
                continue
            cls = x.narrow(call.token_dim, 0, self.num_cls)
            varies = spread(x.detach(), call.token_dim)[: self.num_cls]
            if bool((varies > 1e-3).any()):
                continue
            if not x.requires_grad:
                call.degenerate = bool((varies == 0).all())
                continue
            grads = _gradients(cls, [leaf for leaf, _ in self.leaves])
            call.degenerate = not any(
                grad is not None and bool(_others(grad, dim, self.num_cls).any())
                for grad, (_, dim) in zip(grads, self.leaves, strict=True)
            )

    def find_reaching(
        self, output: Tensor | None, without: Mapping[str, list[NormCall]], output_without: Tensor | None
    ) -> None:
        """Marks calls whose [CLS] does not reach ``output``, and calls that reach it only through attention scores.

        ``without`` holds the same calls in a pass without gradients through attention scores.
        """
        calls = list(self._every_call())
        twins = [call for path in self.calls for call in without.get(path, [])]
        if output is None or output_without is None or len(calls) != len(twins):
            return
        grads = _gradients(output, [call.output for call in calls])
        others = _gradients(output_without, [call.output for call in twins])
        for call, grad, other in zip(calls, grads, others, strict=True):
            if grad is None or not bool(grad.any()):
                continue  # no gradient at all, as behind a head of zeros: nothing can be concluded
            call.scores_only = other is None or not bool(other.any())
            if call.token_dim is not None and grad.shape[call.token_dim] > self.num_cls:
                call.cls_reaches = bool(grad.narrow(call.token_dim, 0, self.num_cls).any())

    def goes_around(self, output: Tensor | None, path: str) -> bool:
        """Whether ``output`` depends on the samples by a path that bypasses the norm at ``path``."""
        if output is None or not output.requires_grad:
            return False
        with ExitStack() as cuts:
            for call in self.calls[path]:
                if call.output.requires_grad:
                    cuts.enter_context(call.output.register_hook(torch.zeros_like))
            grads = _gradients(output, [leaf for leaf, _ in self.leaves])
        return any(grad is not None and bool(grad.any()) for grad in grads)

    def depends(self, value: Tensor | None, on: Sequence[Tensor]) -> bool:
        """Whether any tensor in ``on`` influences ``value``."""
        if value is None or not on:
            return False
        return any(grad is not None and bool(grad.any()) for grad in _gradients(value, on))


class CutScores(TorchFunctionMode):
    """Within this context no gradient flows through attention scores, so norms of queries and keys get none."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        cut = {F.scaled_dot_product_attention: ("query", "key")}.get(func, ("input",) if func in _SOFTMAX else ())
        head = [value.detach() if isinstance(value, Tensor) else value for value in args[: len(cut)]]
        for name in cut:
            if isinstance(kwargs.get(name), Tensor):
                kwargs[name] = kwargs[name].detach()
        return func(*head, *args[len(cut) :], **kwargs)


_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
#: The functions that turn attention scores into weights.
ATTENTION = (F.scaled_dot_product_attention, F.multi_head_attention_forward, *_SOFTMAX)


def main_output(output: Any) -> Tensor | None:
    """The first tensor with an entry per sample that a model returns: last hidden state or logits, never a loss."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() and output.dim() >= 2 else None
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((found for item in items if isinstance(item, Tensor) if (found := main_output(item)) is not None), None)


def spread(x: Tensor, token_dim: int) -> Tensor:
    """How much each position differs between samples, relative to the largest value: (tokens,)."""
    x = (x if token_dim == 1 else x.transpose(0, 1)).float()
    return (x - x[:1]).abs().amax(dim=(0, 2)) / x.abs().amax().clamp(min=1e-30)


def _gradients(value: Tensor, on: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of a random projection of ``value``, so that nothing cancels; None for tensors not connected to it."""
    reachable = [each for each in on if each.requires_grad]
    if not value.requires_grad or not reachable:
        return [None] * len(on)
    found = torch.autograd.grad(
        (value * torch.randn_like(value)).sum(), reachable, retain_graph=True, allow_unused=True
    )
    by_id = {id(each): grad for each, grad in zip(reachable, found, strict=True)}
    return [by_id.get(id(each)) for each in on]


def _others(grad: Tensor, token_dim: int | None, num_cls: int) -> Tensor:
    """The part of a leaf's gradient outside [CLS]."""
    if token_dim is None or grad.dim() != 3 or grad.shape[token_dim] <= num_cls:
        return grad
    return grad.narrow(token_dim, num_cls, grad.shape[token_dim] - num_cls)
