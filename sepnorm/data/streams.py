"""Streams of data larger than memory, through ``datasets``: shards of text, tables, tar files or images."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import torch

from sepnorm.data.choices import evenly, seeded
from sepnorm.data.folders import shards, text_rows
from sepnorm.data.places import is_address, require_here
from sepnorm.data.records import IMAGES, hub_rows, quiet_datasets
from sepnorm.data.tables import TABLES, TEXT, rows_of_file, unreadable
from sepnorm.data.tar_shards import tar_rows
from sepnorm.distributed import rank, world
from sepnorm.errors import SepNormError
from sepnorm.files import regular_files

_PART = 1000  # images of a folder per shard
_AT_ONCE = 64  # rows of a parquet file read at a time
_LOOKED_AT = 16  # shards from which rows are read before training
_MOST_BROKEN, _FEW = 0.1, 10  # share of rows that may be unusable, and a number that always may


def open_rows(source: str, split: str = "train", lines: tuple[str, ...] = TEXT, kept: list[str] | None = None) -> Any:
    """Opens data as an ``IterableDataset``. Images are not decoded.

    ``source`` is a file, a folder of shards or images, a pattern such as ``'data/*.parquet'``, a Hugging Face dataset,
    or a URL that fsspec knows, such as ``s3://bucket/train``. Files with a suffix in ``lines`` have one row per line,
    in the column ``text``. ``kept`` names those of its ``shards`` that are read, by default all.
    """
    path = Path(source)
    remote = is_address(source)
    here = not remote and (path.exists() or glob.has_magic(source))
    if not here and not remote:
        require_here(source)
    datasets = quiet_datasets(hub=not here and not remote)
    try:
        if path.is_dir() and (images := regular_files(path, IMAGES)[0]):
            Random(0).shuffle(images)  # else every shard would hold one class
            parts = [[str(file) for file in images[start : start + _PART]] for start in range(0, len(images), _PART)]
            return datasets.IterableDataset.from_generator(_image_rows, gen_kwargs={"parts": parts})
        if remote or here:
            kind, files = _shards_at(source) if remote else shards(source, (*lines, *TABLES, ".tar"))
            files = files if kept is None else kept
            if kind == ".parquet" and remote:
                options = {"data_files": files, "split": "train", "streaming": True, "batch_size": _AT_ONCE}
                rows = datasets.load_dataset("parquet", **options)
                rows = rows.decode(False) if rows.features else rows
            else:
                reader = tar_rows if kind == ".tar" else _lines if kind in lines else _rows
                return datasets.IterableDataset.from_generator(reader, gen_kwargs={"files": files})
        else:
            rows = hub_rows(source, split)
    except SepNormError:
        raise
    except Exception as error:  # each library has its own errors for damaged shards and unreachable names
        raise _unreadable(source, error) from error
    return rows


def _shards_at(address: str) -> tuple[str, list[str]]:
    """Suffix and URLs of the shards at a URL, which may be a file, a folder or a pattern."""
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    found = system.glob(path) if glob.has_magic(path) else [path] if system.isfile(path) else system.find(path)
    by_kind = {kind: [name for name in found if name.endswith(kind)] for kind in (".parquet", ".tar")}
    kinds = [kind for kind, names in by_kind.items() if names]
    if len(kinds) != 1:
        what = "both" if kinds else "neither"
        raise SepNormError(f"{address} holds {what} of .parquet and .tar files: name a place with shards of one kind.")
    return kinds[0], [system.unstrip_protocol(name) for name in sorted(by_kind[kinds[0]])]


def _image_rows(parts: list[list[str]]) -> Iterator[dict[str, Any]]:
    for part in parts:
        for file in part:
            yield {"image": Path(file), "label": Path(file).parent.name}


def _lines(files: list[str]) -> Iterator[dict[str, Any]]:
    for path in map(Path, files):
        yield from text_rows(path)


def _rows(files: list[str]) -> Iterator[dict[str, Any]]:
    for path in map(Path, files):
        yield from rows_of_file(path)


class Stream:
    """An endless stream of the samples of one reader. The order of shards changes every epoch.

    Shards are divided among the readers. If there are fewer shards than readers, each reader reads all shards, in
    the same order, and uses its part of the rows.

    Args:
        source: name of the data, for messages.
        rows: from ``open_rows``.
        samples: turns a row into a list of samples, or None if the row is unusable. Only few rows may be.
        seed: seed of the order.
        worker: number of this reader among the ``workers`` of this process.
        workers: number of readers of this process.
    """

    def __init__(
        self,
        source: str,
        rows: Any,
        samples: Callable[[dict[str, Any]], list[Any] | None],
        seed: int,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        self._source, self._dataset, self._given, self._seed = source, rows, samples, seed
        self._part, self._parts = rank() * workers + worker, world() * workers
        self._own = list(range(rows.num_shards))
        self._apart = len(self._own) >= self._parts
        if self._apart:
            self._own = self._own[self._part :: self._parts]
        self._epoch = self._place = self._row = self._used = self._broken = 0
        self._shard: Any = None
        self._kept: dict[str, Any] | None = None
        self._samples = self._endless()

    def take(self, count: int) -> list[Any]:
        return list(islice(self._samples, count))

    def state(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "place": self._place,
            "row": self._row,
            "used": self._used,
            "shard": self._kept if self._shard is None else self._shard.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._epoch, self._place, self._row = state["epoch"], state["place"], state["row"]
        self._used, self._kept, self._shard = state["used"], state["shard"], None
        self._samples = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            # Readers that share the rows of all shards count them, and so must read the shards in one order.
            number = self._epoch * self._parts + self._part if self._apart else self._epoch
            order = torch.randperm(len(self._own), generator=seeded(self._seed, number, 3)).tolist()
            while self._place < len(order):
                yield from self._samples_of(self._own[order[self._place]])
                self._place, self._shard, self._kept = self._place + 1, None, None
            if not self._used:
                raise SepNormError(f"{self._source} holds nothing to train on ({self._broken} rows were left out).")
            self._epoch, self._place = self._epoch + 1, 0
            self._row = self._used = self._broken = 0

    def _samples_of(self, number: int) -> Iterator[Any]:
        self._shard = self._dataset.shard(self._dataset.num_shards, number)
        if self._kept is not None:
            self._shard.load_state_dict(self._kept)
        rows = iter(self._shard)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except Exception as error:  # each file format has its own errors
                raise _unreadable(self._source, error) from error
            self._row += 1
            if not self._apart and self._row % self._parts != self._part:
                continue
            samples = self._given(row)
            if samples is None:
                self._broken += 1
                if self._broken > max(_FEW, _MOST_BROKEN * self._row):
                    raise SepNormError(
                        f"{self._broken} of the first {self._row} rows of {self._source} cannot be used, such as "
                        f"{_shortened(row)}: check the files and the columns."
                    )
                continue
            self._used += len(samples)
            yield from samples


class ReadAhead:
    """Reads the next buffer of a stream in a thread while the current one is used. ``take`` needs a constant count."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._next: tuple[dict[str, Any], Future[list[Any]]] | None = None

    def take(self, count: int) -> list[Any]:
        _, coming = self._next or self._begin(count)
        found = coming.result()
        self._next = self._begin(count)
        return found

    def state(self) -> dict[str, Any]:
        return self._stream.state() if self._next is None else self._next[0]

    def restore(self, state: dict[str, Any]) -> None:
        self._next = None
        self._stream.restore(state)

    def _begin(self, count: int) -> tuple[dict[str, Any], Future[list[Any]]]:
        state, coming = self._stream.state(), Future[list[Any]]()

        def read() -> None:
            try:
                coming.set_result(self._stream.take(count))
            except BaseException as error:  # raised where the result is awaited
                coming.set_exception(error)

        Thread(target=read, daemon=True).start()
        return state, coming


def some_rows(source: str, rows: Any, count: int) -> list[dict[str, Any]]:
    """A sample of rows from several shards, the same in every process."""
    shards = evenly(rows.num_shards, _LOOKED_AT).tolist()
    found: list[dict[str, Any]] = []
    try:
        for done, number in enumerate(shards, 1):
            found += islice(iter(rows.shard(rows.num_shards, number)), count * done // len(shards) - len(found))
    except Exception as error:
        raise _unreadable(source, error) from error
    if not found:
        raise SepNormError(f"{source} holds no rows.")
    return found


def rows_by(
    source: str, rows: Any, count: int, group: Callable[[dict[str, Any]], str], groups: Collection[str]
) -> list[dict[str, Any]]:
    """The first ``count`` rows of every group, in order, by one pass that ends when ``groups`` are full."""
    found: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    try:
        for row in rows:
            name = group(row)
            counts[name] += 1
            if counts[name] <= count:
                found.append(row)
            if all(counts[each] >= count for each in groups):
                break
    except Exception as error:
        raise _unreadable(source, error) from error
    return found


def _unreadable(source: str, error: Exception) -> SepNormError:
    return error if isinstance(error, SepNormError) else unreadable(source, error, " as a stream")


def _shortened(row: dict[str, Any]) -> str:
    text = ", ".join(f"{key}: {value!r}" for key, value in row.items())
    return text if len(text) <= 80 else f"{text[:80]}…"
