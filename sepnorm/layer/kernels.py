"""The norms that the fused path has: each with its forward, its backward, and the same by differentiable operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.layer import statistics
from sepnorm.layer.statistics import Call, Statistics

_layer_backward = torch.ops.aten.native_layer_norm_backward.default
_batch_backward = torch.ops.aten.native_batch_norm_backward.default

Grads = tuple[Any, Any, Any]  # of input, weight and bias; none where there is no such parameter


class Kernel(Protocol):
    """One norm in one call. It keeps what its backward needs, so that what happens to the module later does not reach it.

    ``x`` is all tokens, in three dimensions, or the rows (count, channels) of [CLS]. Weight and bias have its dtype.
    """

    call: Call
    saved: Sequence[Tensor] = ()  # of every token

    def __init__(self, call: Call) -> None:
        self.call = call

    @staticmethod
    def serves(norm: Any, x: Tensor, of_cls: bool) -> bool: ...  # whether it can do ``norm`` for the layer's input

    def forward(self, norm: Any, x: Tensor, weight: Any, bias: Any) -> Tensor: ...

    def backward(self, grad: Tensor, x: Tensor, weight: Any, bias: Any) -> Grads: ...

    # the output of ``forward`` by differentiable operations, for derivatives of derivatives
    def formula(self, x: Tensor, weight: Any, bias: Any, padding: Tensor | None) -> Tensor: ...


class LayerKernel(Kernel):
    """``nn.LayerNorm`` over the channels."""

    @staticmethod
    def serves(norm: Any, x: Tensor, of_cls: bool) -> bool:
        return bool(norm.normalized_shape == x.shape[-1:])

    def forward(self, norm: Any, x: Tensor, weight: Any, bias: Any) -> Tensor:
        self.eps = norm.eps
        out, *self.saved = torch.native_layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        return out

    def backward(self, grad: Tensor, x: Tensor, weight: Any, bias: Any) -> Grads:
        wanted = (True, weight is not None, bias is not None)
        return _layer_backward(grad, x, x.shape[-1:], *self.saved, weight, bias, wanted)

    def formula(self, x: Tensor, weight: Any, bias: Any, padding: Tensor | None) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.eps)


class ScaleKernel(Kernel):
    """``ScaleShift``: one scale and one shift a channel."""

    @staticmethod
    def serves(norm: Any, x: Tensor, of_cls: bool) -> bool:
        return of_cls or (x.is_cpu and norm.weight.dtype == x.dtype)

    def forward(self, norm: Any, x: Tensor, weight: Any, bias: Any) -> Tensor:
        return torch.addcmul(bias, x, weight)

    def backward(self, grad: Tensor, x: Tensor, weight: Any, bias: Any) -> Grads:
        width = x.shape[-1]
        return grad * weight, (grad * x).view(-1, width).sum(0), grad.view(-1, width).sum(0)

    def formula(self, x: Tensor, weight: Any, bias: Any, padding: Tensor | None) -> Tensor:
        return torch.addcmul(bias, x, weight)


class BatchKernel(Kernel):
    """``nn.BatchNorm1d`` with running statistics, over [CLS], or over tokens without padding."""

    stats: Statistics
    native = False  # whether torch's own batch norm did the forward, and does the backward

    @staticmethod
    def serves(norm: Any, x: Tensor, of_cls: bool) -> bool:
        dtype = getattr(norm.running_mean, "dtype", None)
        if of_cls:
            return dtype == torch.promote_types(x.dtype, torch.float32)
        return x.is_cpu and dtype == x.dtype and (norm.weight is None or norm.weight.dtype == x.dtype)

    def forward(self, norm: Any, x: Tensor, weight: Any, bias: Any) -> Tensor:
        self.eps = norm.eps
        of_cls, sync = x.dim() == 2, self.call.sync
        alone = of_cls and x.shape[0] <= self.call.num_cls  # a single sample
        if not norm.training or (alone and not sync):
            self.stats = statistics.running_statistics(norm, x.dtype)
        elif of_cls and not sync:
            return self._native(norm, x, weight, bias)
        else:
            self.stats = self._measure(norm, x)
        scale, shift = statistics.scale_shift(self.stats, weight, bias)
        return torch.addcmul(shift, x, scale)

    def _native(self, bn: Any, x: Tensor, weight: Any, bias: Any) -> Tensor:
        """One operation instead of eight; over all tokens, where time goes into memory, those eight are quicker."""
        self.native, running, factor = True, (None, None), 0.0
        if self.call.track:
            bn.num_batches_tracked.add_(1)
            running, factor = (bn.running_mean, bn.running_var), statistics.tracking_factor(bn)
        out, mean, invstd = torch.native_batch_norm(x, weight, bias, *running, True, factor, self.eps)
        if self.call.track:
            statistics.bound(bn.running_var)
        self.stats = Statistics(mean, invstd, 1.0 / x.shape[0])
        return out

    def _measure(self, bn: Any, x: Tensor) -> Statistics:
        call = self.call
        if x.dim() == 2:
            mean, var, count = *statistics.moments(x), x.shape[0]
        else:
            mean, var, count = statistics.token_moments(x, call.num_cls, call.dim, call.padding)
        if call.sync:
            return statistics.batch_statistics(bn, *statistics.all_reduce_moments(mean, var, count), call.track)
        if count < 2:
            return statistics.running_statistics(bn, x.dtype)
        if call.track:
            statistics.track_statistics(bn, mean, var * (count / (count - 1)))
        return Statistics(mean, (var + self.eps).rsqrt_(), 1.0 / count)

    def backward(self, grad: Tensor, x: Tensor, weight: Any, bias: Any) -> Grads:
        mean, invstd, inv_count = self.stats
        if self.native:
            return _batch_backward(grad, x, weight, None, None, mean, invstd, True, self.eps, (True, True, True))
        dweight = dbias = torch.zeros_like(mean)
        if x.numel():  # torch's kernel divides by the number of rows, and the process ends
            rows, sums = (grad.view(-1, x.shape[-1]), x.view(-1, x.shape[-1])), (False, True, True)
            _, dweight, dbias = _batch_backward(*rows, weight, None, None, mean, invstd, True, self.eps, sums)
        scale = invstd if weight is None else invstd * weight
        if self.stats.fixed:
            return grad * scale, dweight, dbias
        pooled = torch.stack([dweight, dbias])
        if self.call.sync:
            pooled = pooled.double()
            torch.distributed.all_reduce(pooled)
            pooled = pooled.to(dweight.dtype)
        pooled = pooled * inv_count * scale
        slope = -invstd * pooled[0]
        dx = torch.addcmul(torch.addcmul(-pooled[1], mean, slope, value=-1), x, slope)
        return dx.addcmul_(grad, scale), dweight, dbias

    def formula(self, x: Tensor, weight: Any, bias: Any, padding: Tensor | None) -> Tensor:
        stats = self.stats
        x = x.to(stats.mean.dtype)
        if not stats.fixed:
            mean, var, total = statistics.differentiable_moments(x, self.call.dim, padding, self.call.sync)
            mean = torch.where(total > 1, mean, stats.mean)
            stats = Statistics(mean, torch.where(total > 1, (var + self.eps).rsqrt(), stats.invstd), 0.0)
        return statistics.normalise(stats, x, weight, bias)
