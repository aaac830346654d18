"""Text alternatives of figures, for screen readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LINES = 10  # lines described one by one


def in_words(figure: Any) -> str:
    """The title, then a sentence per trace: start and end of a line, peak of a histogram, or number of points."""
    told = [_told(trace, figure.layout.xaxis.title.text or "") for trace in figure.data if len(trace.x or ())]
    more = f" And {len(told) - _LINES} more." if len(told) > _LINES else ""
    return f"{figure.layout.meta['title']}. {' '.join(told[:_LINES])}{more}"


def _told(trace: Any, axis: str) -> str:
    name, x, y = _name(trace), list(trace.x), list(trace.y)
    if "lines" not in (trace.mode or ""):
        return f"{name}{len(x)} point{'s' * (len(x) > 1)}."
    if trace.line.shape == "hvh":
        return f"{name}most at {axis} {_number(x[y.index(max(y))])}."
    return f"{name}from {_number(y[0])} to {_number(y[-1])}, {_range(y)}."


def _name(trace: Any) -> str:
    words = [str(trace.name or ""), f"({trace.meta})" if trace.meta else ""]
    if trace.line.dash == "dot" and "tokens" not in words[0]:
        words.append("tokens")
    said = " ".join(word for word in words if word)
    return f"{said}: " if said else ""


def _range(values: Sequence[float]) -> str:
    return f"lowest {_number(min(values))}, highest {_number(max(values))}"


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)
