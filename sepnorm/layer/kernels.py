"""Kernels of the fast path: forward and backward of each norm, and a differentiable formula of the same function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.distributed import Exchange
from sepnorm.layer import statistics
from sepnorm.layer.statistics import Call, Statistics

_layer_backward = torch.ops.aten.native_layer_norm_backward.default
_batch_backward = torch.ops.aten.native_batch_norm_backward.default

Grads = tuple[Any, Any, Any]  # of input, weight and bias; None for a missing parameter


class Kernel(Protocol):
    """One norm in one call. It keeps all that backward needs, so later changes of the module have no effect.

    ``x`` holds all tokens (rank 3), or the [CLS] rows (count, channels). Weight and bias have the dtype of ``x``.
    """

    call: Call
    saved: Sequence[Tensor] = ()  # one entry per token

    def __init__(self, call: Call) -> None:
        self.call = call

    @staticmethod
    def serves(norm: Any, x: Tensor, of_cls: bool) -> bool: ...  # whether the kernel supports ``norm`` and input ``x``

    def begin(self, norm: Any, x: Tensor) -> None:
        """Starts work, such as an all-reduce, that overlaps with other work; ``forward`` of the same input ends it."""

    def begin_backward(self, grad: Tensor, x: Tensor, weight: Any) -> None:
        """The same for ``backward``."""

    def forward(self, norm: Any, x: Tensor, weight: Any, bias: Any) -> Tensor: ...

    def backward(self, grad: Tensor, x: Tensor, weight: Any, bias: Any) -> Grads: ...

    # the output of ``forward`` in differentiable operations, for second derivatives
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
    """``ScaleShift``: one scale and one shift per channel."""

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
    """``nn.BatchNorm1d`` with running statistics, over [CLS] or over tokens without padding."""

    stats: Statistics
    native = False  # whether torch's own batch norm does forward and backward
    correction: tuple[Tensor, Tensor] | None = None  # factor and offset to the statistics of the whole step
    exchange: Exchange | None = None  # an all-reduce that is running
    sums: tuple[Tensor, Tensor] | None = None  # gradients of weight and bias during the all-reduce

    @staticmethod
    def serves(norm: Any, x: Tensor, of_cls: bool) -> bool:
        dtype = getattr(norm.running_mean, "dtype", None)
        if of_cls:
            return dtype == torch.promote_types(x.dtype, torch.float32)
        return x.is_cpu and dtype == x.dtype and (norm.weight is None or norm.weight.dtype == x.dtype)

    def forward(self, norm: Any, x: Tensor, weight: Any, bias: Any) -> Tensor:
        self.eps = norm.eps
        of_cls, sync = x.dim() == 2, self.call.sync
        several = sync or self.call.step is not None  # statistics span other ranks or other batches of the step
        alone = of_cls and x.shape[0] <= self.call.num_cls  # a single sample
        if not norm.training or (alone and not several):
            self.stats = statistics.running_statistics(norm, x.dtype)
        elif of_cls and not several:
            return self._native(norm, x, weight, bias)
        else:
            self.stats = self._measure(norm, x)
        scale, shift = statistics.scale_shift(self.stats, *statistics.corrected(self.correction, weight, bias))
        return torch.addcmul(shift, x, scale)

    def _native(self, bn: Any, x: Tensor, weight: Any, bias: Any) -> Tensor:
        """One operation instead of eight. Over all tokens, where memory bandwidth dominates, the eight are faster."""
        self.native, running, factor = True, (None, None), 0.0
        if self.call.track:
            bn.num_batches_tracked.add_(1)
            running, factor = (bn.running_mean, bn.running_var), statistics.tracking_factor(bn)
        out, mean, invstd = torch.native_batch_norm(x, weight, bias, *running, True, factor, self.eps)
        if self.call.track:
            statistics.bound(bn.running_var)
        self.stats = Statistics(mean, invstd, 1.0 / x.shape[0])
        return out

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        if x.dim() == 2:
            return *statistics.moments(x), x.shape[0]
        return statistics.token_moments(x, self.call.num_cls, self.call.dim, self.call.padding)

    def begin(self, norm: Any, x: Tensor) -> None:
        if self.call.sync and norm.training:
            self.exchange = statistics.exchange_moments(*self._moments(x))

    def _measure(self, bn: Any, x: Tensor) -> Statistics:
        call = self.call
        if call.sync:
            if self.exchange is None:
                self.begin(bn, x)
            assert self.exchange is not None
            mean, var, total = statistics.pooled_moments(self.exchange, x.dtype)
            self.exchange = None
        else:
            mean, var, count = self._moments(x)
            total = torch.as_tensor(float(count), device=x.device)
        if call.step is not None:
            stats = statistics.noted_statistics(bn, mean, var, total, call.step)
            self.correction = None if call.step.measuring else call.step.correct(bn, stats)
            return stats
        if call.sync:
            return statistics.batch_statistics(bn, mean, var, total, call.track)
        if count < 2:
            return statistics.running_statistics(bn, x.dtype)
        if call.track:
            statistics.track_statistics(bn, mean, var * (count / (count - 1)))
        return Statistics(mean, (var + self.eps).rsqrt_(), 1.0 / count)

    def begin_backward(self, grad: Tensor, x: Tensor, weight: Any) -> None:
        if self.native:
            return
        mean, invstd, _ = self.stats
        dweight = dbias = torch.zeros_like(mean)
        if x.numel():  # on an empty input torch's kernel divides by zero and kills the process
            rows, wanted = (grad.view(-1, x.shape[-1]), x.view(-1, x.shape[-1])), (False, True, True)
            _, dweight, dbias = _batch_backward(*rows, weight, None, None, mean, invstd, True, self.eps, wanted)
        self.sums = dweight, dbias
        if self.call.sync and not self.stats.fixed:
            self.exchange = Exchange(torch.stack(self.sums).double())

    def backward(self, grad: Tensor, x: Tensor, weight: Any, bias: Any) -> Grads:
        mean, invstd, inv_count = self.stats
        if self.native:
            return _batch_backward(grad, x, weight, None, None, mean, invstd, True, self.eps, (True, True, True))
        if self.sums is None:
            self.begin_backward(grad, x, weight)
        assert self.sums is not None
        (dweight, dbias), exchange = self.sums, self.exchange
        self.sums = self.exchange = None
        factor, _ = statistics.corrected(self.correction, weight, None)
        scale = invstd if factor is None else invstd * factor
        if self.stats.fixed:
            return grad * scale, dweight, dbias
        pooled = torch.stack([dweight, dbias]) if exchange is None else exchange.wait().to(dweight.dtype)
        pooled = pooled * inv_count * scale
        if self.correction is not None:
            dweight = torch.addcmul(dbias * self.correction[1], dweight, self.correction[0])
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
        return statistics.normalise(stats, x, *statistics.corrected(self.correction, weight, bias))
