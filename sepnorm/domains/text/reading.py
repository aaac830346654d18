"""Strict readers for test sets: a broken row is an error, not skipped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from sepnorm.data.tables import LONGEST_TEXT
from sepnorm.errors import SepNormError
from sepnorm.files import require_file


def whole_lines(path: Path) -> list[str]:
    """The lines of a file in UTF-8 or, like some of SentEval's, Latin-1."""
    require_file(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SepNormError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    # only there: Latin-1 texts hold characters at which Unicode breaks lines
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def tab_rows(path: Path, least: int, header: bool = False) -> list[list[str]]:
    """Cells of a tab-separated file without quotes, at least ``least`` a line; a header is dropped."""
    rows = []
    for number, line in enumerate(whole_lines(path), 1):
        cells = line.split("\t")
        if header and number == 1:
            continue
        if len(cells) < least:
            raise SepNormError(
                f"line {number} of {path} has {len(cells)} tab-separated cells, and at least {least} are needed."
            )
        rows.append(cells)
    return rows


def clean(value: Any) -> str:
    """A text with single spaces between its words; an empty string for anything else."""
    return " ".join(value[:LONGEST_TEXT].split()) if isinstance(value, str) else ""


def text_in(value: Any, column: str, where: str) -> str:
    """The text of a cell; raises if there is none."""
    if not (text := clean(value)):
        raise SepNormError(f"{where} has no text in {column!r}, found {value!r}.")
    return text


def number_in(value: Any, column: str, where: str) -> float:
    """The number in a cell; raises if there is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise SepNormError(f"{where} has no number in {column!r}, found {value!r}.")
    return number
