"""The fast path of the layer: one native norm over all tokens, then the [CLS] rows are overwritten.

Splitting a sequence, normalising the parts and concatenating them reads and writes every token several times more
often than one norm does. Here the tokens' norm runs over the whole tensor, and only the few [CLS] rows are replaced.
In the backward pass the incoming gradient is zero at [CLS] while the sums over tokens are computed.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from sepnorm.layer.kernels import BatchKernel, Grads, Kernel
from sepnorm.layer.kinds import KERNELS
from sepnorm.layer.statistics import Call
from sepnorm.layer.torch_internals import is_watched, transforms_active


def fusable(x: Tensor, cls_norm: nn.Module | None, token_norm: nn.Module, call: Call) -> bool:
    """Whether ``fused`` supports this input and these norms. The plain path supports all."""
    return (
        x.shape[call.dim] > call.num_cls
        and _has_kernel(token_norm, x, False)
        and (cls_norm is None or _has_kernel(cls_norm, x, True))
        and type(x) in (Tensor, nn.Parameter)
        and not transforms_active()
    )


def _has_kernel(norm: nn.Module, x: Tensor, of_cls: bool) -> bool:
    """Whether a kernel exists for the norm, supports ``x``, and no hook has to be called."""
    kernel = KERNELS.get(getattr(norm.forward, "__func__", None))  # None for a forward patched onto the instance
    return kernel is not None and not is_watched(norm) and kernel.serves(norm, x, of_cls)


def fused(x: Tensor, cls_norm: Any, token_norm: Any, call: Call) -> Tensor:
    """Output of the layer for (batch, tokens, channels), or (tokens, batch, channels) with ``call.dim=0``.

    Values at padding must be finite.
    """
    cw, cb = (None, None) if cls_norm is None else (cls_norm.weight, cls_norm.bias)
    plan = (cls_norm, token_norm, call)
    out: Tensor = FusedSepNorm.apply(x.contiguous(), cw, cb, token_norm.weight, token_norm.bias, plan)
    return out


class FusedSepNorm(Function):
    """Autograd function of x, weight and bias of [CLS], weight and bias of tokens, and ``plan`` (norms and call)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cw: Any, cb: Any, tw: Any, tb: Any, plan: tuple[Any, Any, Call]) -> Tensor:
        cls_norm, token_norm, call = plan
        cls = rows = None
        tokens = KERNELS[type(token_norm).forward](call)
        if cls_norm is not None:
            cls = KERNELS[type(cls_norm).forward](call)
            # Read [CLS] before the pass over all tokens, which then finds it in the cache. Copy it: batch norm is 4x
            # slower on a strided view.
            rows = torch.narrow_copy(x, call.dim, 0, call.num_cls).view(-1, x.shape[2])
            if isinstance(cls, BatchKernel):
                rows = _cast(rows, torch.promote_types(rows.dtype, torch.float32))
            cls.begin(cls_norm, rows)
        out = tokens.forward(token_norm, x, tw, tb)
        if cls is not None and rows is not None:
            _put_rows(out, cls.forward(cls_norm, rows, _cast(cw, rows.dtype), _cast(cb, rows.dtype)), call)
        ctx.save_for_backward(x, cw, cb, tw, tb, call.padding)
        ctx.kernels, ctx.rows, ctx.call = (cls, tokens), rows, call
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad, call, (cls, tokens) = grads[0], ctx.call, ctx.kernels
        *inputs, padding = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is needed: let torch derive both
            return *_differentiable_grads(ctx, grad, inputs, padding), None
        x, cw, cb, tw, tb = inputs
        grad = grad.contiguous()
        dcw = dcb = None
        if cls is None:
            dx, dtw, dtb = tokens.backward(grad, x, tw, tb)
        else:
            cls_grad = torch.narrow_copy(grad, call.dim, 0, call.num_cls)
            rows, dtype = ctx.rows, ctx.rows.dtype
            rows_grad, weight = _cast(cls_grad, dtype).view(rows.shape), _cast(cw, dtype)
            cls.begin_backward(rows_grad, rows, weight)
            dx, dtw, dtb = _token_grads(tokens, grad, cls_grad, x, tw, tb)
            drows, dcw, dcb = cls.backward(rows_grad, rows, weight, _cast(cb, dtype))
            _put_rows(dx, drows, call)
        return dx, _like(dcw, cw), _like(dcb, cb), _like(dtw, tw), _like(dtb, tb), None


# ---- [CLS] among the tokens ---------------------------------------------------------------------------------------


def _token_grads(kernel: Kernel, grad: Tensor, cls_grad: Tensor, x: Tensor, weight: Any, bias: Any) -> Grads:
    """Gradients of tokens, weight and bias, with [CLS] left out exactly. The caller overwrites ``dx`` at [CLS]."""
    call = kernel.call
    if grad.is_cpu and not (call.sync and isinstance(kernel, BatchKernel)):  # an all-reduce must not run twice
        # Zero the incoming gradient at [CLS] for the moment: a copy, or summing [CLS] apart, would cost a fifth more.
        # On the CPU one node of a graph runs at a time, so no other node sees the zeros.
        hole = grad.data.narrow(call.dim, 0, call.num_cls)
        hole.zero_()
        try:
            found = kernel.backward(grad, x, weight, bias)
        finally:
            hole.copy_(cls_grad)
        # a non-finite sum may come from [CLS] alone (zero times infinity): then sum again without [CLS]
        if found[1] is None or math.isfinite(found[1].sum()):
            return found
    kernel = copy.copy(kernel)
    grad, x, *kernel.saved = (_tokens(tensor, call) for tensor in (grad, x, *kernel.saved))
    dtokens, dweight, dbias = kernel.backward(grad, x, weight, bias)
    room = dtokens.new_empty(()).expand(*(call.num_cls if i == call.dim else s for i, s in enumerate(x.shape)))
    return torch.cat([room, dtokens], call.dim), dweight, dbias


def _put_rows(x: Tensor, rows: Tensor, call: Call) -> None:
    """Writes rows (count, channels) over the [CLS] part of ``x``."""
    view = x.narrow(call.dim, 0, call.num_cls)
    view.copy_(rows.view(view.shape))


def _tokens(x: Tensor, call: Call) -> Tensor:
    """A copy of ``x`` without [CLS]."""
    return x.narrow(call.dim, call.num_cls, x.shape[call.dim] - call.num_cls).contiguous()


def _cast(tensor: Any, dtype: torch.dtype) -> Any:
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)


def _like(grad: Any, parameter: Any) -> Any:
    """The gradient in the dtype of its parameter; None if there is no parameter."""
    return None if parameter is None else _cast(grad, parameter.dtype)


# ---- second derivatives -------------------------------------------------------------------------------------------


def _differentiable_grads(ctx: Any, grad: Tensor, inputs: list[Any], padding: Tensor | None) -> list[Tensor | None]:
    """The gradients as a differentiable function of the saved tensors, for second derivatives."""
    # An alias each: of inputs that are one tensor, or depend on each other, each has its own share of the gradient.
    inputs = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    grads: list[Tensor | None] = [None] * len(inputs)
    wanted = [number for number, need in enumerate(ctx.needs_input_grad) if need]
    out, leaves = _formula(ctx, padding, *inputs), [inputs[number] for number in wanted]
    found = torch.autograd.grad(out, leaves, grad, create_graph=True, allow_unused=True)
    for number, value in zip(wanted, found, strict=True):
        grads[number] = value
    return grads


def _formula(ctx: Any, padding: Any, x: Any, cw: Any, cb: Any, tw: Any, tb: Any) -> Tensor:
    """The forward pass again, in differentiable operations."""
    (cls, tokens), call = ctx.kernels, ctx.call
    if cls is None:
        return tokens.formula(x, tw, tb, padding)
    first, rest = x.split([call.num_cls, x.shape[call.dim] - call.num_cls], call.dim)
    rest = tokens.formula(rest, tw, tb, None if padding is None else padding[:, call.num_cls :])
    return torch.cat([cls.formula(first, cw, cb, None).to(rest.dtype), rest], call.dim)
