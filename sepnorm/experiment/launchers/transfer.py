"""Folders of runs on nodes that do not share ours: the run works in a local folder, which is sent back as bytes.

A note in our folder, which a node can read or not, tells whether the folder is shared.
"""

from __future__ import annotations

import io
import secrets
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sepnorm.files import sync_below, write_text

_NOTE = ".sepnorm-shared"
_FETCHED = ".sepnorm-fetched"  # marks an unfinished run's folder that came from a node
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
        return run if self.seen else Path(tempfile.gettempdir()) / f"sepnorm-{self.token}" / run.name


def carried(run: Path) -> bytes | None:
    """The content of an unfinished run to send to the next node, if it came from a node; else None."""
    return pack(run) if (run / _FETCHED).is_file() else None


def bring_home(content: bytes | None, run: Path) -> None:
    """Unpacks what a node sent back into the run's folder; ``None`` comes from a node that worked in it."""
    if content is not None:
        unpack(content, run)
    finished = (run / _LAST).is_file()
    if finished and content is not None:
        shutil.rmtree(
            run / "checkpoints", ignore_errors=True
        )  # left by an earlier attempt, which the node could not remove
    if finished:
        (run / _FETCHED).unlink(missing_ok=True)
    elif content is not None:
        (run / _FETCHED).touch()


def pack(folder: Path) -> bytes:
    """All files of a folder except its lock, as bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.name not in (".lock", _FETCHED):
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
