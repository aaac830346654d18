"""Files that are written whole or not at all, and folders that one process at a time works in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepnorm.errors import SepNormError

if TYPE_CHECKING:
    from torch import Tensor


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


def write_arrays(path: Path, arrays: Mapping[str, Tensor]) -> None:
    """Tensors by name to an ``.npz`` file, whole or not at all."""
    import numpy

    def write(scratch: str) -> None:
        with open(scratch, "wb") as file:
            numpy.savez(file, allow_pickle=False, **{name: rows.numpy() for name, rows in arrays.items()})

    write_whole(path, write)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuses a folder that another process works in. The lock goes with the process that has it, however that ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SepNormError(
                f"another process is at work in {folder}: wait until it has ended, or name another folder by --out."
            ) from None
        yield
