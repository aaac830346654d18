"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(path: Path, write: Callable[[str], Any]) -> None:
    """Writes under another name first, so that what was there is whole until the new file is."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(str(scratch))
        with open(scratch, "rb") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
