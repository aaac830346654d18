"""Notation of a launcher: ``local``, or a scheduler's name followed by its settings."""

from __future__ import annotations

from typing import Any

from sepnorm.errors import SepNormError, require_known
from sepnorm.training.configs import parse_changes

LAUNCHERS = ("local", "submitit", "ray")


def parse_launcher(text: str) -> tuple[str, dict[str, Any]]:
    """Parses a launcher to its name and settings.

    >>> parse_launcher("submitit timeout_min=600")
    ('submitit', {'timeout_min': 600})
    """
    name, *settings = text.split() or [""]
    require_known("launcher", name, LAUNCHERS)
    if name == "local" and settings:
        raise SepNormError(f"the launcher local takes no settings, found {' '.join(settings)!r}.")
    return name, parse_changes(settings)
