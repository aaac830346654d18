"""Refuses tokenisers that make far more of a text than it is."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError

#: Letters made of one. Unicode's own rules make 18 at most, and a usual pattern for runs of spaces counts as 2.
_MOST_GROWN = 40
_MOST_ADDED = 64  # tokens put around a text; BERT has 2


def require_bounded(tokenizer: Any, where: Path) -> Any:
    """Returns a tokeniser of transformers; raises if its steps may make a text many times longer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # written in Python: no step comes from a file
        return tokenizer
    growth = prod(_growth(step) for part in (backend.normalizer, backend.pre_tokenizer) for step in _steps(part))
    if growth > _MOST_GROWN:
        raise SepNormError(
            f"{where} has a tokeniser that may make {growth:,.0f} letters of one, and {_MOST_GROWN} are the most: it is not opened."
        )
    added = sum(_added(step) for step in _steps(backend.post_processor))
    if added > _MOST_ADDED:
        raise SepNormError(
            f"{where} has a tokeniser that puts {added:,} tokens around a text, and {_MOST_ADDED} are the most: it is not opened."
        )
    return tokenizer


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The settings of the steps of a tokeniser's part, those of sequences in sequences too."""
    waiting = [] if part is None else [json.loads(part.__getstate__())]
    while waiting:
        step = waiting.pop()
        if step["type"] == "Sequence":
            waiting += next(value for value in step.values() if isinstance(value, list))
        else:
            yield step


def _growth(step: dict[str, Any]) -> float:
    """Letters that a step may make of one, if it may be repeated with more effect."""
    match step["type"]:
        case "Replace":
            replaced = step["pattern"].get("String")
            if replaced:
                return max(1.0, len(step["content"]) / len(replaced))
            return 1 + len(step["content"])  # a pattern may match nothing, between any two letters
        case "Prepend":
            return max(1, len(step["prepend"]))
        case "Precompiled":
            rules = base64.b64decode(step["precompiled_charsmap"])
            made = rules[4 + int.from_bytes(rules[:4], "little") :].split(b"\0")
            return max(1, *(len(each.decode("utf-8", "replace")) for each in made))
        case "ByteLevel":
            return 4  # a letter of each byte
        case "BertNormalizer":
            return 3  # spaces around Chinese letters
    return 1


def _added(step: dict[str, Any]) -> int:
    if step["type"] != "TemplateProcessing":
        return 0
    names = [piece["SpecialToken"]["id"] for piece in step["single"] if "SpecialToken" in piece]
    return sum(len(step["special_tokens"][name]["ids"]) for name in names if name in step["special_tokens"])
