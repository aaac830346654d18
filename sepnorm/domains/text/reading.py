"""Lines and cells of files that are read strictly: a broken row of a test set is refused, not left out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from sepnorm.data.tables import LONGEST_TEXT
from sepnorm.errors import SepNormError
from sepnorm.files import require_file


def whole_lines(path: Path) -> list[str]:
    """The lines of a file in UTF-8 or, as some of SentEval's are, Latin-1."""
    require_file(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SepNormError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    lines = text.replace("\r\n", "\n").split("\n")  # at no other sign: Latin-1 texts hold some that Unicode breaks at
    return lines[:-1] if lines[-1] == "" else lines


def tab_rows(path: Path, least: int, header: bool = False) -> list[list[str]]:
    """The cells of a tab-separated file without quoting, ``least`` or more in each line; a header is left out."""
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
    """A text with single blanks between its words; an empty one for what is no text."""
    return " ".join(value[:LONGEST_TEXT].split()) if isinstance(value, str) else ""


def text_in(value: Any, column: str, where: str) -> str:
    """The text of a cell."""
    if not (text := clean(value)):
        raise SepNormError(f"{where} has no text in {column!r}, found {value!r}.")
    return text


def number_in(value: Any, column: str, where: str) -> float:
    """The number of a cell."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise SepNormError(f"{where} has no number in {column!r}, found {value!r}.")
    return number
