"""Data larger than memory, read through ``datasets``: shards of text, tables, tar files or images, each process its own."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch

from sepnorm.data.choices import evenly, seeded
from sepnorm.data.places import require_here
from sepnorm.data.records import IMAGES, quiet_datasets
from sepnorm.data.tables import (
    LONGEST_TEXT,
    TABLES,
    TEXT,
    parquet_step,
    rows_of_file,
    suffix_of,
    text_lines,
    unreadable,
)
from sepnorm.distributed import rank, world
from sepnorm.errors import SepNormError
from sepnorm.files import regular_files

KINDS = (*TEXT, *TABLES, ".tar")
_PART = 1000  # images of a folder that make a shard
_AT_ONCE = 64  # rows of a parquet file
_LOOKED_AT = 16  # shards of which some rows are read before training
_MOST_BROKEN, _FEW = 0.1, 10  # share of the samples that may be unusable, and how many always may


def open_rows(source: str, split: str = "train") -> Any:
    """An ``IterableDataset`` of a file, a folder of shards or of images, a pattern such as ``'data/*.parquet'``, or a name.

    Images are not decoded.
    """
    from pyarrow.parquet import ParquetFile

    path = Path(source)
    here = path.exists() or glob.has_magic(source)
    if not here:
        require_here(source)
    datasets = quiet_datasets(hub=not here)
    try:
        if path.is_dir() and (images := regular_files(path, IMAGES)[0]):
            Random(0).shuffle(images)  # or every shard would be of one class
            parts = [[str(file) for file in images[start : start + _PART]] for start in range(0, len(images), _PART)]
            return datasets.IterableDataset.from_generator(_image_rows, gen_kwargs={"parts": parts})
        if here:
            kind, files = _shards(source)
            if kind == ".tar":
                rows = datasets.load_dataset("webdataset", data_files=files, split="train", streaming=True)
            elif kind == ".parquet":
                step = min(parquet_step(Path(file), ParquetFile(file), _AT_ONCE) for file in files)
                options = {"data_files": files, "split": "train", "streaming": True, "batch_size": step}
                rows = datasets.load_dataset("parquet", **options)
            else:
                return datasets.IterableDataset.from_generator(_rows, gen_kwargs={"files": files})
        else:
            name, _, config = source.partition(":")
            rows = datasets.load_dataset(name, config or None, split=split, streaming=True)
        for column, feature in (rows.features or {}).items():
            if isinstance(feature, datasets.Image):
                rows = rows.cast_column(column, datasets.Image(decode=False))
    except SepNormError:
        raise
    except Exception as error:  # a damaged shard, a name that cannot be reached: each kind has errors of its own
        raise _unreadable(source, error) from error
    return rows


def _shards(source: str) -> tuple[str, list[str]]:
    path = Path(source)
    if path.is_dir():
        found = [file for file in sorted(path.rglob("*")) if file.is_file() and suffix_of(file) in KINDS]
    else:
        found = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(source, recursive=True))]
    kinds = sorted({suffix_of(file) for file in found})
    if not found or kinds[0] not in KINDS:
        raise SepNormError(f"{source} names no file of a kind that can be streamed: {', '.join(KINDS)} or images.")
    if len(kinds) > 1:
        raise SepNormError(f"the files of {source} are of different kinds, {' and '.join(kinds)}: name those of one.")
    return kinds[0], [str(file) for file in found]


def _image_rows(parts: list[list[str]]) -> Iterator[dict[str, Any]]:
    for part in parts:
        for file in part:
            yield {"image": Path(file), "label": Path(file).parent.name}


def _rows(files: list[str]) -> Iterator[dict[str, Any]]:
    for path in map(Path, files):
        if suffix_of(path) in TEXT:
            yield from ({"text": line[:LONGEST_TEXT].rstrip("\r\n")} for line in text_lines(path))
        else:
            yield from rows_of_file(path)


class Stream:
    """The samples of this process, without end: its shards in another random order each time round.

    Where there are fewer shards than processes, every process reads all of them and uses its part of the rows.

    Args:
        rows: from ``open_rows``.
        samples: what a row gives, one or none; None where the row is unusable, which only few may be.
    """

    def __init__(
        self, source: str, rows: Any, samples: Callable[[dict[str, Any]], list[Any] | None], seed: int
    ) -> None:
        self._source, self._dataset, self._given, self._seed = source, rows, samples, seed
        self._own = list(range(rows.num_shards))
        self._apart = len(self._own) >= world()
        if self._apart:
            self._own = self._own[rank() :: world()]
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
            order = torch.randperm(
                len(self._own), generator=seeded(self._seed, self._epoch * world() + rank(), 3)
            ).tolist()
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
            except Exception as error:  # each kind of file has errors of its own
                raise _unreadable(self._source, error) from error
            self._row += 1
            if not self._apart and self._row % world() != rank():
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


def some_rows(source: str, rows: Any, count: int) -> list[dict[str, Any]]:
    """Rows of several shards, the same for every process, to learn what the data is like."""
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


def _unreadable(source: str, error: Exception) -> SepNormError:
    return error if isinstance(error, SepNormError) else unreadable(source, error, " as a stream")


def _shortened(row: dict[str, Any]) -> str:
    text = ", ".join(f"{key}: {value!r}" for key, value in row.items())
    return text if len(text) <= 80 else f"{text[:80]}…"
