"""Folder names for runs."""

from __future__ import annotations

import re


def slug(name: str) -> str:
    """A name with all characters replaced that do not fit into a folder name."""
    return re.sub(r"[^A-Za-z0-9+.@=-]+", "-", name.replace("λ", "lambda"))
