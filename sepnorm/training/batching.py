"""Which samples a step has, and in what order: a function of the seed and the number of the step alone.

So arms of one seed see the same, and a run that is resumed does what the uninterrupted one would have done, to the bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sepnorm.data.choices import seeded
from sepnorm.distributed import rank, share, world
from sepnorm.errors import SepNormError
from sepnorm.files import write_text
from sepnorm.training.configs import RunConfig

#: Makes a batch of the samples with these numbers, or of the own part of them; random numbers are drawn for all of them,
#: so that they do not depend on how many processes there are.
Make = Callable[[Tensor, slice, torch.Generator], dict[str, Any]]
#: The numbers of all samples in the order of an epoch, for batches of a size.
Order = Callable[[int, torch.Generator], Tensor]


@dataclass(eq=False)
class Samples:
    """What batches are made of: how many samples there are, a batch of some, and their order if it is not a random one."""

    count: int
    make: Make
    order: Order | None = None

    def ordered(self, batch: int, generator: torch.Generator) -> Tensor:
        if self.order is None:
            return torch.randperm(self.count, generator=generator)
        return self.order(batch, generator)


class Steps(Dataset):
    """The batches of a run, one for each step, and how the rate of learning changes, as transformers calls it.

    Of several processes each has the same samples and the same random numbers, and makes its own part, ``processes.share``.
    """

    def __init__(self, config: RunConfig, samples: Samples, schedule: str = "cosine") -> None:
        if samples.count < 2:
            raise SepNormError(f"training needs at least two samples, found {samples.count}.")
        self.config, self.samples, self.schedule = config, samples, schedule
        _check_share(config, f"{samples.count} samples", samples.count)
        self.batch = min(config.batch_size, samples.count - samples.count % world())
        self.per_epoch = samples.count // self.batch  # a short last batch would be normalised by other statistics
        batches = config.epochs * self.per_epoch
        self.steps = min(math.ceil(batches / config.accumulation), config.max_steps or batches)
        self._epoch, self._order = -1, torch.empty(0)

    def __len__(self) -> int:
        return self.steps * self.config.accumulation

    def __getitem__(self, number: int) -> dict[str, Any]:
        chosen = self.chosen(number)
        return self.samples.make(chosen, share(len(chosen)), seeded(self.config.order_seed, number, 2))

    def chosen(self, number: int) -> Tensor:
        """The numbers of the samples in a batch."""
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.samples.ordered(self.batch, seeded(self.config.order_seed, epoch, 1))
        return self._order[place * self.batch : (place + 1) * self.batch]

    def named(self, step: int) -> str:
        """What a message calls the samples of a step, counted from 0."""
        size = self.config.accumulation
        found = torch.cat([self.chosen(number) for number in range(step * size, (step + 1) * size)]).tolist()
        return f"samples {', '.join(map(str, found[:8]))}{' …' if len(found) > 8 else ''}"

    def save(self, checkpoint: Path) -> None:
        """Nothing has to be kept: every step can be made at any time."""

    def take_up(self, checkpoint: Path) -> None:
        """Nothing was kept."""


class Source(Protocol):
    """What a stream is read from: the next samples of this process, and where it stands, as JSON can hold it."""

    def take(self, count: int) -> list[Any]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class StreamedSteps(Steps):
    """Batches of data larger than memory: a buffer of samples is read, shuffled and used up, then the next.

    Of several processes each reads a part of the data, which is its part of every batch. A checkpoint says where the
    buffer began, so that a run which goes on reads at most one buffer again.
    """

    def __init__(
        self,
        config: RunConfig,
        buffer: int,
        source: Source,
        read: Callable[[list[Any]], Samples],
        schedule: str = "cosine",
    ) -> None:
        if config.max_steps is None:
            raise SepNormError("a stream has no end: say how long to train by --set max_steps=STEPS.")
        _check_share(config, "a stream")
        if buffer < config.batch_size:
            raise SepNormError(
                f"stream={buffer} samples at a time are less than a batch of {config.batch_size}: take a multiple of it."
            )
        self.config, self.source, self.read, self.schedule = config, source, read, schedule
        self.batch, self.steps = config.batch_size, config.max_steps
        self.per_buffer = buffer // self.batch
        self._buffer, self._next = -1, 0
        self._began: dict[str, Any] = {}
        self._order = torch.empty(0)

    def __getitem__(self, number: int) -> dict[str, Any]:
        chosen = self.chosen(number)
        return self.samples.make(chosen, slice(None), seeded(self.config.order_seed, number * world() + rank(), 2))

    def chosen(self, number: int) -> Tensor:
        """The places in the buffer of this process's part of a batch."""
        buffer, place = divmod(number, self.per_buffer)
        while self._buffer != buffer:
            if buffer < self._next:
                raise SepNormError(f"a stream cannot go back from its buffer {self._next - 1} to {buffer}.")
            self._read_next()
        own = self.batch // world()
        return self._order[place * own : (place + 1) * own]

    def _read_next(self) -> None:
        self._began = {"buffer": self._next, "processes": world(), "source": self.source.state()}
        own = self.batch // world()
        self.samples = self.read(self.source.take(self.per_buffer * own))
        number = self._next * world() + rank()
        self._order = self.samples.ordered(own, seeded(self.config.order_seed, number, 1))
        self._buffer, self._next = self._next, self._next + 1

    def named(self, step: int) -> str:
        return f"samples of buffer {step * self.config.accumulation // self.per_buffer} of the stream"

    def save(self, checkpoint: Path) -> None:
        write_text(checkpoint / f"stream-{rank()}.json", json.dumps(self._began))

    def take_up(self, checkpoint: Path) -> None:
        path = checkpoint / f"stream-{rank()}.json"
        kept: dict[str, Any] = (
            json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"processes": "other"}
        )
        if kept["processes"] != world():
            raise SepNormError(
                f"{checkpoint} was written by {kept['processes']} processes that shared a stream, and now there are {world()}: "
                "go on with as many, or begin anew in another folder."
            )
        self._next = int(kept["buffer"])
        self.source.restore(kept["source"])


def by_length(lengths: Sequence[int] | Tensor, window: int) -> Order:
    """A random order, sorted by length within windows of some batches; then the batches are shuffled: little is padded."""
    sizes = torch.as_tensor(lengths)

    def order(batch: int, generator: torch.Generator) -> Tensor:
        # what is left over is drawn before sorting, or it would always be the longest
        drawn = torch.randperm(len(sizes), generator=generator)[: len(sizes) // batch * batch]
        windows = [part[sizes[part].argsort(stable=True)] for part in drawn.split(window * batch)]
        batches = torch.cat(windows).view(-1, batch)
        return batches[torch.randperm(len(batches), generator=generator)].flatten()

    return order


def _check_share(config: RunConfig, what: str, count: int | None = None) -> None:
    if config.batch_size % world() or (count is not None and count < 2 * world()):
        raise SepNormError(
            f"{world()} processes cannot share {what} in batches of {config.batch_size} alike: take a batch_size that is a "
            f"multiple of {world()}."
        )
