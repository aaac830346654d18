"""Names of runs as names of folders."""

from __future__ import annotations

import re


def slug(name: str) -> str:
    """A name that can be a folder's."""
    return re.sub(r"[^A-Za-z0-9+.@=-]+", "-", name.replace("λ", "lambda"))
