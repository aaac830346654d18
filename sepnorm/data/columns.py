"""What the cells and columns of a table of embeddings are: names, numbers or keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sepnorm.errors import SepNormError

#: Most dimensions of embeddings. Memory grows with their number, and with its square where there are as many rows.
_WIDEST = 16_384


def require_commas(line: str) -> None:
    """Refuses cells that are separated by semicolons or tabs, also where commas are part of their numbers."""
    for separator in ";\t":
        cells = line.strip().split(separator)
        if len(cells) > 1 and ("," not in line or all(_is_float(cell.replace(",", ".")) for cell in cells)):
            raise SepNormError(
                f"its cells are separated by {separator!r}: separate them by commas, and write numbers as 0.5."
            )


def require_numbers(name: str, cells: Sequence[str | None]) -> None:
    """Refuses a column that is read as text, though most of its cells are decimal numbers: it would be no dimension."""
    full = [cell for cell in cells if cell]
    words = [cell for cell in full if not _is_float(cell)]
    decimals = [cell for cell in full if not cell.isdecimal() and _is_float(cell.replace(",", "."))]
    if words and len(decimals) > len(full) / 2:
        raise SepNormError(
            f"its column {name!r} holds numbers and {words[0]!r}, which is none: write numbers as 0.5, and leave cells without "
            "a number empty."
        )


def is_data(line: str) -> bool:
    """Whether the first line holds numbers rather than column names. ``0,1,2`` are names, as pandas writes them."""
    cells = [cell.strip().strip('"') for cell in line.strip().split(",")]
    whole = [cell for cell in cells if cell.isdecimal()]
    if len(whole) == len(cells):
        return len(set(whole)) < len(whole)  # column names differ from each other
    return any(_is_float(cell) for cell in cells if not cell.isdecimal())


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_counted(column: Any, strict: bool) -> bool:
    """Whether integers are all different, and with ``strict`` also consecutive."""
    import pyarrow.compute

    values = column.drop_null()
    if len(values) < 3 or pyarrow.compute.count_distinct(values).as_py() < len(values):
        return False
    lowest, highest = pyarrow.compute.min_max(values).as_py().values()
    return not strict or highest - lowest == len(values) - 1


def counts_in_floats(column: Any) -> bool:
    """Whether floats written as 0.0, 1.0 and so on count the rows."""
    import pyarrow.compute

    values = column.drop_null()
    finite = len(values) > 2 and pyarrow.compute.all(pyarrow.compute.is_finite(values)).as_py()
    if not finite or not pyarrow.compute.all(pyarrow.compute.equal(values, pyarrow.compute.floor(values))).as_py():
        return False
    return is_counted(values, strict=True)


def labels_of(cells: Iterable[Any]) -> list[str | None]:
    """Labels as text. A cell that is empty or NaN is no class of its own, but None."""
    return [None if cell is None or cell == "" or cell != cell else str(cell) for cell in cells]


def require_narrow(dim: int, most: int = _WIDEST) -> None:
    """Raises for embeddings of more dimensions than can be measured within memory."""
    if dim > most:
        raise SepNormError(f"its embeddings have {dim:,} dimensions, and {most:,} are the most that are read.")
