"""Folder names for runs."""

from __future__ import annotations

import re
from pathlib import Path


def slug(name: str) -> str:
    """A name with all characters replaced that do not fit into a folder name."""
    return re.sub(r"[^A-Za-z0-9+.@=-]+", "-", name.replace("λ", "lambda"))


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    """The folder of one run, below the folder of its comparison."""
    return folder / "runs" / f"{slug(arm)}-seed{seed}"
