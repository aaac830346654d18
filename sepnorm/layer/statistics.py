"""Batch statistics: measured over rows or tokens, over all processes, tracked, and turned into a scale and a shift."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sepnorm.distributed import AllReduce


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


def differentiable_moments(rows: Tensor, padding: Tensor | None, sync: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count of (count, channels) without rows where ``padding`` (count, 1), over all processes.

    By differentiable operations and without shapes that depend on data. Padding is to be finite.
    """
    keep = rows.new_ones(rows.shape[0], 1) if padding is None else (~padding).to(rows.dtype)
    packed = torch.cat([keep.sum().view(1), (rows * keep).sum(0)])
    packed = AllReduce.apply(packed) if sync else packed
    total = packed[0].detach()
    mean = packed[1:] / total.clamp(min=1)
    squares = ((rows - mean).square() * keep).sum(0)
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
    return wide_mean.to(mean.dtype), wide_var.to(var.dtype), total[0]


def track_statistics(bn: Any, mean: Tensor, unbiased_var: Tensor, enough: Tensor | bool = True) -> None:
    """Moves the running statistics of ``bn`` towards these, as ``nn.BatchNorm1d`` does; not at all unless ``enough``."""
    bn.num_batches_tracked.add_(enough)
    factor = bn.momentum if bn.momentum is not None else 1.0 / float(bn.num_batches_tracked.clamp(min=1))
    for running, new in ((bn.running_mean, mean), (bn.running_var, unbiased_var)):
        running.copy_(running.to(new.dtype).lerp(new, factor))


def batch_statistics(bn: Any, mean: Tensor, var: Tensor, count: int, track: bool, sync: bool) -> Statistics:
    """Statistics that normalise in training; with ``sync`` those of all processes, or running ones for a single row."""
    if not sync:
        if track:
            track_statistics(bn, mean, var * (count / (count - 1)))
        return Statistics(mean, (var + bn.eps).rsqrt_(), 1.0 / count)
    mean, var, total = all_reduce_moments(mean, var, count)
    mean, var, enough = or_running(bn, mean, var, total)
    if track:
        track_statistics(bn, mean, unbiased(var, total), enough)
    return Statistics(mean, (var + bn.eps).rsqrt_(), torch.where(enough, 1.0 / total, 0.0).to(mean.dtype))


def or_running(bn: Any, mean: Tensor, var: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of a batch, or the running ones where it has fewer than two rows; and whether it has.

    Decided on the device: asking for the number would make an accelerator wait, and a graph could not be compiled.
    """
    enough = total > 1
    if bn.running_mean is None:
        return mean, var, enough
    return (
        torch.where(enough, mean, bn.running_mean.to(mean.dtype)),
        torch.where(enough, var, bn.running_var.to(var.dtype)),
        enough,
    )


def unbiased(var: Tensor, total: Tensor) -> Tensor:
    """The variance that batch norm keeps, from the biased one of ``total`` rows; as it is where there are fewer than two."""
    return var * torch.where(total > 1, total / (total - 1).clamp(min=1), 1.0).to(var.dtype)


def running_statistics(bn: Any, dtype: torch.dtype) -> Statistics:
    """The running statistics of ``bn``, through which no gradient flows; copies, since a later batch changes those."""
    return Statistics(bn.running_mean.to(dtype, copy=True), (bn.running_var.to(dtype) + bn.eps).rsqrt_(), 0.0)


def scale_shift(stats: Statistics, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """What batch norm with ``stats`` multiplies by and adds."""
    scale = stats.invstd if weight is None else stats.invstd * weight
    shift = -stats.mean * scale if bias is None else torch.addcmul(bias, stats.mean, scale, value=-1)
    return scale, shift
