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

_layer_backward = torch.ops.aten.native_layer_norm_backward.default
_batch_backward = torch.ops.aten.native_batch_norm_backward.default

Grads = tuple[Any, Any, Any]  # of input, weight and bias; none where there is no such parameter
HALF = (torch.bfloat16, torch.float16)


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


class Statistics(NamedTuple):
    """Mean and 1/sigma that normalise, and 1/count where the gradient flows through them (0 where it does not)."""

    mean: Tensor
    invstd: Tensor
    inv_count: Tensor | float


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of (count, channels) over the rows; of no rows, zero and zero."""
    if rows.shape[0] == 0:
        return rows.new_zeros(rows.shape[1:]), rows.new_zeros(rows.shape[1:])
    if rows.device.type in ("cpu", "cuda"):  # one pass, accumulated in double on the CPU; var_mean is 10x slower there
        return torch.batch_norm_update_stats(rows, None, None, 0.0)
    var, mean = torch.var_mean(rows, 0, correction=0)
    return mean, var


def token_moments(x: Tensor, num_cls: int, dim: int, padding: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """Mean and biased variance over all tokens but [CLS] and padding, and how many there were. ``x`` contiguous."""
    width = x.shape[-1]
    if padding is not None:
        keep = ~padding
        keep[:, :num_cls] = False
        keep = keep if dim == 1 else keep.t()
        rows = x.reshape(-1, width).index_select(0, keep.reshape(-1).nonzero().view(-1))
        return *moments(rows), rows.shape[0]
    if dim == 0 or num_cls == 0 or x.shape[0] == 1:
        rows = x.narrow(dim, num_cls, x.shape[dim] - num_cls).reshape(-1, width)
        return *moments(rows), rows.shape[0]
    # Per position and channel first, then pooled over the positions that are tokens: leaves [CLS] out without
    # copying the rest, and without subtracting sums that an outlying [CLS] would dominate.
    count, tokens = x.shape[0], x.shape[1]
    mean, var = (part.view(tokens, width)[num_cls:] for part in moments(x.view(count, tokens * width)))
    pooled = mean.mean(0)
    return pooled, var.mean(0) + (mean - pooled).square_().mean(0), count * (tokens - num_cls)


def all_reduce_moments(mean: Tensor, var: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count over all processes: one all-reduce of two vectors and a number, in double."""
    wide_mean, wide_var = mean.double(), var.double()
    total = torch.as_tensor(count, dtype=torch.float64, device=mean.device).reshape(1)
    packed = torch.cat([total, wide_mean * total, (wide_var + wide_mean.square()) * total])
    torch.distributed.all_reduce(packed)
    total, sums, squares = packed.split([1, mean.numel(), mean.numel()])
    wide_mean = sums / total
    wide_var = (squares / total - wide_mean.square()).clamp_(min=0)
    return wide_mean.to(mean.dtype), wide_var.to(var.dtype), total[0]


def track_statistics(bn: Any, mean: Tensor, unbiased_var: Tensor) -> None:
    """Moves the running statistics of ``bn`` towards these, as ``nn.BatchNorm1d`` does."""
    if bn.running_mean is None:
        return
    bn.num_batches_tracked.add_(1)
    factor = bn.momentum if bn.momentum is not None else 1.0 / float(bn.num_batches_tracked)
    for running, new in ((bn.running_mean, mean), (bn.running_var, unbiased_var)):
        running.copy_(running.to(new.dtype).lerp(new, factor))


def batch_statistics(bn: Any, mean: Tensor, var: Tensor, count: int, track: bool, sync: bool) -> Statistics:
    """Statistics that normalise in training; with ``sync`` those of all processes, or running ones for a single row."""
    if not sync:
        if track:
            track_statistics(bn, mean, var * (count / (count - 1)))
        return Statistics(mean, (var + bn.eps).rsqrt_(), 1.0 / count)
    mean, var, total = all_reduce_moments(mean, var, count)
    enough = total > 1  # decided on the device: asking for the number would make an accelerator wait
    if bn.running_mean is not None:
        mean = torch.where(enough, mean, bn.running_mean.to(mean.dtype))
        var = torch.where(enough, var, bn.running_var.to(var.dtype))
        if track:
            track_statistics(bn, mean, var * torch.where(enough, total / (total - 1), 1.0).to(var.dtype))
    return Statistics(mean, (var + bn.eps).rsqrt_(), torch.where(enough, 1.0 / total, 0.0).to(mean.dtype))


def running_statistics(bn: Any, dtype: torch.dtype) -> Statistics:
    """The running statistics of ``bn``, through which no gradient flows."""
    return Statistics(bn.running_mean.to(dtype), (bn.running_var.to(dtype) + bn.eps).rsqrt_(), 0.0)


def affine(norm: nn.Module, dtype: torch.dtype) -> tuple[Any, Any]:
    """Weight and bias of a norm in ``dtype``; none where it has none."""
    weight: Tensor | None = norm._parameters["weight"]
    bias: Tensor | None = norm._parameters["bias"]
    if weight is not None and weight.dtype != dtype:
        weight = weight.to(dtype)
    if bias is not None and bias.dtype != dtype:
        bias = bias.to(dtype)
    return weight, bias


def scale_shift(stats: Statistics, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """What batch norm with ``stats`` multiplies by and adds."""
    scale = stats.invstd if weight is None else stats.invstd * weight
    shift = -stats.mean * scale if bias is None else torch.addcmul(bias, stats.mean, scale, value=-1)
    return scale, shift


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
        return _batch_backward(grad, rows, weight, None, None, mean, invstd, True, 0.0, (True, True, True))
    weight, stats = saved
    return _batch_grads(grad, rows, stats, weight, call._replace(padding=None))


def fused_forward(x: Tensor, call: Call) -> tuple[Tensor, tuple[Any, ...]]:
    """The layer's output for contiguous ``x``, and what the backward pass needs."""
    norm: Any = call.token_norm
    weight, bias = norm._parameters["weight"], norm._parameters["bias"]
    token_saved: Any
    if call.token_kind == "layer":
        out, *token_saved = torch.native_layer_norm(x, (x.shape[-1],), weight, bias, norm.eps)
    elif call.token_kind == "scale":
        out, token_saved = torch.addcmul(bias, x, weight), None
    else:
        stats = None
        if norm.training:
            mean, var, count = token_moments(x, call.num_cls, call.dim, call.padding)
            if count > 1 or call.sync:
                stats = batch_statistics(norm, mean, var, count, call.track, call.sync)
        token_saved = stats or running_statistics(norm, x.dtype)
        scale, shift = scale_shift(token_saved, weight, bias)
        out = torch.addcmul(shift, x, scale)
    if call.cls_kind is None:
        return out, (None, None, token_saved)
    rows = _rows(x, call)
    if call.cls_kind == "batch" and rows.dtype in HALF:
        rows = rows.float()
    rows_out, cls_saved = _rows_forward(call, rows)
    _put_rows(out, rows_out, call)
    return out, (rows, cls_saved, token_saved)


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
            return dx, None, None, *_like(dtw, tw, dtb, tb), None
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
        return dx, *_like(dcw, cw, dcb, cb), *_like(dtw, tw, dtb, tb), None


#: ``FusedSepNorm.apply`` without torch's check for function transforms, which the layer has made already.
fused = super(Function, FusedSepNorm).apply


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


def _like(dweight: Any, weight: Any, dbias: Any, bias: Any) -> tuple[Tensor | None, Tensor | None]:
    """Both gradients in their parameters' dtype; none where there is no parameter."""
    if weight is None or bias is None or dweight.dtype != weight.dtype or dbias.dtype != bias.dtype:
        dweight = None if weight is None else dweight.to(weight.dtype)
        dbias = None if bias is None else dbias.to(bias.dtype)
    return dweight, dbias


def _differentiable_grads(
    grad: Tensor, inputs: tuple[Tensor | None, ...], needed: tuple[bool, ...], call: Call
) -> tuple[Tensor | None, ...]:
    wanted: list[Any] = [tensor for tensor, need in zip(inputs, needed, strict=False) if need]
    output = call.plain(inputs[0], call.padding, track=False)
    grads = iter(torch.autograd.grad(output, wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(grads) if need else None for need in needed[: len(inputs)])
