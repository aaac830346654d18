"""Sums and rows over all processes that train together, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def many() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class AllReduce(torch.autograd.Function):
    """Sum over all processes; the gradient of a sum over all is again a sum over all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        out: Tensor = AllReduce.apply(grads[0])
        return out


def total(x: Tensor) -> Tensor:
    """The sum of ``x`` over all processes; ``x`` itself where there is one."""
    out: Tensor = AllReduce.apply(x) if many() else x
    return out


def gather(rows: Tensor) -> tuple[Tensor, int]:
    """The rows (count, ...) of all processes, in the order of ranks, and where those of this one begin.

    As a sum of zero-padded parts, so that processes may have different numbers of rows and the gradient reaches them all.
    """
    if not many():
        return rows, 0
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=rows.device)
    counts[dist.get_rank()] = rows.shape[0]
    dist.all_reduce(counts)
    sizes = counts.tolist()
    start = sum(sizes[: dist.get_rank()])
    before = rows.new_zeros(start, *rows.shape[1:])
    after = rows.new_zeros(sum(sizes) - start - rows.shape[0], *rows.shape[1:])
    return total(torch.cat([before, rows, after])), start
