"""Batch statistics: measuring them over rows and processes, tracking them, turning them into a scale and a shift."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sepnorm.arguments import number
from sepnorm.distributed import AllReduce, Exchange
from sepnorm.errors import SepNormError
from sepnorm.layer.padding import in_layout, rows_that_count

MOST_CHANNELS = 2**31 - 1


class StepStatistics:
    """Statistics over all batches of one optimiser step. A first pass measures them; a second pass uses them.

    The forward pass equals that of one large batch. The gradient is that of batch renormalisation (Ioffe, NeurIPS
    2017): it flows through the statistics of each batch, and the correction to those of the step is a constant. So no
    batch has to be kept in memory until the others have been seen.
    """

    def __init__(self) -> None:
        self.measuring = True
        self._seen: dict[Any, list[tuple[Tensor, Tensor, Tensor]]] = {}

    def note(self, bn: Any, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Records mean, biased variance and row count of one batch in the first pass."""
        self._seen.setdefault(bn, []).append((mean.detach(), var.detach(), count.detach().to(mean)))

    def finish(self) -> None:
        """Ends the first pass: running statistics move once, towards the statistics of the step."""
        self.measuring = False
        for bn in self._seen:
            mean, var, count = self._of(bn)
            if bn.running_mean is not None:
                track_statistics(bn, mean, var * count / (count - 1).clamp(min=1), count > 1)

    def correct(self, bn: Any, stats: Statistics) -> tuple[Tensor, Tensor]:
        """Factor and offset that turn rows normalised by one batch's ``stats`` into rows normalised by the step's."""
        mean, var, _ = self._of(bn)
        invstd = (var + bn.eps).rsqrt()
        own_mean, own_invstd = stats.mean.detach(), stats.invstd.detach()
        return invstd / own_invstd, (own_mean - mean) * invstd

    def _of(self, bn: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, biased variance and count over all recorded rows."""
        means, variances, counts = (torch.stack(part) for part in zip(*self._seen[bn], strict=True))
        shares = (counts / counts.sum().clamp(min=1))[:, None]
        mean = (means * shares).sum(0)
        return mean, ((variances + (means - mean).square()) * shares).sum(0), counts.sum()


class Call(NamedTuple):
    """The settings of one call of the layer."""

    num_cls: int  # number of [CLS] tokens; 0 for a shared norm
    dim: int  # dimension of the tokens
    padding: Tensor | None = None  # (batch, tokens), True where padded; only if batch statistics need it
    track: bool = True  # whether running statistics move
    sync: bool = False  # whether batch statistics are over all processes
    step: StepStatistics | None = None  # set if batch statistics are over several batches


class Statistics(NamedTuple):
    """Mean and 1/sigma to normalise with, and 1/count if gradients flow through them (else 0)."""

    mean: Tensor
    invstd: Tensor
    inv_count: Tensor | float

    @property
    def fixed(self) -> bool:
        """Whether they are known to be independent of the batch."""
        return isinstance(self.inv_count, float) and self.inv_count == 0.0


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of rows (count, channels); zeros for no rows."""
    if rows.shape[0] == 0:
        return rows.new_zeros(rows.shape[1:]), rows.new_zeros(rows.shape[1:])
    if rows.device.type in ("cpu", "cuda"):  # one pass; var_mean is 10x slower on the CPU
        return torch.batch_norm_update_stats(rows, None, None, 0.0)
    var, mean = torch.var_mean(rows, 0, correction=0)
    return mean, var


def token_moments(x: Tensor, num_cls: int, dim: int, padding: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """Mean, biased variance and count over all tokens except [CLS] and padding. ``x`` is contiguous."""
    if padding is not None or dim == 0 or num_cls == 0 or x.shape[0] == 1:
        rows = rows_that_count(x, "tokens", num_cls, dim, padding)
        return *moments(rows), rows.shape[0]
    # Per position and channel first, then pooled over token positions. This leaves [CLS] out without copying the rest,
    # and without subtracting sums that an outlying [CLS] would dominate.
    count, tokens, width = x.shape
    mean, var = (part.view(tokens, width)[num_cls:] for part in moments(x.view(count, tokens * width)))
    pooled = mean.mean(0)
    return pooled, var.mean(0) + (mean - pooled).square_().mean(0), count * (tokens - num_cls)


def differentiable_moments(x: Tensor, dim: int, padding: Tensor | None, sync: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count of tokens without ``padding`` (batch, tokens), over all processes if ``sync``.

    In differentiable operations and without data-dependent shapes. Values at padding must be finite.
    """
    rows = x.reshape(-1, x.shape[-1])
    keep = rows.new_ones(rows.shape[0], 1) if padding is None else ~in_layout(padding, dim).reshape(-1, 1)
    keep = keep.to(rows.dtype)
    packed = torch.cat([keep.sum().view(1), (rows * keep).sum(0)])
    packed = AllReduce.apply(packed) if sync else packed
    total = packed[0].detach()
    mean = packed[1:] / total.clamp(min=1)
    squares = ((rows - mean) * keep).square().sum(0)
    return mean, (AllReduce.apply(squares) if sync else squares) / total.clamp(min=1), total


def exchange_moments(mean: Tensor, var: Tensor, count: int) -> Exchange:
    """Starts to pool mean and biased variance of ``count`` rows over processes: one all-reduce, in double precision."""
    wide_mean, wide_var = mean.double(), var.double()
    total = torch.as_tensor(count, dtype=torch.float64, device=mean.device).reshape(1)
    return Exchange(torch.cat([total, wide_mean * total, (wide_var + wide_mean.square()) * total]))


def pooled_moments(exchange: Exchange, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count over all processes."""
    packed = exchange.wait()
    total, sums, squares = packed.split([1, len(packed) // 2, len(packed) // 2])
    mean = sums / total.clamp(min=1)
    var = (squares / total.clamp(min=1) - mean.square()).clamp_(min=0)
    var = torch.where(squares.isinf(), squares, var)  # infinity minus infinity would be NaN
    return mean.to(dtype), var.to(dtype), total[0]


def batch_statistics(bn: Any, mean: Tensor, var: Tensor, total: Tensor, track: bool) -> Statistics:
    """Statistics that normalise a training batch of ``total`` rows; the running ones if there are fewer than two rows.

    Decided on the device: reading ``total`` would stall an accelerator and break compiled graphs.
    """
    enough = total > 1
    if bn.running_mean is not None:
        mean = torch.where(enough, mean, bn.running_mean.to(mean.dtype))
        var = torch.where(enough, var, bn.running_var.to(var.dtype))
        if track:
            unbiased = torch.where(enough, total / (total - 1).clamp(min=1), 1.0).to(var.dtype)
            track_statistics(bn, mean.detach(), var.detach() * unbiased, enough)
    return Statistics(mean, (var + bn.eps).rsqrt(), torch.where(enough, 1.0 / total, 0.0).to(mean.dtype))


def noted_statistics(bn: Any, mean: Tensor, var: Tensor, total: Tensor, step: StepStatistics) -> Statistics:
    """Statistics of one of several batches of a step. No gradient flows through those of a single row."""
    if step.measuring:
        step.note(bn, mean, var, total)
    enough = total > 1
    mean, var = torch.where(enough, mean, mean.detach()), torch.where(enough, var, var.detach())
    return Statistics(mean, (var + bn.eps).rsqrt(), torch.where(enough, 1.0 / total, 0.0).to(mean.dtype))


def corrected(
    correction: tuple[Tensor, Tensor] | None, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias with the correction of ``StepStatistics.correct`` folded in."""
    if correction is None:
        return weight, bias
    factor, shift = correction
    if weight is not None:
        factor, shift = factor * weight, shift * weight
    return factor, shift if bias is None else shift + bias


def running_statistics(bn: Any, dtype: torch.dtype) -> Statistics:
    """The running statistics of ``bn``, as copies without gradient: a later batch changes the originals."""
    return Statistics(bn.running_mean.to(dtype, copy=True), (bn.running_var.to(dtype) + bn.eps).rsqrt_(), 0.0)


def normalise(stats: Statistics, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Batch norm of (..., channels) with ``stats``, in differentiable operations."""
    out = (x - stats.mean) * stats.invstd
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def scale_shift(stats: Statistics, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The scale and shift of a batch norm with ``stats``."""
    scale = stats.invstd if weight is None else stats.invstd * weight
    shift = -stats.mean * scale if bias is None else torch.addcmul(bias, stats.mean, scale, value=-1)
    return scale, shift


def track_statistics(bn: Any, mean: Tensor, unbiased_var: Tensor, enough: Tensor | bool = True) -> None:
    """Moves the running statistics of ``bn`` as ``nn.BatchNorm1d`` does; not at all unless ``enough``."""
    bn.num_batches_tracked.add_(enough)
    factor = tracking_factor(bn)
    for running, new in ((bn.running_mean, mean), (bn.running_var, unbiased_var)):
        running.lerp_(new.to(running.dtype), factor)
    bound(bn.running_var)


def checked_momentum(momentum: Any) -> float | None:
    """The momentum as a float from 0 to 1, or None for the mean of all batches."""
    momentum = None if momentum is None else number(momentum, "momentum", 0)
    if momentum is not None and momentum > 1:
        raise SepNormError(
            f"momentum is the share of a new batch in running statistics, from 0 to 1, or None for the mean of all batches, "
            f"found {momentum:g}."
        )
    return momentum


def tracking_factor(bn: Any) -> float:
    """Weight of the newest batch, which ``num_batches_tracked`` already counts, in the running statistics."""
    return bn.momentum if bn.momentum is not None else 1.0 / float(bn.num_batches_tracked.clamp(min=1))


def bound(var: Tensor) -> None:
    """Replaces an overflowed variance, as of a channel at 1e20, by the largest finite number, in place.

    Infinity would stay in a running variance for ever and silence the channel in evaluation. Non-finite means are kept,
    and still reveal non-finite input.
    """
    most = torch.finfo(var.dtype).max
    var.data.nan_to_num_(nan=most, posinf=most)  # .data, as torch's batch norm saves it for backward without using it
