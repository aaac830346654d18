"""Folders of runs on nodes that do not share ours: the run works in a local folder, which is sent back as bytes.

A note in our folder, which a node can read or not, tells whether the folder is shared. The local folder is removed only
when its content has arrived, since it may be the only copy.
"""

from __future__ import annotations

import io
import math
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sepnorm.files import sync_below, write_text
from sepnorm.training.checkpoints import last_checkpoint, step_of

_NOTE = ".sepnorm-shared"
_LAST = "metrics.json"  # a folder with it holds a finished run


@dataclass(frozen=True)
class Place:
    """The folder of all runs on the node that started them."""

    folder: Path
    token: str

    @classmethod
    def of(cls, folder: Path) -> Place:
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / _NOTE
        if not note.is_file():
            write_text(note, secrets.token_hex(16))
        return cls(folder, note.read_text(encoding="utf-8"))

    @property
    def seen(self) -> bool:
        """Whether this node shares the folder."""
        try:
            return (self.folder / _NOTE).read_text(encoding="utf-8") == self.token
        except OSError:
            return False

    def here(self, run: Path) -> Path:
        """The folder of a run on this node."""
        return run if self.seen else self.apart(run)

    def apart(self, run: Path) -> Path:
        """The folder of a run on a node that does not share ours."""
        return Path(tempfile.gettempdir()) / f"sepnorm-{self.token}" / run.name


def saved(run: Path) -> float:
    """How far a saved run is: the step of its last checkpoint, 0 without one, -1 if it has not begun, inf if finished."""
    if (run / _LAST).is_file():
        return math.inf
    last = last_checkpoint(run / "checkpoints")
    if last is not None:
        return step_of(last)
    return 0 if (run / "config.json").is_file() else -1


def carried(run: Path) -> bytes:
    """The content of an unfinished run to send to a node, with its last checkpoint alone."""
    last = last_checkpoint(run / "checkpoints")
    others = [path for path in run.glob("checkpoints/*") if path != last]
    return pack(run, others)


def bring_home(content: bytes, run: Path) -> None:
    """Unpacks what a node sent back into the run's folder."""
    unpack(content, run)
    if (run / _LAST).is_file():  # checkpoints are left by an earlier attempt, and the node could not remove them
        shutil.rmtree(run / "checkpoints", ignore_errors=True)


def pack(folder: Path, without: Sequence[Path] = ()) -> bytes:
    """All files of a folder except its lock, as bytes; ``without`` are folders in it that are left out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.name != ".lock" and not any(path.is_relative_to(other) for other in without):
                archive.add(path, str(path.relative_to(folder)), recursive=False)
    return buffer.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Unpacks into a folder. The file that marks a finished run is written last, when all others are on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = archive.getmembers()
        archive.extractall(folder, [member for member in members if member.name != _LAST], filter="data")
        sync_below(folder)
        archive.extractall(folder, [member for member in members if member.name == _LAST], filter="data")
