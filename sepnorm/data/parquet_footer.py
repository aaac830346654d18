"""How large the columns of a parquet file are, from its footer.

Our own reader, since pyarrow ends the process where it looks at damaged metadata of a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError
from sepnorm.files import DAMAGE

_BYTES = (6, 7)  # types whose values may be of any length


@dataclass(frozen=True)
class Chunk:
    """A column in one row group: its outermost name, rows, values in lists or not, and bytes before compression."""

    column: str
    rows: int
    values: int
    size: int
    of_bytes: bool  # texts, images, decimals


def chunks_of(path: Path) -> list[Chunk]:
    """The chunks of a parquet file; raises if its footer is damaged."""
    try:
        with path.open("rb") as file:
            file.seek(-8, 2)
            length = int.from_bytes(file.read(4), "little")
            file.seek(-8 - length, 2)
            groups = _Thrift(file.read(length)).value(_STRUCT)[4]
        return [_chunk(column[3], group[3]) for group in groups for column in group[1]]
    except DAMAGE as error:
        raise SepNormError(f"{path} cannot be read: its footer is damaged. Write it again.") from error


def _chunk(found: dict[int, Any], rows: int) -> Chunk:
    return Chunk(found[3][0].decode(), int(rows), int(found[5]), int(found[6]), found[1] in _BYTES)


_STRUCT = 12


class _Thrift:
    """Thrift's compact protocol: structs become dictionaries by the numbers of their fields."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0

    def value(self, kind: int) -> Any:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._number())
            case 9 | 10:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._number()
                return [self._item(head & 15) for _ in range(count)]
            case 12:
                return self._fields()
        raise ValueError(f"no parquet file has the type {kind} of Thrift")

    def _item(self, kind: int) -> Any:
        return self._byte() == 1 if kind in (1, 2) else self.value(kind)

    def _fields(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            found[number] = self.value(head & 15)
        return found

    def _byte(self) -> int:
        self._place += 1
        return self._content[self._place - 1]

    def _bytes(self, count: int) -> bytes:
        self._place += count
        if self._place > len(self._content):
            raise ValueError("it is cut short")
        return self._content[self._place - count : self._place]

    def _number(self) -> int:
        number = shift = 0
        while (byte := self._byte()) >= 128:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def _signed(self) -> int:
        number = self._number()
        return (number >> 1) ^ -(number & 1)
