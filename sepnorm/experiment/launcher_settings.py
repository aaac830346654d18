"""Notation of a launcher: ``local``, or a scheduler's name followed by its settings."""

from __future__ import annotations

import os
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


def refuse_many_processes() -> None:
    """Refuses a comparison in several processes of torchrun or accelerate, which would all begin the same runs.

    Runs that a launcher starts are jobs and do not come here. Tasks of ``srun`` alone have no WORLD_SIZE.
    """
    count = os.environ.get("WORLD_SIZE", "1").strip()
    if count.isdecimal() and int(count) > 1:
        raise SepNormError(
            f"a comparison was started in {count} processes (WORLD_SIZE), which would all begin the same runs: start it in "
            "one, with --launcher for many runs at a time, or train one model in many processes by sepnorm pretrain."
        )
