"""Writes compressed tables for the commands. The same rows always give the same bytes."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError


@contextmanager
def gzipped(path: Path) -> Iterator[Any]:
    """Opens a gzip file for text, without time and name in its header."""
    with (
        open(path, "wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        yield text


def write_tsv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Counter[str]:
    """Writes rows without quotes. Returns the number of rows by split, or as ``all`` without a column ``split``."""
    number = list(columns).index("split") if "split" in columns else None
    counts: Counter[str] = Counter()
    with gzipped(path) as file:
        file.write("\t".join(columns) + "\n")
        for row in rows:
            if len(row) != len(columns) or any(sign in cell for cell in row for sign in "\t\n\r"):
                raise SepNormError(f"a row has to have {len(columns)} cells without tabs and line ends, found {row!r}.")
            file.write("\t".join(row) + "\n")
            counts["all" if number is None else row[number]] += 1
    return counts


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Counter[str]:
    """Writes rows with a column ``split``. Returns the number of rows by split."""
    counts: Counter[str] = Counter()
    with gzipped(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(row)
            counts[row[list(columns).index("split")]] += 1
    return counts


def decoded(content: bytes) -> str:
    """Decodes UTF-8, or else Latin-1, in which TREC is distributed."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def lines_of(content: bytes) -> list[str]:
    """The non-empty lines, split at line feeds only: other line separators occur inside sentences."""
    return [line for raw in decoded(content).split("\n") if (line := raw.rstrip("\r")).strip()]


def tab_cells(content: bytes, name: str, least: int) -> list[list[str]]:
    """The cells of a tab-separated file by line; raises if a line has fewer than ``least``."""
    rows = [[cell.strip() for cell in line.split("\t")] for line in lines_of(content)]
    for number, row in enumerate(rows, 1):
        if len(row) < least:
            raise SepNormError(f"line {number} of {name} has {len(row)} cells, and {least} are expected.")
    return rows
