"""Which samples a step has, in which order. Both depend only on the seed and the number of the step.

So all arms of one seed see the same batches, and a resumed run repeats the uninterrupted one bit by bit.
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

#: Makes a batch: (indices of all samples in it, slice of this process, generator) to model inputs. Random numbers are
#: drawn for the whole batch, so that they do not depend on the number of processes.
Make = Callable[[Tensor, slice, torch.Generator], dict[str, Any]]
#: Where the buffer of a stream began, in a form that JSON can store; None before the first buffer.
Place = dict[str, Any] | None
#: The order of an epoch: (batch size, generator) to a permutation of sample indices.
Order = Callable[[int, torch.Generator], Tensor]


@dataclass(eq=False)
class Samples:
    """The samples that batches are made of: how many, how to make a batch, and their order (None for a random one)."""

    count: int
    make: Make
    order: Order | None = None

    def ordered(self, batch: int, generator: torch.Generator) -> Tensor:
        """Sample indices in the order of one epoch."""
        if self.order is None:
            return torch.randperm(self.count, generator=generator)
        return self.order(batch, generator)


class Steps(Dataset):
    """The batches of a run as a data set, one item for each forward pass.

    ``schedule`` is the learning-rate schedule, by transformers' name. All processes draw the same samples and random
    numbers; each makes its own part of the batch, ``distributed.share``.
    """

    def __init__(self, config: RunConfig, samples: Samples, schedule: str = "cosine") -> None:
        if samples.count < 2:
            raise SepNormError(f"training needs at least two samples, found {samples.count}.")
        self.config, self.samples, self.schedule = config, samples, schedule
        _check_share(config, samples.count)
        self.batch = min(config.batch_size, samples.count - samples.count % world())
        self.per_epoch = samples.count // self.batch  # a shorter last batch would have other statistics
        batches = config.epochs * self.per_epoch
        self.steps = min(math.ceil(batches / config.accumulation), config.max_steps or batches)
        self._epoch, self._order = -1, torch.empty(0)

    def __len__(self) -> int:
        return self.steps * self.config.accumulation

    def __getitem__(self, number: int) -> dict[str, Any]:
        chosen = self.chosen(number)
        return self.samples.make(chosen, share(len(chosen)), seeded(self.config.order_seed, number, 2))

    def chosen(self, number: int) -> Tensor:
        """Indices of the samples in batch ``number``."""
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.samples.ordered(self.batch, seeded(self.config.order_seed, epoch, 1))
        return self._order[place * self.batch : (place + 1) * self.batch]

    def named(self, step: int) -> str:
        """Names the samples of a step, counted from 0, for error messages."""
        size = self.config.accumulation
        found = torch.cat([self.chosen(number) for number in range(step * size, (step + 1) * size)]).tolist()
        return f"samples {', '.join(map(str, found[:8]))}{' …' if len(found) > 8 else ''}"

    def save(self, checkpoint: Path) -> None:
        """Saves nothing: every batch can be made again from its number."""

    def resume(self, checkpoint: Path) -> None:
        """Restores nothing: see ``save``."""

    def close(self) -> None:
        """Nothing has to be ended."""


class Source(Protocol):
    """An endless source of samples for one process. Its state can be saved as JSON."""

    def take(self, count: int) -> list[Any]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class StreamedSteps(Steps):
    """Batches of data larger than memory: a buffer of samples is read, shuffled and used up, then the next one is read.

    Each process reads its own part of the data, which is its part of every batch. Each of the ``workers`` of a process
    reads a part of that, has a part of the buffer, and makes every n-th batch. A checkpoint stores where the buffer
    began, so a resumed run reads at most one buffer again.
    """

    def __init__(
        self,
        config: RunConfig,
        buffer: int,
        source: Source,
        read: Callable[[list[Any]], Samples],
        schedule: str = "cosine",
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        if config.max_steps is None:
            raise SepNormError("a stream has no end: say how long to train by --set max_steps=STEPS.")
        _check_share(config)
        if buffer < config.batch_size * workers:
            each = f" for each of {workers} workers" if workers > 1 else ""
            raise SepNormError(
                f"stream={buffer} is smaller than a batch of {config.batch_size}{each}: choose a multiple of "
                f"{config.batch_size * workers}."
            )
        self.config, self.source, self.read, self.schedule = config, source, read, schedule
        self.batch, self.steps = config.batch_size, config.max_steps
        self._worker, self._workers = worker, workers
        self.per_buffer = buffer // workers // self.batch
        self._buffer, self._next = -1, 0
        self.place: Place = None
        self._order = torch.empty(0)

    def __getitem__(self, number: int) -> dict[str, Any]:
        chosen = self.chosen(number)
        return self.samples.make(chosen, slice(None), seeded(self.config.order_seed, number * world() + rank(), 2))

    def chosen(self, number: int) -> Tensor:
        """Positions in the buffer of this process's part of batch ``number``."""
        buffer, place = divmod(number // self._workers, self.per_buffer)
        while self._buffer != buffer:
            if buffer < self._next:
                raise SepNormError(f"a stream cannot go back from its buffer {self._next - 1} to {buffer}.")
            self._read_next()
        own = self.batch // world()
        return self._order[place * own : (place + 1) * own]

    def _read_next(self) -> None:
        self.place = {"buffer": self._next, "source": self.source.state()}
        own = self.batch // world()
        self.samples = self.read(self.source.take(self.per_buffer * own))
        number = (self._next * self._workers + self._worker) * world() + rank()
        self._order = self.samples.ordered(own, seeded(self.config.order_seed, number, 1))
        self._buffer, self._next = self._next, self._next + 1

    def named(self, step: int) -> str:
        buffer = step * self.config.accumulation // self._workers // self.per_buffer
        return f"samples of buffer {buffer} of the stream"

    def save(self, checkpoint: Path) -> None:
        write_places(checkpoint, [self.place])

    def resume(self, checkpoint: Path) -> None:
        self.go_to(read_places(checkpoint, 1)[0])

    def go_to(self, place: Place) -> None:
        self.place = place
        if place is not None:
            self._next = int(place["buffer"])
            self.source.restore(place["source"])


def write_places(checkpoint: Path, places: Sequence[Place]) -> None:
    """Keeps where the readers of this process stand."""
    kept = {"processes": world(), "workers": len(places), "places": places}
    write_text(checkpoint / f"stream-{rank()}.json", json.dumps(kept))


def read_places(checkpoint: Path, workers: int) -> list[Place]:
    path = checkpoint / f"stream-{rank()}.json"
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"processes": "other"}
    for what, found, now in (("processes", kept["processes"], world()), ("workers", kept.get("workers"), workers)):
        if found != now:
            raise SepNormError(
                f"{checkpoint} was written by {found} {what} that shared a stream, and now there are {now}: resume with {found}, "
                "or start a new run in another folder."
            )
    return list(kept["places"])


def by_length(lengths: Sequence[int] | Tensor, window: int) -> Order:
    """A random order with little padding: sorted by length within ``window`` batches, then shuffled by batch."""
    sizes = torch.as_tensor(lengths)

    def order(batch: int, generator: torch.Generator) -> Tensor:
        # the remainder is dropped before sorting, else it would always be the longest samples
        drawn = torch.randperm(len(sizes), generator=generator)[: len(sizes) // batch * batch]
        windows = [part[sizes[part].argsort(stable=True)] for part in drawn.split(window * batch)]
        batches = torch.cat(windows).view(-1, batch)
        return batches[torch.randperm(len(batches), generator=generator)].flatten()

    return order


def _check_share(config: RunConfig, count: int | None = None) -> None:
    if config.batch_size % world():
        raise SepNormError(
            f"batch_size={config.batch_size} cannot be divided among {world()} processes: choose a batch_size that is a "
            f"multiple of {world()}."
        )
    if count is not None and count < 2 * world():
        raise SepNormError(f"{count} samples are too few for {world()} processes: each needs at least two.")
