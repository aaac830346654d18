"""Streams of molecules during training: worker processes featurise the next buffer ahead."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from sepnorm.data.streams import Stream, open_rows, rows_by, some_rows
from sepnorm.data.tables import NULLS
from sepnorm.distributed import cores
from sepnorm.domains.molecules.config import MoleculeConfig
from sepnorm.domains.molecules.data import arrange, as_number
from sepnorm.domains.molecules.features import Rejected, featurise
from sepnorm.domains.molecules.graphs import Graph, Graphs
from sepnorm.domains.molecules.ogb_folders import ogb_table
from sepnorm.domains.molecules.split_files import files_by_split
from sepnorm.domains.molecules.tables import LINES, PACKAGED, SPLITS, Table, choose, smiles_column
from sepnorm.errors import LeftOutWarning, SepNormError
from sepnorm.training.interruptions import end_with_parent

_SOME = 10_000  # molecules for measuring the model and for the scale of targets; of each split, if there is a column
_LOOKED_AT = 200  # molecules read to identify the columns
_PART = 500  # molecules per job of a worker
_NO_SMILES = ("", "smiles")  # empty line, header
_FEW = 10  # number of invalid rows that is always allowed

_LINE = "text"  # column of files with a molecule in each line

Row = tuple[str, list[float]]  # SMILES and targets
Sample = tuple[Graph, list[float]]  # molecule and targets


def streamed_table(config: MoleculeConfig, labelled: bool | None, whole: bool = False) -> tuple[Any, str, Table]:
    """The rows to train on, their SMILES column, and a table of some rows, which has all splits if ``whole``.

    ``labelled``: see ``usual_targets``.
    """
    if config.data in PACKAGED:
        raise SepNormError(f"{config.data} is small and is read whole: leave stream out, or name other data.")
    if table := ogb_table(Path(config.data)):
        raise SepNormError(
            f"{config.data} is a folder of OGB, whose split needs the whole table: leave stream out, or name {table} for a split "
            "at random."
        )
    files = files_by_split(config.data)
    rows = open_rows(config.data, lines=LINES, kept=files.pop("train", None))
    some = _some_rows(config.data, rows, whole)
    in_lines = set(some[0]) == {_LINE}  # a molecule and perhaps its name
    if files:
        some = [row | {"split": "train"} for row in some]
        for name, held_out in files.items():
            others = open_rows(config.data, lines=LINES, kept=held_out)
            part = rows_by(config.data, others, sys.maxsize if whole else _LOOKED_AT, lambda row: "all", ("all",))
            some += [row | {"split": name} for row in part]
    if in_lines:
        some = [row for row in some if _first_word(row[_LINE]).lower() not in _NO_SMILES]
    columns = {name: _typed([row.get(name) for row in some]) for name in (some[0] if some else [_LINE])}
    if in_lines:
        columns["smiles"] = [_first_word(text) for text in columns.pop(_LINE)]
    column = _LINE if in_lines else smiles_column(config.data, columns, config.column)
    return rows, column, choose(config.data, columns, config.column, config.targets, labelled)


def _some_rows(source: str, rows: Any, whole: bool) -> list[dict[str, Any]]:
    """Rows to measure on. With a column ``split`` these are of all splits, in whatever order the rows are."""
    found = some_rows(source, rows, _SOME if whole else _LOOKED_AT)
    return rows_by(source, rows, _SOME, _split_of, SPLITS) if whole and "split" in found[0] else found


def _split_of(row: dict[str, Any]) -> str:
    """The split that a row names, by default training; empty for a name that is unknown."""
    named = str(row.get("split", "train")).lower()
    return next((split for split, names in SPLITS.items() if named in names), "")


def _first_word(line: Any) -> str:
    return "" if line is None else next(iter(str(line).split()), "")


def _typed(values: list[Any]) -> list[Any]:
    """Converts strings to numbers if all are numbers or missing: a streamed CSV file has only strings."""
    if not any(isinstance(value, str) for value in values):
        return values
    try:
        return [None if value is None or value in NULLS else float(value) for value in values]
    except (TypeError, ValueError):
        return values


class MoleculeStream:
    """The molecule stream of a config. ``data`` holds some molecules; its validation and test split are held out."""

    def __init__(self, config: MoleculeConfig) -> None:
        self._config = config
        self._rows, self._column, table = streamed_table(config, config.task == "supervised", whole=True)
        self.data = arrange(table, config)
        held_out = (*self.data.valid.smiles, *self.data.test.smiles)
        self._held_out = frozenset(map(_first_word, held_out))  # without names, as the rows are compared

    def open(self, seed: int) -> Ahead:
        """Opens the stream at its beginning."""
        return Ahead(self._config, self._rows, self._samples, seed)

    def _samples(self, row: dict[str, Any]) -> list[Row] | None:
        text = _first_word(row.get(self._column))
        if _split_of(row) != "train" or text in self._held_out:
            return []
        if text.lower() in _NO_SMILES and (text or self._column == _LINE):
            return []
        try:
            targets = [as_number(row.get(name)) for name in self.data.names]
        except (TypeError, ValueError):
            return None
        unknown = self._config.task == "supervised" and all(value != value for value in targets)
        return [] if unknown else [(text, targets)]


class Ahead:
    """Reads and featurises the next buffer in worker processes while the current one is used for training."""

    def __init__(
        self, config: MoleculeConfig, rows: Any, samples: Callable[[dict[str, Any]], list[Row] | None], seed: int
    ) -> None:
        self._config, self._samples = config, samples
        self._stream = Stream(config.data, rows, self._counted, seed)
        alone = multiprocessing.current_process().daemon  # daemons must not have child processes
        # forked where that is safe: a worker of a comparison would else start each anew, which takes seconds
        how = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        self._pool = None if alone else ProcessPoolExecutor(cores(), how, end_with_parent)
        self._next: tuple[dict[str, Any], list[Any], list[Future[Any]]] | None = None
        self._read = self._rejected = 0  # rows, whether they are trained on or not, and invalid ones

    def take(self, count: int) -> list[Sample]:
        """The next molecules. An invalid row is replaced by the molecule before it."""
        _, rows, parts = self._next or self._begun(count)
        graphs = self._graphs([part.result() for part in parts])
        self._next = self._begun(count)
        samples = [(graph, targets) for graph, (_, targets) in zip(graphs, rows, strict=True) if graph is not None]
        if not samples:
            raise SepNormError(f"{self._config.data} holds no valid molecules.")
        found = iter(samples)
        last, whole = samples[0], []
        for graph in graphs:  # a target goes with its molecule, so the two are replaced together
            last = last if graph is None else next(found)
            whole.append(last)
        return whole

    def state(self) -> dict[str, Any]:
        return self._stream.state() if self._next is None else self._next[0]

    def restore(self, state: dict[str, Any]) -> None:
        self._next = None
        self._stream.restore(state)

    def close(self) -> None:
        """Stops the workers and drops what was read ahead."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _counted(self, row: dict[str, Any]) -> list[Row] | None:
        self._read += 1
        return self._samples(row)

    def _begun(self, count: int) -> tuple[dict[str, Any], list[Any], list[Future[Any]]]:
        state, rows = self._stream.state(), self._stream.take(count)
        texts = [text for text, _ in rows]
        return state, rows, [self._submitted(texts[start : start + _PART]) for start in range(0, len(texts), _PART)]

    def _submitted(self, texts: list[str]) -> Future[Any]:
        settings = (texts, self._config.features, self._config.max_atoms)
        if self._pool is not None:
            return self._pool.submit(_featurised, *settings)
        done: Future[Any] = Future()
        done.set_result(_featurised(*settings))
        return done

    def _graphs(self, parts: Sequence[tuple[Graphs, list[Rejected]]]) -> list[Graph | None]:
        """The graph of each row, None for one that is no valid molecule."""
        found: list[Graph | None] = []
        for graphs, rejected in parts:
            self._count(rejected)
            rows = iter(graphs)
            bad = {each.row for each in rejected}
            found += [None if row in bad else next(rows) for row in range(len(graphs) + len(bad))]
        return found

    def _count(self, rejected: list[Rejected]) -> None:
        if not rejected:
            return
        first = f"such as {rejected[0].smiles!r}: {rejected[0].reason}"
        if not self._rejected:
            warnings.warn(
                f"some rows of {self._config.data} are not valid molecules, {first}. Each is replaced by the molecule before it.",
                LeftOutWarning,
                stacklevel=2,
            )
        self._rejected += len(rejected)
        if self._rejected > max(_FEW, self._config.max_rejected * self._read):
            raise SepNormError(
                f"{self._rejected} of the first {self._read} rows of {self._config.data} are not valid molecules, "
                f"{first}. Fix them, or allow more with --set max_rejected=SHARE."
            )


def _featurised(texts: list[str], kind: str, max_atoms: int) -> tuple[Graphs, list[Rejected]]:
    return featurise(texts, kind, max_atoms=max_atoms)
