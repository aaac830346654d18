"""Files that are written whole or not at all, or are refused where they are damaged; folders for one process at a time."""

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
from typing import TYPE_CHECKING, Any

from sepnorm.errors import SepNormError, is_of_full_disk, one_line

if TYPE_CHECKING:
    from torch import Tensor

#: What libraries raise at damaged files.
DAMAGE: tuple[type[Exception], ...] = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError, TypeError,
    ValueError, lzma.LZMAError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

LARGE, PACKED = (
    2**28,
    100,
)  # bytes that are unpacked without a question, and how many times larger than packed more may be


def write_whole(path: Path, write: Callable[[str], Any]) -> None:
    """Writes under another name first, so that what was there is whole until the new file is, and waits for the disk."""
    scratch = path.with_name(f".sepnorm-{secrets.token_hex(8)}")  # process numbers are the same in several containers
    try:
        write(str(scratch))
        sync(scratch)
        os.replace(scratch, path)
        sync(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Text to a file, whole or not at all; names of files that are no text are written with backslashes."""
    write_whole(path, lambda scratch: Path(scratch).write_bytes(text.encode("utf-8", "backslashreplace")))


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_below(folder: Path) -> None:
    """Waits until everything in a folder is on the disk."""
    for path in [*folder.rglob("*"), folder, folder.parent]:
        if path.is_dir() or path.is_file():
            sync(path)


def settle(path: Path) -> str:
    """Waits until a file is on the disk, and gives its checksum."""
    require_file(path)
    sync(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def require_file(path: Path) -> None:
    """Refuses what is no file before it is opened: a pipe would be waited at for ever."""
    if not path.is_file():
        raise SepNormError(f"{path} is no ordinary file." if path.exists() else f"there is no file {path}.")


def regular_files(folder: Path, suffixes: tuple[str, ...]) -> tuple[list[Path], list[Path]]:
    """The files below a folder with one of these suffixes, sorted, and what looks so and is none: pipes, devices, dead links."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    return [path for path in found if path.is_file()], [
        path for path in found if not path.is_file() and not path.is_dir()
    ]


def make_folder(folder: Path) -> None:
    """Makes a folder that can be written to, or says that it cannot be, before anything is computed for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SepNormError(f"the folder {folder} cannot be made ({error.strerror}): change --out.") from error
    if not os.access(folder, os.W_OK):
        raise SepNormError(f"the folder {folder} cannot be written to: change --out.")


def require_writable(folder: Path) -> None:
    """Refuses a folder that could not be made or written to, without making it."""
    place = folder.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise SepNormError(f"the folder {folder} cannot be made ({place} is no folder): change --out.")
    if not os.access(place, os.W_OK):
        raise SepNormError(f"the folder {folder} cannot be written to: change --out.")


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Says in one sentence that a disk is full, or may not be written to, where a library has an error of its own for that."""
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
    """Tensors by name to an ``.npz`` file, whole or not at all."""
    import numpy

    def write(scratch: str) -> None:
        with open(scratch, "wb") as file:
            numpy.savez(file, allow_pickle=False, **{name: rows.numpy() for name, rows in arrays.items()})

    write_whole(path, write)


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """What goes wrong while a file of a run is read, and understood, is said in one sentence."""
    try:
        yield
    except SepNormError:
        raise
    except DAMAGE as error:
        raise SepNormError(
            f"{path} is damaged: {one_line(error)}. Remove the folder {path.parent} to run it again."
        ) from error


def read_json(path: Path) -> Any:
    """What a JSON file of a run holds."""
    with intact(path):
        return json.loads(path.read_text(encoding="utf-8"))


def read_arrays(path: Path) -> dict[str, Tensor]:
    """What ``write_arrays`` wrote."""
    import numpy
    import torch

    with intact(path), numpy.load(path, allow_pickle=False) as arrays:
        refuse_bombs(arrays.zip)
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def refuse_bombs(archive: Any) -> None:
    """Refuses a zip file of arrays that would fill the memory from little."""
    for info in archive.infolist():
        if info.file_size > LARGE and info.file_size > PACKED * info.compress_size:
            raise SepNormError(
                f"its array {info.filename} has {info.file_size / 2**30:.1f} GiB, packed to {info.compress_size / 2**20:.1f} MiB, "
                "and is not unpacked: save it as .npy."
            )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuses a folder that another process works in. The lock goes with the process that has it, however that ends."""
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
