"""Styles of arms: one colour per norm on all pages, and dashes or hollow markers for shared norms."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sepnorm.training.notation import KINDS

#: Colours of norms: grey and warm for shared, cool for separate. Contrast is at least 3:1 on light and dark pages.
NORMS = {
    "ln": "#59636E",
    "bn": "#B35900",
    "bn+ln": "#1F6FB2",
    "bn+bn": "#8250DF",
    "ln+ln": "#0F9488",
    "ln+bn": "#C4488A",
    "rms": "#8C7A00",
    "mix": "#9C4A5A",
}
#: Colours for everything else, in this order. Adjacent ones differ for colour-blind readers.
COLOURS = ("#1F6FB2", "#B35900", "#0F9488", "#C4488A", "#8250DF", "#8C7A00", "#9C4A5A", "#59636E")
#: Colour of what all arms have in common, such as tokens drawn next to [CLS].
NEUTRAL = "#808A94"
_NORM = re.compile(r"([a-z]+)(\+[a-z]+)?(?=$|[@ ,])")


@dataclass(frozen=True)
class Style:
    """Colour of an arm, and its kind: ``shared``, ``separate``, or empty if unknown."""

    colour: str
    kind: str = ""

    @property
    def line(self) -> dict[str, Any]:
        """Line style for plotly: dashed for shared norms."""
        return {"color": self.colour, "dash": "dash" if self.kind == "shared" else "solid"}

    @property
    def marker(self) -> dict[str, Any]:
        """Marker style for plotly: hollow for shared norms."""
        return {"color": self.colour, "symbol": "circle-open" if self.kind == "shared" else "circle"}


def norm_of(name: str) -> str:
    """The norm at the start of an arm's name; empty if there is none.

    >>> norm_of("bn+ln@final λ=0.1 cls"), norm_of("ln"), norm_of("before")
    ('bn+ln', 'ln', '')
    """
    found = _NORM.match(name)
    known = found is not None and all(part in KINDS.values() for part in found.group().split("+"))
    return found.group() if found is not None and known else ""


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name. The first arm with a norm gets the norm's colour; the others get unused colours."""
    names = list(dict.fromkeys(names))
    found: dict[str, str] = {}
    for name in names:
        colour = NORMS.get(norm_of(name), "")
        if colour and colour not in found.values():
            found[name] = colour
    left = [colour for colour in COLOURS if colour not in found.values()] or list(COLOURS)
    others = [name for name in names if name not in found]
    found |= {name: left[number % len(left)] for number, name in enumerate(others)}
    return {name: Style(found[name], kind_of(name)) for name in names}


def kind_of(name: str) -> str:
    """``shared`` or ``separate`` by the norm at the start of an arm's name; empty if there is none."""
    norm = norm_of(name)
    return ("separate" if "+" in norm else "shared") if norm else ""
