"""Collectives: rank, world size, and differentiable sums and gathers over processes."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sepnorm.errors import SepNormError, one_line

_PARTED: list[Any] = []  # process groups that were destroyed, kept alive on purpose (see ``part``)
_SHARED_BY = [1]  # runs of a comparison that are beside each other on this machine


def many() -> bool:
    """Whether more than one process trains together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """Rank of this process. Before the process group exists, it is read from what torchrun or accelerate set."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    number = _told("RANK", 0)
    if number >= world():
        raise SepNormError(
            f"RANK={number} must be below WORLD_SIZE={world()}: start the processes with torchrun or accelerate."
        )
    return number


def world() -> int:
    """World size. Before the process group exists, it is read from what torchrun or accelerate set."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return max(1, _told("WORLD_SIZE", 1))


def _told(name: str, otherwise: int) -> int:
    """An integer from an environment variable of torchrun or accelerate."""
    text = os.environ.get(name, str(otherwise))
    if not text.strip().isdecimal():
        raise SepNormError(
            f"{name}={text!r} in the environment is not an integer: unset it, or start with torchrun or accelerate."
        )
    return int(text)


def cores() -> int:
    """Number of cores for this process: an equal share of those that it and others like it may use.

    Which cores a process may use is known on Linux only.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, allowed // max(_SHARED_BY[0], _told("LOCAL_WORLD_SIZE", 1)))


def share_cores(runs: int) -> None:
    """Says that so many runs beside each other share the cores of this process."""
    _SHARED_BY[0] = runs


def share(count: int) -> slice:
    """The slice of ``count`` samples that this rank processes."""
    return slice(rank() * count // world(), (rank() + 1) * count // world())


def join(seconds: float) -> None:
    """Initialises a gloo process group for processes started by torchrun or accelerate, if there is none yet.

    Collectives time out after ``seconds``. On CPUs accelerate always uses 30 minutes, whatever is configured.
    """
    if world() > 1 and not dist.is_initialized():
        try:
            dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
        except (
            ValueError,
            RuntimeError,
        ) as error:  # a variable is not set, nobody is at the address, or some never come
            raise SepNormError(
                f"the {world()} processes of WORLD_SIZE did not meet: {one_line(error)}. Start all of them with torchrun or "
                "accelerate, or unset WORLD_SIZE for a single process."
            ) from error


def check_joined() -> None:
    """Refuses processes that would train independently: accelerate joins those on accelerators only by LOCAL_RANK."""
    if world() > 1 and not many():
        raise SepNormError(
            f"WORLD_SIZE={world()} in the environment, but the processes are not joined: start them with torchrun or accelerate, "
            "or unset WORLD_SIZE for a single process."
        )


def all_equal(number: int, device: torch.device) -> bool:
    """Whether all processes have the same number."""
    if not many():
        return True
    ends = torch.tensor([number, -number], device=device)
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    return bool(ends[0] == -ends[1])


def meet() -> None:
    """A barrier over all processes."""
    if many():
        dist.barrier()


def part() -> None:
    """Destroys the process group after a barrier. Each process continues alone."""
    if many():
        dist.barrier()
        # Keep a reference. If DistributedDataParallel held the last one, freeing it would deadlock: the threads of the
        # group wait for the interpreter, which waits for them.
        _PARTED.append(dist.group.WORLD)
        dist.destroy_process_group()


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether FSDP2 shards the module, so that its full weights exist only while it is called."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported, so no module can be sharded
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


class AllReduce(torch.autograd.Function):
    """Differentiable sum over all processes. The gradient is a sum over all processes too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        out: Tensor = AllReduce.apply(grads[0])
        return out


class Exchange:
    """An asynchronous in-place sum over all processes, which overlaps with other work."""

    def __init__(self, x: Tensor) -> None:
        self._sum, self._work = x, dist.all_reduce(x, async_op=True)

    def wait(self) -> Tensor:
        """Waits for the sum and returns it."""
        self._work.wait()
        return self._sum


def total(x: Tensor) -> Tensor:
    """The sum of ``x`` over all processes, differentiable; ``x`` itself in a single process."""
    out: Tensor = AllReduce.apply(x) if many() else x
    return out


def mean_over_all(terms: Tensor, count: Tensor) -> Tensor:
    """Sum of ``terms`` over sum of ``count``, both over all processes: the mean over the global batch."""
    return total(terms.sum()) / total(count.to(terms)).clamp(min=1)


def gather(rows: Tensor) -> tuple[Tensor, int]:
    """All rows (count, ...) of all ranks in rank order, and the index where the rows of this rank start.

    Computed as a sum of zero-padded parts, so that ranks may hold different numbers of rows and gradients reach all.
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
