"""Batch statistics: measured over rows or tokens, over all processes, tracked, and turned into a scale and a shift."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sepnorm.distributed import AllReduce
from sepnorm.layer.padding import in_layout, rows_that_count


class Call(NamedTuple):
    """What a call of the layer is besides its input and its norms."""

    num_cls: int  # how many tokens are [CLS]; 0 where one norm serves all
    dim: int  # which dimension counts tokens
    padding: Tensor | None = None  # (batch, tokens), True where batch statistics over tokens leave something out
    track: bool = True  # whether running statistics move
    sync: bool = False  # whether batch statistics are those of all processes


class Statistics(NamedTuple):
    """Mean and 1/sigma that normalise, and 1/count where the gradient flows through them (0 where it does not)."""

    mean: Tensor
    invstd: Tensor
    inv_count: Tensor | float

    @property
    def fixed(self) -> bool:
        """Whether they are known to be no function of the batch."""
        return isinstance(self.inv_count, float) and self.inv_count == 0.0


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of (count, channels) over the rows; of no rows, zero and zero."""
    if rows.shape[0] == 0:
        return rows.new_zeros(rows.shape[1:]), rows.new_zeros(rows.shape[1:])
    if rows.device.type in ("cpu", "cuda"):  # one pass; var_mean is 10x slower on the CPU
        return torch.batch_norm_update_stats(rows, None, None, 0.0)
    var, mean = torch.var_mean(rows, 0, correction=0)
    return mean, var


def token_moments(x: Tensor, num_cls: int, dim: int, padding: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """Mean and biased variance over all tokens but [CLS] and padding, and how many there were. ``x`` contiguous."""
    if padding is not None or dim == 0 or num_cls == 0 or x.shape[0] == 1:
        rows = rows_that_count(x, "tokens", num_cls, dim, padding)
        return *moments(rows), rows.shape[0]
    # Per position and channel first, then pooled over the positions that are tokens: leaves [CLS] out without
    # copying the rest, and without subtracting sums that an outlying [CLS] would dominate.
    count, tokens, width = x.shape
    mean, var = (part.view(tokens, width)[num_cls:] for part in moments(x.view(count, tokens * width)))
    pooled = mean.mean(0)
    return pooled, var.mean(0) + (mean - pooled).square_().mean(0), count * (tokens - num_cls)


def differentiable_moments(x: Tensor, dim: int, padding: Tensor | None, sync: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count of tokens without ``padding`` (batch, tokens), over all processes.

    By differentiable operations and without shapes that depend on data. Padding is to be finite.
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


def all_reduce_moments(mean: Tensor, var: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count over all processes: one all-reduce of two vectors and a number, in double."""
    wide_mean, wide_var = mean.double(), var.double()
    total = torch.as_tensor(count, dtype=torch.float64, device=mean.device).reshape(1)
    packed = torch.cat([total, wide_mean * total, (wide_var + wide_mean.square()) * total])
    torch.distributed.all_reduce(packed)
    total, sums, squares = packed.split([1, mean.numel(), mean.numel()])
    wide_mean = sums / total.clamp(min=1)
    wide_var = (squares / total.clamp(min=1) - wide_mean.square()).clamp_(min=0)
    wide_var = torch.where(squares.isinf(), squares, wide_var)  # too large a number minus another is none
    return wide_mean.to(mean.dtype), wide_var.to(var.dtype), total[0]


def batch_statistics(bn: Any, mean: Tensor, var: Tensor, total: Tensor, track: bool) -> Statistics:
    """Statistics of ``total`` rows that normalise in training, or running ones where there are fewer than two.

    Decided on the device: asking for the number would make an accelerator wait, and a graph could not be compiled.
    """
    enough = total > 1
    if bn.running_mean is not None:
        mean = torch.where(enough, mean, bn.running_mean.to(mean.dtype))
        var = torch.where(enough, var, bn.running_var.to(var.dtype))
        if track:
            unbiased = torch.where(enough, total / (total - 1).clamp(min=1), 1.0).to(var.dtype)
            track_statistics(bn, mean.detach(), var.detach() * unbiased, enough)
    return Statistics(mean, (var + bn.eps).rsqrt(), torch.where(enough, 1.0 / total, 0.0).to(mean.dtype))


def running_statistics(bn: Any, dtype: torch.dtype) -> Statistics:
    """The running statistics of ``bn``, through which no gradient flows; copies, since a later batch changes those."""
    return Statistics(bn.running_mean.to(dtype, copy=True), (bn.running_var.to(dtype) + bn.eps).rsqrt_(), 0.0)


def normalise(stats: Statistics, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Batch norm of (..., channels) with ``stats``, by differentiable operations."""
    out = (x - stats.mean) * stats.invstd
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def scale_shift(stats: Statistics, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """What batch norm with ``stats`` multiplies by and adds."""
    scale = stats.invstd if weight is None else stats.invstd * weight
    shift = -stats.mean * scale if bias is None else torch.addcmul(bias, stats.mean, scale, value=-1)
    return scale, shift


def track_statistics(bn: Any, mean: Tensor, unbiased_var: Tensor, enough: Tensor | bool = True) -> None:
    """Moves the running statistics of ``bn`` towards these, as ``nn.BatchNorm1d`` does; not at all unless ``enough``."""
    bn.num_batches_tracked.add_(enough)
    factor = tracking_factor(bn)
    for running, new in ((bn.running_mean, mean), (bn.running_var, unbiased_var)):
        running.lerp_(new.to(running.dtype), factor)
    bound(bn.running_var)


def tracking_factor(bn: Any) -> float:
    """How far running statistics move towards those of a batch that ``num_batches_tracked`` counts already."""
    return bn.momentum if bn.momentum is not None else 1.0 / float(bn.num_batches_tracked.clamp(min=1))


def bound(var: Tensor) -> None:
    """Puts the largest number there is for a variance that is too large, as that of a channel at 1e20 (in place).

    Infinity would stay in a running variance for ever and silence the channel in evaluation. A mean that is not finite
    still tells of input that is not.
    """
    most = torch.finfo(var.dtype).max
    var.data.nan_to_num_(nan=most, posinf=most)  # as data: torch's batch norm saves what it tracks, and does not use it
