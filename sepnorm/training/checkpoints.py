"""Checkpoints of a run: which exist, which are complete, and which are kept."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from sepnorm.data.torch_files import ARRAYS, stored
from sepnorm.distributed import all_equal
from sepnorm.errors import SepNormError, one_line
from sepnorm.files import DAMAGE, settle, sync_below, write_text

logger = logging.getLogger("sepnorm")
_COMPLETE = "complete"  # a file that is written last, into a complete checkpoint
_KEPT = 2  # checkpoints kept of a run


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint, or None. Damaged or incomplete ones are skipped with a warning."""
    for path in _checkpoints(folder):
        if _is_whole(path):
            return path
        logger.warning("%s is incomplete or damaged and is skipped: the run resumes from the one before it.", path)
    return None


def common_checkpoint(folder: Path, device: torch.device) -> Path | None:
    """The last checkpoint, which must be the same in all processes, or they would train different steps together."""
    last = last_checkpoint(folder)
    if not all_equal(-1 if last is None else step_of(last), device):
        raise SepNormError(
            f"the processes of this run find different checkpoints in {folder}: choose an --out folder that all nodes see."
        )
    return last


def step_of(checkpoint: Path | None) -> int:
    """The step after which a checkpoint was written; 0 without one."""
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("checkpoint-"))


def complete(checkpoint: Path, kept: dict[str, Any]) -> None:
    """Marks a checkpoint as complete, stores ``kept`` and checksums in it, and deletes older checkpoints."""
    (checkpoint / _COMPLETE).unlink(missing_ok=True)  # left by an earlier attempt at this step
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    sums = {str(path.relative_to(checkpoint)): settle(path) for path in files}
    sync_below(checkpoint)
    write_text(checkpoint / _COMPLETE, json.dumps(kept | {"checksums": sums}))
    _prune(checkpoint)


def read_note(checkpoint: Path) -> dict[str, Any]:
    """Reads what ``complete`` stored; raises ``ValueError`` if it is damaged."""
    try:
        note = json.loads((checkpoint / _COMPLETE).read_text(encoding="utf-8"))
        return {
            "checksums": {str(name): str(checksum) for name, checksum in note["checksums"].items()},
            "losses": [(int(step), float(loss)) for step, loss in note["losses"]],
            "seconds": float(note["seconds"]),
            "pending": [float(loss) for loss in note["pending"]],
        }
    except (ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{checkpoint / _COMPLETE} is damaged: {error}") from error


def require_plain(checkpoint: Path) -> None:
    """Raises if the state of an optimiser, or of random numbers, holds other things than tensors and numbers."""
    for path in sorted([*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")]):
        try:
            with stored(path, ARRAYS):
                pass
        except DAMAGE as error:
            raise SepNormError(
                f"{checkpoint} contains pickled objects, which are not loaded for safety: {path.name}: {one_line(error)}. "
                "Remove that folder to resume from the checkpoint before it."
            ) from error


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoints by step, newest first. Dates are not used, since clocks may be changed."""
    named = {path: re.fullmatch(r"checkpoint-(\d+)", path.name) for path in folder.glob("checkpoint-*")}
    steps = {path: int(match[1]) for path, match in named.items() if match}
    return sorted(steps, key=lambda path: steps[path], reverse=True)


def _is_whole(checkpoint: Path) -> bool:
    """Whether every file has the checksum that was stored when the checkpoint was completed."""
    try:
        sums = read_note(checkpoint)["checksums"]
        return bool(sums) and all(settle(checkpoint / name) == checksum for name, checksum in sums.items())
    except (OSError, ValueError):
        return False


def _prune(newest: Path) -> None:
    """Deletes all but the newest complete checkpoints; ``newest`` is one of them."""
    kept = 1
    for path in _checkpoints(newest.parent):
        if path != newest and kept < _KEPT and _is_whole(path):
            kept += 1
        elif path != newest:
            shutil.rmtree(path, ignore_errors=True)
