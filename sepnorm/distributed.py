"""What processes that train together have to do with each other: who does what, and sums and rows over all, with gradients."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sepnorm.errors import SepNormError

_PARTED: list[Any] = []  # groups of processes that have nothing to do with each other any more


def many() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The number of this process, also before the processes have met, as torchrun and accelerate tell it."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    number = _told("RANK", 0)
    if number >= world():
        raise SepNormError(
            f"RANK={number} is not among WORLD_SIZE={world()} processes: start them by torchrun or accelerate."
        )
    return number


def world() -> int:
    """How many processes train together, also before they have met."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return max(1, _told("WORLD_SIZE", 1))


def _told(name: str, otherwise: int) -> int:
    """A number that torchrun or accelerate put into the environment."""
    text = os.environ.get(name, str(otherwise))
    if not text.strip().isdecimal():
        raise SepNormError(
            f"the environment has {name}={text!r}, which is no number of a process: unset it, or start by torchrun or accelerate."
        )
    return int(text)


def share(count: int) -> slice:
    """Which of ``count`` samples of a batch are this process's."""
    return slice(rank() * count // world(), (rank() + 1) * count // world())


def meet() -> None:
    """Waits until all processes are here."""
    if many():
        dist.barrier()


def part() -> None:
    """After this, processes have nothing to do with each other any more."""
    if many():
        dist.barrier()
        # Kept, since DistributedDataParallel must not have the last of it: freed from there, its threads wait for the
        # interpreter, which waits for them.
        _PARTED.append(dist.group.WORLD)
        dist.destroy_process_group()


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


def mean_over_all(terms: Tensor, count: Tensor) -> Tensor:
    """The sum of ``terms`` of all processes over the sum of their ``count``: what one process with all samples has."""
    return total(terms.sum()) / total(count.to(terms)).clamp(min=1)


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
