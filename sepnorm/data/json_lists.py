"""Reads a JSON list item by item, so that memory holds one item at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_LONGEST = 10**7  # characters of an item that are certainly read
_BLANKS = re.compile(r"[ \t\n\r]*")


class _Window:
    """A part of a text file that moves on; from ``place`` on it has ``_LONGEST`` characters or all that are left."""

    def __init__(self, file: Any) -> None:
        self._file, self._text, self._place, self._ended = file, "", 0, False

    def sign(self) -> str:
        """The next character that is not blank, which is not passed; empty at the end."""
        while True:
            if not self._ended and len(self._text) - self._place < _LONGEST:
                added = self._file.read(_LONGEST)
                self._text, self._place, self._ended = self._text[self._place :] + added, 0, not added
            self._place = _BLANKS.match(self._text, self._place).end()  # type: ignore[union-attr]
            if self._place < len(self._text) or self._ended:
                return self._text[self._place : self._place + 1]

    def passed(self, signs: str) -> str:
        """Passes the next character, which must be one of ``signs``, and returns it."""
        found = self.sign()
        if not found or found not in signs:
            raise json.JSONDecodeError(f"expected {' or '.join(signs)}", "", 0)
        self._place += 1
        return found

    def item(self) -> Any:
        self.sign()
        value, self._place = json.JSONDecoder().raw_decode(self._text, self._place)
        return value


def list_items(file: Any) -> Iterator[Any]:
    """Yields the items of a text file that is one JSON list; raises ``JSONDecodeError`` where it is damaged."""
    window = _Window(file)
    window.passed("[")
    if window.sign() == "]":
        window.passed("]")
    else:
        yield window.item()
        while window.passed(",]") == ",":
            yield window.item()
    if window.sign():
        raise json.JSONDecodeError("there is more after the end of the list", "", 0)
