"""Model classes in the style of transformers that installed packages provide, ours included.

Each is an entry point of the group ``sepnorm.models``, named after its ``model_type``. The class has ``dummy_inputs``,
a batch to try it with. Its module registers it with transformers' ``AutoConfig`` and ``AutoModel``.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


@cache
def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="sepnorm.models")}


def load_own(kind: str) -> Any:
    """The class of a ``model_type``; None if no package provides it."""
    entry = _entries().get(kind)
    return None if entry is None else entry.load()


def own_class(name: str) -> Any:
    """The class of this name; None if no package provides it."""
    kinds = [kind for kind, entry in _entries().items() if entry.attr == name]
    return load_own(kinds[0]) if kinds else None


def is_own(model: Any) -> bool:
    """Whether the model type in the config of a model is one of these."""
    return getattr(getattr(model, "config", None), "model_type", None) in _entries()
