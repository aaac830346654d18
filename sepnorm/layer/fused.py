"""The fused forward and backward of the layer: one native norm over all tokens, [CLS] rows put in their place.

Splitting a sequence, normalising the parts and concatenating them reads and writes every token several times more
than one norm does. Here the tokens' norm runs over the whole tensor and the few [CLS] rows are overwritten. In
the backward pass the incoming gradient is zero at [CLS] while the tokens' sums are formed.

Everything works on ``x`` of shape (batch, tokens, channels), or (tokens, batch, channels) with ``dim=0``; "rows" are
(count, channels). ``layer.py`` decides when this path applies and holds the plain path with the same results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from sepnorm.layer.statistics import (
    Statistics,
    batch_statistics,
    differentiable_moments,
    moments,
    running_statistics,
    scale_shift,
    token_moments,
)

_layer_backward = torch.ops.aten.native_layer_norm_backward.default
_batch_backward = torch.ops.aten.native_batch_norm_backward.default

Grads = tuple[Any, Any, Any]  # of input, weight and bias; none where there is no such parameter
HALF = (torch.bfloat16, torch.float16)


class Part(NamedTuple):
    """One of the two norms as it was when it was called: what happens to the module later does not reach the backward."""

    kind: str  # layer, batch or scale
    eps: float = 0.0
    stats: Statistics | None = None  # of a batch norm


class Plan(NamedTuple):
    """What a call is besides its tensors."""

    cls: Part | None  # none where one norm serves all tokens
    tokens: Part
    num_cls: int
    dim: int
    sync: bool  # whether batch statistics are those of all processes


def fused(
    x: Tensor,
    kinds: tuple[str | None, str | None],
    norms: tuple[nn.Module | None, nn.Module],
    num_cls: int,
    dim: int,
    padding: Tensor | None,
    track: bool,
    sync: bool,
) -> Tensor:
    """The layer's output for contiguous ``x``, with gradients where they are wanted.

    ``kinds`` and ``norms``: of [CLS], none where one norm serves all, and of the tokens. ``padding`` is finite.
    """
    values = x.detach()
    cls: Any = norms[0]
    tokens: Any = norms[1]
    rows = cls_part = None
    if kinds[0] is not None:
        rows = _rows(values, num_cls, dim)  # before the pass over all tokens, which then finds them in the cache
        if kinds[0] == "batch" and rows.dtype in HALF:
            rows = rows.float()
        cls_part = Part(kinds[0], getattr(cls, "eps", 0.0))
        if kinds[0] == "batch":
            if cls.training and (rows.shape[0] > num_cls or sync):
                stats = batch_statistics(cls, *moments(rows), rows.shape[0], track, sync)
            else:
                stats = running_statistics(cls, rows.dtype)
            cls_part = cls_part._replace(stats=stats)
    assert kinds[1] is not None
    token_part = Part(kinds[1], getattr(tokens, "eps", 0.0))
    if kinds[1] == "batch":
        stats = running_statistics(tokens, x.dtype)
        if tokens.training:
            mean, var, count = token_moments(values, num_cls, dim, padding)
            if count > 1 or sync:
                stats = batch_statistics(tokens, mean, var, count, track, sync)
        token_part = token_part._replace(stats=stats)
    plan = Plan(cls_part, token_part, num_cls, dim, sync)
    weights = (None, None) if cls is None else (cls.weight, cls.bias)
    out: Tensor = FusedSepNorm.apply(x, *weights, tokens.weight, tokens.bias, rows, padding, plan)
    return out


class FusedSepNorm(Function):
    """Takes x, weight and bias of [CLS] and of the tokens, and without a gradient the rows of [CLS], the padding and the plan.

    ``padding`` (batch, tokens) is True where batch statistics over tokens leave something out.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        cw: Tensor | None,
        cb: Tensor | None,
        tw: Tensor | None,
        tb: Tensor | None,
        rows: Tensor | None,
        padding: Tensor | None,
        plan: Plan,
    ) -> Tensor:
        out, token_saved = _forward(plan.tokens, x, tw, tb)
        cls_saved: tuple[Tensor, ...] = ()
        if plan.cls is not None:
            assert rows is not None
            weight, bias = _in_dtype(rows.dtype, cw, cb)
            rows_out, cls_saved = _forward(plan.cls, rows, weight, bias)
            _put_rows(out, rows_out, plan)
        ctx.save_for_backward(x, cw, cb, tw, tb, padding)
        ctx.plan, ctx.rows, ctx.saved = plan, rows, (cls_saved, token_saved)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad, plan, (cls_saved, token_saved) = grads[0], ctx.plan, ctx.saved
        x, cw, cb, tw, tb, padding = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted: let torch derive both
            inputs = (x, cw, cb, tw, tb)
            return (*_differentiable_grads(grad, inputs, ctx.needs_input_grad, padding, plan), None, None, None)
        grad = grad.contiguous()
        dcw = dcb = None
        if plan.cls is None:
            dx, dtw, dtb = _backward(plan.tokens, grad, x, tw, tb, token_saved, plan.sync)
        else:
            dx, dtw, dtb = _token_grads(plan, grad, x, tw, tb, token_saved)
            cls_grad = _rows(grad, plan.num_cls, plan.dim).to(ctx.rows.dtype)
            weight, bias = _in_dtype(ctx.rows.dtype, cw, cb)
            drows, dcw, dcb = _backward(plan.cls, cls_grad, ctx.rows, weight, bias, cls_saved, plan.sync)
            _put_rows(dx, drows, plan)
        return dx, _like(dcw, cw), _like(dcb, cb), _like(dtw, tw), _like(dtb, tb), None, None, None


# ---- one norm over (..., channels) --------------------------------------------------------------------------------------


def _forward(part: Part, x: Tensor, weight: Any, bias: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The output, and what the backward needs besides."""
    if part.kind == "layer":
        out, mean, rstd = torch.native_layer_norm(x, (x.shape[-1],), weight, bias, part.eps)
        return out, (mean, rstd)
    if part.stats is not None:
        weight, bias = scale_shift(part.stats, weight, bias)
    return torch.addcmul(bias, x, weight), ()


def _backward(
    part: Part, grad: Tensor, x: Tensor, weight: Any, bias: Any, saved: tuple[Tensor, ...], sync: bool
) -> Grads:
    width = x.shape[-1]
    if part.kind == "layer":
        wanted = (True, weight is not None, bias is not None)
        return _layer_backward(grad, x, (width,), *saved, weight, bias, wanted)
    if part.stats is None:
        return grad * weight, (grad * x).view(-1, width).sum(0), grad.view(-1, width).sum(0)
    return _batch_grads(part.stats, grad, x, weight, sync)


def _batch_grads(stats: Statistics, grad: Tensor, x: Tensor, weight: Any, sync: bool) -> Grads:
    if x.numel():
        rows = grad.view(-1, x.shape[-1]), x.view(-1, x.shape[-1])
        sums = (False, True, True)
        _, dweight, dbias = _batch_backward(*rows, weight, None, None, stats.mean, stats.invstd, True, 0.0, sums)
    else:  # torch's kernel divides by the number of rows, and the process ends
        dweight, dbias = torch.zeros_like(stats.mean), torch.zeros_like(stats.mean)
    scale = stats.invstd if weight is None else stats.invstd * weight
    if stats.fixed:
        return grad * scale, dweight, dbias
    pooled = torch.stack([dweight, dbias])
    if sync:
        pooled = pooled.double()
        torch.distributed.all_reduce(pooled)
        pooled = pooled.to(dweight.dtype)
    pooled = pooled * stats.inv_count * scale
    slope = -stats.invstd * pooled[0]
    dx = torch.addcmul(torch.addcmul(-pooled[1], stats.mean, slope, value=-1), x, slope)
    return dx.addcmul_(grad, scale), dweight, dbias


# ---- [CLS] among the tokens ---------------------------------------------------------------------------------------------


def _token_grads(plan: Plan, grad: Tensor, x: Tensor, weight: Any, bias: Any, saved: tuple[Tensor, ...]) -> Grads:
    """Gradients of the tokens, their weight and bias, [CLS] left out exactly; at [CLS], ``dx`` is to be overwritten."""
    exact = not grad.is_cpu or (plan.sync and plan.tokens.kind == "batch")  # a sum over processes is not done twice
    if not exact:
        with _zero_at_cls(grad, plan):
            found = _backward(plan.tokens, grad, x, weight, bias, saved, plan.sync)
        # a sum that is not finite may be so by [CLS] alone: zero times infinity
        if found[1] is None or bool(found[1].isfinite().all()):
            return found
    count = x.shape[plan.dim] - plan.num_cls
    grad, x, *saved_tokens = (t.narrow(plan.dim, plan.num_cls, count).contiguous() for t in (grad, x, *saved))
    dtokens, dweight, dbias = _backward(plan.tokens, grad, x, weight, bias, tuple(saved_tokens), plan.sync)
    room = dtokens.new_empty(()).expand(*(plan.num_cls if i == plan.dim else s for i, s in enumerate(x.shape)))
    return torch.cat([room, dtokens], plan.dim), dweight, dbias


@contextmanager
def _zero_at_cls(grad: Tensor, plan: Plan) -> Iterator[None]:
    """The incoming gradient without [CLS] for the time being: a copy, or summing [CLS] apart, would cost a fifth more.

    On the CPU, the only place where this is done, one node of a graph runs at a time and nobody sees the gap.
    """
    hole = _cls_view(grad.data, plan)
    kept = hole.clone()
    hole.zero_()
    try:
        yield
    finally:
        hole.copy_(kept)


def _cls_view(x: Tensor, plan: Plan) -> Tensor:
    """The [CLS] part of ``x`` without a copy."""
    return x.narrow(plan.dim, 0, plan.num_cls)


def _rows(x: Tensor, num_cls: int, dim: int) -> Tensor:
    """A copy of the [CLS] part of ``x`` as rows (count, channels): batch norm is 4x slower on a strided view."""
    return torch.narrow_copy(x, dim, 0, num_cls).view(-1, x.shape[2])


def _put_rows(x: Tensor, rows: Tensor, plan: Plan) -> None:
    """Writes (count, channels) over the [CLS] part of ``x``."""
    view = _cls_view(x, plan)
    view.copy_(rows.view(view.shape))


def _in_dtype(dtype: torch.dtype, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)


def _like(grad: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    """A gradient in its parameter's dtype; none where there is no parameter."""
    return None if grad is None or parameter is None else grad.to(parameter.dtype)


# ---- second derivatives -------------------------------------------------------------------------------------------------


def _differentiable_grads(
    grad: Tensor,
    inputs: tuple[Any, Any, Any, Any, Any],
    needed: tuple[bool, ...],
    padding: Tensor | None,
    plan: Plan,
) -> tuple[Tensor | None, ...]:
    """The gradients as functions of saved tensors, by torch's own derivatives of the same function."""
    wanted: list[Any] = [tensor for tensor, need in zip(inputs, needed, strict=False) if need]
    grads = iter(
        torch.autograd.grad(_again(*inputs, padding, plan), wanted, grad, create_graph=True, allow_unused=True)
    )
    return tuple(next(grads) if need else None for need in needed[: len(inputs)])


def _again(x: Any, cw: Any, cb: Any, tw: Any, tb: Any, padding: Tensor | None, plan: Plan) -> Tensor:
    """The function once more, by differentiable operations."""
    if plan.cls is None:
        return _one_again(plan.tokens, x, tw, tb, plan, padding)
    cls, tokens = x.split([plan.num_cls, x.shape[plan.dim] - plan.num_cls], plan.dim)
    padding = None if padding is None else padding[:, plan.num_cls :]
    cls, tokens = _one_again(plan.cls, cls, cw, cb, plan, None), _one_again(plan.tokens, tokens, tw, tb, plan, padding)
    return torch.cat([cls.to(tokens.dtype), tokens], plan.dim)


def _one_again(part: Part, x: Tensor, weight: Any, bias: Any, plan: Plan, padding: Tensor | None) -> Tensor:
    if part.kind == "layer":
        return F.layer_norm(x, x.shape[-1:], weight, bias, part.eps)
    if part.stats is None:
        return torch.addcmul(bias, x, weight)
    mean, invstd, _ = part.stats
    x = x.to(mean.dtype)
    if not part.stats.fixed:
        if padding is not None:
            padding = (padding if plan.dim == 1 else padding.t()).reshape(-1, 1)
        now, var, total = differentiable_moments(x.reshape(-1, x.shape[-1]), padding, plan.sync)
        mean, invstd = torch.where(total > 1, now, mean), torch.where(total > 1, (var + part.eps).rsqrt(), invstd)
    out = (x - mean) * invstd
    out = out if weight is None else out * weight
    return out if bias is None else out + bias
