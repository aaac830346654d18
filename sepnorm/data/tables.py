"""Rows of files, one at a time: text, CSV, TSV, JSON and parquet, compressed or not. Memory is bounded for any file."""

from __future__ import annotations

import bz2
import csv
import glob
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sepnorm.data.json_lists import list_items
from sepnorm.data.parquet_footer import chunks_of
from sepnorm.data.places import is_address, why_not
from sepnorm.errors import SepNormError, UnreadableDataError, one_line
from sepnorm.files import LARGE, PACKED, require_file

TEXT = (".txt", ".text")
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
#: Words for a missing number in text, as pyarrow has them: the same for tables that are read whole and for streams.
NULLS = tuple(",#N/A,#N/A N/A,#NA,-1.#IND,-1.#QNAN,-NaN,-nan,1.#IND,1.#QNAN,N/A,NA,NULL,NaN,n/a,nan,null".split(","))
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
LONGEST_TEXT = 100_000  # characters kept of a text; no encoder reads more
_LONGEST_LINE = 10**7  # characters
_MOST_EMPTY = 10**6  # empty lines in a row; a small compressed file can hold more than anyone can read
_UNPACKED = 2**26  # bytes that any compressed text may unpack to; this many empty lines take some seconds
_ROWS = 64  # rows of a parquet file read at a time, at most
_AT_ONCE = 2**26  # bytes of a parquet file read at a time
_LONG_AT_ONCE = 2**28  # the same if each of its texts were as long as any can be
_LISTED = 16  # bytes that a value in a list takes while it is read


def suffix_of(path: Path) -> str:
    """The suffix that names the format, without the suffix of compression: ``.csv`` for ``a.csv.gz``."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in _OPENERS else path.suffix.lower()


def stem_of(path: Path) -> str:
    """The name without the suffixes of format and compression: ``a.b`` for ``a.b.csv.gz``."""
    return Path(path.stem).stem if path.suffix.lower() in _OPENERS else path.stem


def rows_of_file(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table as dictionaries by column; long texts are truncated."""
    kind = suffix_of(path)
    readers = {".csv": csv_rows, ".tsv": csv_rows, ".parquet": parquet_rows}
    for row in readers.get(kind, json_rows)(path):
        yield {name: value[:LONGEST_TEXT] if isinstance(value, str) else value for name, value in row.items()}


class _Counted(io.RawIOBase):
    """A stream of unpacked bytes that raises once they are far more than the size of the file suggests."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file, self._read = path, file, 0
        self._most = max(_UNPACKED, PACKED * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._file.read(len(buffer))
        self._read += len(part)
        if self._read > self._most:
            raise SepNormError(
                f"{self._path} unpacks to more than {self._most / 2**20:,.0f} MiB, more than {PACKED} times its size, and is not "
                "read on: unpack it yourself, if that is right."
            )
        buffer[: len(part)] = part
        return len(part)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Opens a file for reading bytes, and unpacks it if it is compressed."""
    require_file(path)
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None:
        with open(path, "rb") as file:
            yield file
        return
    with opener(path, "rb") as packed, io.BufferedReader(_Counted(path, packed), 2**16) as file:
        yield file


@contextmanager
def _opened_text(path: Path) -> Iterator[Any]:
    try:
        with opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            yield text
    except (UnicodeDecodeError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise SepNormError(f"{path} cannot be read as text in UTF-8: {error}.") from error


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file, compressed or not, with their line ends."""
    empty = 0
    with _opened_text(path) as file:
        while line := file.readline(_LONGEST_LINE + 1):
            if len(line) > _LONGEST_LINE:
                raise SepNormError(
                    f"{path} has a line of more than {_LONGEST_LINE:,} characters: put one text in a line."
                )
            empty = empty + 1 if line.isspace() else 0
            if empty > _MOST_EMPTY:
                raise SepNormError(f"{path} has {_MOST_EMPTY:,} empty lines in a row: take them out.")
            yield line


def csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields rows of CSV, or of TSV without quotes. Cells stay strings: "None" is a word, an empty cell is ""."""
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if suffix_of(path) == ".tsv" else {}
    number = 0
    try:
        reader = csv.DictReader(text_lines(path), **style)
        _check_names(path, reader.fieldnames or [], reader.reader.dialect.delimiter)
        for number, row in enumerate(reader, 1):
            if None in row:
                raise SepNormError(
                    f"{path} cannot be read: row {number} has more cells than there are names of columns."
                )
            yield row
    except csv.Error as error:
        raise SepNormError(f"{path} cannot be read: {error} after row {number}.") from error


def _check_names(path: Path, names: Sequence[str], delimiter: str) -> None:
    """Refuses names of columns that come from cells separated in another way, and names given twice."""
    if len(names) == 1 and any(other in names[0] for other in ";\t," if other != delimiter):
        wanted = "tabs" if delimiter == "\t" else "commas"
        raise SepNormError(f"{path} has a single column, {names[0]!r}: separate cells by {wanted}.")
    named = [name for name in names if name]
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise SepNormError(f"{path} has two columns {twice!r}: rename one of them, or take it out.")


def json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON file: one on each line, or all in one list.

    Our own reader, since some malformed files make pyarrow end the process.
    """
    for number, row in enumerate(_json_values(path), 1):
        if not isinstance(row, dict):
            raise SepNormError(f"row {number} of {path} is no object with names and values, but {type(row).__name__}.")
        yield row


def _json_values(path: Path) -> Iterator[Any]:
    with _opened_text(path) as file:
        is_list = file.read(_MOST_EMPTY).lstrip().startswith("[")
    if not is_list:
        yield from (json.loads(line) for line in text_lines(path) if line.strip())
        return
    read = 0
    try:
        with _opened_text(path) as file:
            for value in list_items(file):
                yield value
                read += 1
    except json.JSONDecodeError as error:
        raise SepNormError(f"{path} cannot be read: {error.msg} after row {read}.") from error


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a parquet file without its lists, which are no texts, images or scores, and may be of any length."""
    import pyarrow.parquet

    require_file(path)
    schema = pyarrow.parquet.read_schema(path)
    columns = [field.name for field in schema if not _has_lists(field.type)]
    if not columns:
        raise SepNormError(
            f"{path} has columns of lists alone ({', '.join(schema.names)}), such as embeddings: name other data."
        )
    for batch in parquet_batches(path, columns=columns):
        few = max(1, _AT_ONCE * batch.num_rows // max(1, batch.nbytes))  # not all long texts twice
        for start in range(0, batch.num_rows, few):
            yield from batch.slice(start, few).to_pylist()


def _has_lists(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return any(_has_lists(field.type) for field in kind)
    return bool(types.is_nested(kind))


def parquet_batches(path: Path, most: int = _ROWS, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yields record batches: first of one row, then of ever more up to ``most``, as far as they stay small.

    What a row takes is known only once it is read, since a small file can name one large value again and again.
    ``columns``: default all.
    """
    import pyarrow.parquet

    require_file(path)
    file = pyarrow.parquet.ParquetFile(path)
    kept = None if columns is None else list(columns)
    most = _most_rows(path, file, most, kept)
    step = 1
    for batch in file.iter_batches(batch_size=step, columns=kept):
        yield batch
        fitting = _AT_ONCE * batch.num_rows // max(1, batch.get_total_buffer_size())
        step = max(1, min(2 * step, most, fitting))
        file.reader.set_batch_size(step)  # read again for each batch


def parquet_parts(path: Path, rows: int) -> Iterator[Any]:
    """Yields record batches of about so many rows, also the first, but for those of large rows and the last."""
    import pyarrow

    waiting: list[Any] = []
    for batch in parquet_batches(path, rows):
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= rows or sum(each.nbytes for each in waiting) >= _AT_ONCE // 2:
            del batch  # memory has each row once
            joined, waiting = pyarrow.Table.from_batches(waiting).combine_chunks().to_batches(), []
            while joined:
                yield joined.pop(0)
    if waiting:
        yield from pyarrow.Table.from_batches(waiting).combine_chunks().to_batches()


def _most_rows(path: Path, file: Any, most: int, columns: Sequence[str] | None) -> int:
    """Rows to read at a time at most. Refuses a file that unpacks to far more than its size."""
    groups = (file.metadata.row_group(number).total_byte_size for number in range(file.metadata.num_row_groups))
    chunks = [chunk for chunk in chunks_of(path) if columns is None or chunk.column in columns]
    listed = _LISTED * sum(chunk.values for chunk in chunks if chunk.values > chunk.rows)
    large, small = max(*groups, listed, 0), PACKED * path.stat().st_size
    if large > max(LARGE, small):
        raise SepNormError(
            f"{path} unpacks to {large / 2**20:,.0f} MiB, more than {PACKED} times its size, and is not read: write it in "
            "smaller parts, if that is right."
        )
    longest = max((chunk.size for chunk in chunks if chunk.of_bytes), default=0)  # which any row may name again
    return max(1, min(most, (_LONG_AT_ONCE if large <= small else _AT_ONCE) // max(1, longest)))


def csv_table(path: Path, tab: bool) -> Any:
    """Reads a CSV or TSV file whole, with column types inferred from its cells."""
    import pyarrow.csv

    delimiter = "\t" if tab else ","
    with opened(path) as file:
        table = pyarrow.csv.read_csv(
            file,
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter),
            convert_options=pyarrow.csv.ConvertOptions(null_values=NULLS),
        )
    _check_names(path, table.column_names, delimiter)
    return table


def unreadable(source: str, error: BaseException, how: str = "") -> UnreadableDataError:
    """An error in one sentence for anything that a library raises at a damaged file or an unreachable name."""
    here = Path(source).exists() or glob.has_magic(source) or is_address(source)
    why = f"{one_line(error)}." if here else why_not(source, error)
    return UnreadableDataError(f"{source} cannot be read{how}: {why}")
