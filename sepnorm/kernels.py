"""The fused forward and backward of the layer: one native norm over all tokens, [CLS] rows put in their place.

Splitting a sequence, normalising the parts and concatenating them reads and writes every token several times more
than one norm does. Here the tokens' norm runs over the whole tensor and the few [CLS] rows are overwritten. In
the backward pass a 1/sigma of zero takes the [CLS] rows out of the layer norm's gradients of input and weight, and
their part of the bias gradient, a plain sum, is subtracted.

Everything works on ``x`` of shape (batch, tokens, channels), or (tokens, batch, channels) with ``dim=0``; "rows" are
(count, channels). ``layer.py`` decides when this path applies and holds the plain path with the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from sepnorm.statistics import (
    Statistics,
    affine,
    batch_statistics,
    moments,
    running_statistics,
    scale_shift,
    token_moments,
)

_layer_backward = torch.ops.aten.native_layer_norm_backward.default
_batch_backward = torch.ops.aten.native_batch_norm_backward.default

Grads = tuple[Any, Any, Any]  # of input, weight and bias; none where there is no such parameter
HALF = (torch.bfloat16, torch.float16)
ALL = (True, True, True)


class Call(NamedTuple):
    """What one fused call needs besides tensors that take a gradient. Kinds: batch, layer, scale; [CLS] also none."""

    cls_kind: str | None
    cls_norm: nn.Module | None
    token_kind: str
    token_norm: nn.Module
    num_cls: int
    dim: int
    padding: Tensor | None  # (batch, tokens), True where padded
    track: bool  # whether running statistics are updated by this call
    sync: bool  # whether statistics are those of all processes
    plain: Callable[..., Tensor]  # the same function by differentiable operations


def _batch_grads(grad: Tensor, x: Tensor, stats: Statistics, weight: Tensor | None, call: Call) -> Grads:
    """Gradients of batch norm with ``stats`` for ``grad`` and ``x`` of any shape (..., channels)."""
    if x.numel():
        rows = grad.view(-1, x.shape[-1]), x.view(-1, x.shape[-1])
        sums = (False, True, True)
        _, dweight, dbias = _batch_backward(*rows, weight, None, None, stats.mean, stats.invstd, True, 0.0, sums)
    else:  # torch's kernel divides by the number of rows, and the process ends
        dweight, dbias = torch.zeros_like(stats.mean), torch.zeros_like(stats.mean)
    scale = stats.invstd if weight is None else stats.invstd * weight
    if isinstance(stats.inv_count, float) and stats.inv_count == 0.0:
        return grad * scale, dweight, dbias
    pooled = torch.stack([dweight, dbias])
    if call.sync:
        pooled = pooled.double()
        torch.distributed.all_reduce(pooled)
        pooled = pooled.to(dweight.dtype)
    pooled = pooled * stats.inv_count * scale
    slope = -stats.invstd * pooled[0]
    dx = torch.addcmul(torch.addcmul(-pooled[1], stats.mean, slope, value=-1), x, slope)
    if call.padding is not None:  # padding was normalised by the statistics but took no part in them
        dx.masked_fill_((call.padding if call.dim == 1 else call.padding.t()).unsqueeze(-1), 0.0)
    return dx.addcmul_(grad, scale), dweight, dbias


def _cls_view(x: Tensor, call: Call) -> Tensor:
    """The [CLS] part of ``x`` without a copy: (batch, channels) for one [CLS], else with its token dimension."""
    return x.select(call.dim, 0) if call.num_cls == 1 else x.narrow(call.dim, 0, call.num_cls)


def _rows(x: Tensor, call: Call) -> Tensor:
    """A copy of the [CLS] part of ``x`` as rows (count, channels): batch norm is 4x slower on a strided view."""
    if call.num_cls == 1:
        return torch.select_copy(x, call.dim, 0)
    return torch.narrow_copy(x, call.dim, 0, call.num_cls).view(-1, x.shape[2])


def _put_rows(x: Tensor, rows: Tensor, call: Call) -> None:
    """Writes (count, channels) over the [CLS] part of ``x``."""
    view = _cls_view(x, call)
    view.copy_(rows if view.dim() == 2 else rows.view(view.shape))


def _rows_forward(call: Call, rows: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
    """Output rows of [CLS] and what ``_rows_backward`` needs."""
    norm: Any = call.cls_norm
    weight, bias = affine(norm, rows.dtype)
    if call.cls_kind == "layer":
        out, mean, rstd = torch.native_layer_norm(rows, (rows.shape[-1],), weight, bias, norm.eps)
        return out, (weight, bias, mean, rstd)
    if call.cls_kind == "scale":
        return torch.addcmul(bias, rows, weight), (weight,)
    if not norm.training or (rows.shape[0] <= call.num_cls and not call.sync):
        stats = running_statistics(norm, rows.dtype)
    elif call.sync or norm.momentum is None or norm._buffers["running_mean"].dtype != rows.dtype:
        stats = batch_statistics(norm, *moments(rows), rows.shape[0], call.track, call.sync)
    else:  # the usual case, by torch's own kernels
        running = (None, None)
        if call.track:
            buffers = norm._buffers
            buffers["num_batches_tracked"].add_(1)
            running = (buffers["running_mean"], buffers["running_var"])
        out, mean, invstd = torch.native_batch_norm(rows, weight, bias, *running, True, norm.momentum, norm.eps)
        return out, (weight, mean, invstd)
    scale, shift = scale_shift(stats, weight, bias)
    return torch.addcmul(shift, rows, scale), (weight, stats)


def _rows_backward(call: Call, grad: Tensor, rows: Tensor, saved: tuple[Any, ...]) -> Grads:
    """Gradients of the [CLS] rows, weight and bias."""
    if call.cls_kind == "layer":
        weight, bias, mean, rstd = saved
        wanted = (True, weight is not None, bias is not None)
        drows, dweight, dbias = _layer_backward(grad, rows, (rows.shape[-1],), mean, rstd, weight, bias, wanted)
        return drows, dweight, grad.sum(0) if bias is None else dbias  # the tokens' bias needs the sum in any case
    if call.cls_kind == "scale":
        return grad * saved[0], (grad * rows).sum(0), grad.sum(0)
    if len(saved) == 3:
        weight, mean, invstd = saved
        return _batch_backward(grad, rows, weight, None, None, mean, invstd, True, 0.0, ALL)
    weight, stats = saved
    return _batch_grads(grad, rows, stats, weight, call._replace(padding=None))


def fused_forward(x: Tensor, call: Call) -> tuple[Tensor, tuple[Any, ...]]:
    """The layer's output for contiguous ``x``, and what the backward pass needs."""
    if call.cls_kind is None:
        out, token_saved = _tokens_forward(call, x)
        return out, (None, None, token_saved)
    rows = _rows(x, call)  # before the pass over all tokens, which then finds them in the cache
    if call.cls_kind == "batch" and rows.dtype in HALF:
        rows = rows.float()
    rows_out, cls_saved = _rows_forward(call, rows)
    out, token_saved = _tokens_forward(call, x)
    _put_rows(out, rows_out, call)
    return out, (rows, cls_saved, token_saved)


def _tokens_forward(call: Call, x: Tensor) -> tuple[Tensor, Any]:
    """The tokens' norm over everything, and what its backward needs."""
    norm: Any = call.token_norm
    weight, bias = norm._parameters["weight"], norm._parameters["bias"]
    if call.token_kind == "layer":
        out, mean, rstd = torch.native_layer_norm(x, (x.shape[-1],), weight, bias, norm.eps)
        return out, (mean, rstd)
    if call.token_kind == "scale":
        return torch.addcmul(bias, x, weight), None
    stats = None
    if norm.training:
        mean, var, count = token_moments(x, call.num_cls, call.dim, call.padding)
        if count > 1 or call.sync:
            stats = batch_statistics(norm, mean, var, count, call.track, call.sync)
    stats = stats or running_statistics(norm, x.dtype)
    scale, shift = scale_shift(stats, weight, bias)
    return torch.addcmul(shift, x, scale), stats


class FusedSepNorm(Function):
    """Autograd of ``fused_forward``: takes x, [CLS] weight and bias, token weight and bias, and the call."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cw: Tensor | None, cb: Tensor | None, tw: Tensor | None, tb: Tensor | None, call: Call
    ) -> Tensor:
        out, ctx.kept = fused_forward(x, call)
        if call.token_kind == "layer":
            _cls_view(ctx.kept[2][1], call).zero_()
        ctx.save_for_backward(x, cw, tw)
        ctx.call = call
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad, call = grads[0], ctx.call
        x, cw, tw = ctx.saved_tensors
        cb = None if call.cls_norm is None else call.cls_norm._parameters["bias"]
        tb = call.token_norm._parameters["bias"]
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted: let torch derive both
            return (*_differentiable_grads(grad, (x, cw, cb, tw, tb), ctx.needs_input_grad, call), None)
        rows, cls_saved, token_saved = ctx.kept
        grad = grad.contiguous()
        if rows is None:
            dx, dtw, dtb = _token_grads(call, grad, x, tw, tb, token_saved)
            return dx, None, None, *_like((dtw, dtb), (tw, tb)), None
        cls_grad = _rows(grad, call)
        if cls_grad.dtype != rows.dtype:
            cls_grad = cls_grad.to(rows.dtype)
        drows, dcw, dcb = _rows_backward(call, cls_grad, rows, cls_saved)
        del cls_grad  # before the large gradient is allocated
        dx, dtw, dtb = _token_grads(call, grad, x, tw, tb, token_saved)
        _put_rows(dx, drows, call)
        if tb is not None and call.token_kind == "layer":
            if dtb.dtype in HALF:  # too coarse for a difference of sums
                dtb = grad.narrow(call.dim, call.num_cls, x.shape[call.dim] - call.num_cls).float().sum((0, 1))
            else:
                dtb -= dcb
        if cw is None or tb is None or cb is None or not dcw.dtype == cw.dtype == dtb.dtype == tw.dtype:
            dcw, dcb, dtw, dtb = _like((dcw, dcb, dtw, dtb), (cw, cb, tw, tb))
        return dx, dcw, dcb, dtw, dtb, None


class UsualSepNorm(Function):
    """``FusedSepNorm`` for what almost every model has, written out in a row: one [CLS], layer norm over tokens.

    On small inputs the way through the general code costs a tenth of the whole. ``fused`` decides where it applies.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cw: Tensor, cb: Tensor, tw: Tensor, tb: Tensor, call: Call) -> Tensor:
        norm: Any = call.cls_norm
        token_norm: Any = call.token_norm
        dim, width = call.dim, (x.shape[2],)
        rows = torch.select_copy(x, dim, 0)
        if call.cls_kind == "layer":
            rows_out, mean, invstd = torch.native_layer_norm(rows, width, cw, cb, norm.eps)
        else:
            buffers = norm._buffers
            buffers["num_batches_tracked"].add_(1)
            running = buffers["running_mean"], buffers["running_var"]
            rows_out, mean, invstd = torch.native_batch_norm(rows, cw, cb, *running, True, norm.momentum, norm.eps)
        out, token_mean, rstd = torch.native_layer_norm(x, width, tw, tb, token_norm.eps)
        out.select(dim, 0).copy_(rows_out)
        rstd.select(dim, 0).zero_()
        ctx.save_for_backward(x, cw, tw)
        ctx.call, ctx.kept = call, (rows, mean, invstd, token_mean, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        call: Call = ctx.call
        x, cw, tw = ctx.saved_tensors
        cls_norm: Any = call.cls_norm
        cb, tb = cls_norm._parameters["bias"], call.token_norm._parameters["bias"]
        if torch.is_grad_enabled():
            return (*_differentiable_grads(grads[0], (x, cw, cb, tw, tb), ctx.needs_input_grad, call), None)
        rows, mean, invstd, token_mean, rstd = ctx.kept
        grad, dim, width = grads[0].contiguous(), call.dim, (x.shape[2],)
        cls_grad = torch.select_copy(grad, dim, 0)
        if call.cls_kind == "layer":
            drows, dcw, dcb = _layer_backward(cls_grad, rows, width, mean, invstd, cw, cb, ALL)
        else:
            drows, dcw, dcb = _batch_backward(cls_grad, rows, cw, None, None, mean, invstd, True, 0.0, ALL)
        del cls_grad  # before the large gradient is allocated
        dx, dtw, dtb = _layer_backward(grad, x, width, token_mean, rstd, tw, tb, ALL)
        dx.select(dim, 0).copy_(drows)
        return dx, dcw, dcb, dtw, dtb.sub_(dcb), None


# ``apply`` without torch's check for function transforms, which the layer has made already.
_fused_apply: Any = super(Function, FusedSepNorm).apply
_usual_apply: Any = super(Function, UsualSepNorm).apply


def fused(x: Tensor, call: Call) -> Tensor:
    """The layer's output for contiguous ``x``, with gradients where they are wanted."""
    if not torch.is_grad_enabled():
        return fused_forward(x, call)[0]
    norm: Any = call.cls_norm
    tokens = call.token_norm._parameters
    tw, tb = tokens["weight"], tokens["bias"]
    if norm is None:
        return _fused_apply(x, None, None, tw, tb, call)
    cw, cb, dtype = norm._parameters["weight"], norm._parameters["bias"], x.dtype
    usual = (
        call.num_cls == 1
        and call.token_kind == "layer"
        and call.track
        and not call.sync
        and cw is not None
        and cb is not None
        and tw is not None
        and tb is not None
        and dtype == cw.dtype == tw.dtype
        and dtype not in HALF
    )
    if usual and call.cls_kind != "layer":
        usual = call.cls_kind == "batch" and norm.training and norm.momentum is not None and x.shape[1 - call.dim] > 1
        usual = usual and norm._buffers["running_mean"].dtype == dtype
    return (_usual_apply if usual else _fused_apply)(x, cw, cb, tw, tb, call)


def _token_grads(call: Call, grad: Tensor, x: Tensor, weight: Any, bias: Any, saved: Any) -> Grads:
    """Gradients of all tokens, weight and bias, [CLS] left out but for the bias of a layer norm; see above."""
    if call.token_kind == "layer":
        wanted = (True, weight is not None, bias is not None)
        return _layer_backward(grad, x, (x.shape[-1],), *saved, weight, bias, wanted)
    if call.cls_kind is None:
        return _without_cls(call, grad, x, weight, saved)
    # The sums of a batch norm's gradient reach every token, so [CLS] stays out of them exactly: its rows are zero while
    # they are formed. On the CPU, the only place of this path, one node runs at a time and nobody sees the gap.
    grad = grad.data
    hole = _cls_view(grad, call)
    kept = hole.clone()
    hole.zero_()
    grads = _without_cls(call, grad, x, weight, saved)
    hole.copy_(kept)
    return grads


def _without_cls(call: Call, grad: Tensor, x: Tensor, weight: Any, saved: Any) -> Grads:
    if call.token_kind == "scale":
        width = x.shape[-1]
        return grad * weight, (grad * x).view(-1, width).sum(0), grad.view(-1, width).sum(0)
    return _batch_grads(grad, x, saved, weight, call)


def _like(grads: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each gradient in its parameter's dtype; none where there is no parameter."""
    return tuple(None if p is None or g is None else g.to(p.dtype) for g, p in zip(grads, params, strict=True))


def _differentiable_grads(
    grad: Tensor, inputs: tuple[Tensor | None, ...], needed: tuple[bool, ...], call: Call
) -> tuple[Tensor | None, ...]:
    wanted: list[Any] = [tensor for tensor, need in zip(inputs, needed, strict=False) if need]
    output = call.plain(inputs[0], call.padding, track=False)
    grads = iter(torch.autograd.grad(output, wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(grads) if need else None for need in needed[: len(inputs)])
