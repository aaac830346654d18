"""File access that survives crashes: atomic writes, clear errors for damaged files, one process per folder."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import secrets
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sepnorm.errors import SepNormError, is_of_full_disk, one_line

if TYPE_CHECKING:
    from torch import Tensor

_T = TypeVar("_T")
#: Exceptions that libraries raise when they read a damaged file.
DAMAGE: tuple[type[Exception], ...] = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError, TypeError,
    ValueError, lzma.LZMAError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

# Arrays of up to LARGE bytes are always unpacked; larger ones only if they expand by at most PACKED times.
LARGE, PACKED = (2**28, 100)


def write_whole(path: Path, write: Callable[[str], _T]) -> _T:
    """Writes a file atomically: under a temporary name, flushed to disk, then renamed over the old file.

    Returns what ``write`` returned.
    """
    scratch = path.with_name(f".sepnorm-{secrets.token_hex(8)}")  # not the pid, which repeats across containers
    try:
        written = write(str(scratch))
        sync(scratch)
        os.replace(scratch, path)
        sync(path.parent)
        return written
    finally:
        scratch.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes text atomically as UTF-8. Undecodable bytes of file names become backslash escapes."""
    write_whole(path, lambda scratch: Path(scratch).write_bytes(text.encode("utf-8", "backslashreplace")))


def sync(path: Path) -> None:
    """Flushes a file, or the directory entries of a folder, to disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_below(folder: Path) -> None:
    """Flushes everything in a folder to disk."""
    for path in [*folder.rglob("*"), folder, folder.parent]:
        if path.is_dir() or path.is_file():
            sync(path)


def settle(path: Path) -> str:
    """Flushes a file to disk and returns its checksum."""
    require_file(path)
    sync(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def require_file(path: Path) -> None:
    """Raises unless ``path`` is a regular file. Opening a named pipe would block for ever."""
    if not path.is_file():
        raise SepNormError(f"{path} is not a regular file." if path.exists() else f"there is no file {path}.")


def regular_files(folder: Path, suffixes: tuple[str, ...]) -> tuple[list[Path], list[Path]]:
    """Sorted regular files below a folder with one of ``suffixes``, and apart, matching pipes, devices, dead links."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    return [path for path in found if path.is_file()], [
        path for path in found if not path.is_file() and not path.is_dir()
    ]


def make_folder(folder: Path) -> None:
    """Makes a folder and checks that it is writable, so that a bad path fails before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SepNormError(f"the folder {folder} cannot be made ({error.strerror}): change --out.") from error
    if not os.access(folder, os.W_OK):
        raise SepNormError(f"the folder {folder} cannot be written to: change --out.")


def require_writable(folder: Path) -> None:
    """Raises if the folder could not be made or written to. Does not make it."""
    place = folder.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise SepNormError(f"the folder {folder} cannot be made ({place} is no folder): change --out.")
    if not os.access(place, os.W_OK):
        raise SepNormError(f"the folder {folder} cannot be written to: change --out.")


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turns a library's error for a full or read-only disk into a ``SepNormError``."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if not is_of_full_disk(error):
            raise
        raise SepNormError(
            f"{place} cannot be written to, perhaps for want of room on the disk: {one_line(error)}."
        ) from error


def write_arrays(path: Path, arrays: Mapping[str, Tensor]) -> None:
    """Writes named tensors atomically to an ``.npz`` file."""
    import numpy

    def write(scratch: str) -> None:
        with open(scratch, "wb") as file:
            numpy.savez(file, allow_pickle=False, **{name: rows.numpy() for name, rows in arrays.items()})

    write_whole(path, write)


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """Turns any error from reading or parsing a file of a run into a ``SepNormError`` that names the file."""
    try:
        yield
    except SepNormError:
        raise
    except DAMAGE as error:
        raise SepNormError(
            f"{path} is damaged: {one_line(error)}. Remove the folder {path.parent} to run it again."
        ) from error


def read_json(path: Path) -> Any:
    """Parses a JSON file of a run."""
    with intact(path):
        return json.loads(path.read_text(encoding="utf-8"))


def read_arrays(path: Path) -> dict[str, Tensor]:
    """Reads the tensors that ``write_arrays`` wrote."""
    import numpy
    import torch

    with intact(path), numpy.load(path, allow_pickle=False) as arrays:
        refuse_bombs(arrays.zip)
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def refuse_bombs(archive: Any) -> None:
    """Raises if a small ``.npz`` archive would expand to fill the memory."""
    for info in archive.infolist():
        if info.file_size > LARGE and info.file_size > PACKED * info.compress_size:
            raise SepNormError(
                f"its array {info.filename} has {info.file_size / 2**30:.1f} GiB, packed to {info.compress_size / 2**20:.1f} MiB, "
                "and is not unpacked: save it as .npy."
            )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder for this process; raises if another holds it. The lock ends with the process, even if killed."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SepNormError(
            f"another process is at work in {folder}: wait until it has ended, or name another folder by --out."
        ) from None
    try:
        yield
    finally:
        lock.release()
