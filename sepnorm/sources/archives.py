"""Reads files in archives by name, with a size limit and without extracting to disk."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from sepnorm.errors import SepNormError, one_line
from sepnorm.files import DAMAGE, LARGE, PACKED
from sepnorm.sources.records import Progress

_MEMBERS = 100_000
_DAMAGE: tuple[type[Exception], ...] = (tarfile.TarError, *DAMAGE)


def tar_files(path: Path, wanted: Callable[[str], bool], progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the wanted files of a tar archive, in its order.

    Raises for an archive with paths outside of itself, or with a link instead of a wanted file.
    """
    most = max(LARGE, PACKED * path.stat().st_size)
    try:
        with progress(f"{path.name}, MiB") as tick, open(path, "rb") as raw, tarfile.open(fileobj=raw) as archive:
            unpacked = 0
            for number, member in enumerate(archive):
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise SepNormError(f"{path} holds {member.name!r}, a place outside of it, and is not read.")
                unpacked += member.size
                if unpacked > most or number > _MEMBERS or (wanted(str(name)) and member.size > LARGE):
                    raise SepNormError(f"{path} unpacks to far more than it should, and is not read on.")
                if not wanted(str(name)):
                    continue
                if not member.isreg():
                    raise SepNormError(f"{path} has a link or a folder {member.name!r} where a file is wanted.")
                file = archive.extractfile(member)
                content = b"" if file is None else file.read()
                if len(content) != member.size:
                    raise SepNormError(f"{path} is cut short in {member.name!r}.")
                yield str(name), content
                if tick is not None:
                    tick(raw.tell() // 2**20, path.stat().st_size // 2**20)
    except SepNormError:
        raise
    except _DAMAGE as error:
        raise SepNormError(f"{path} is no complete tar archive: {one_line(error)}. Download it again.") from error


def tar_named(path: Path, ends: dict[str, str], progress: Progress) -> dict[str, bytes]:
    """Contents by key of the files whose paths end with the values of ``ends``. Each must occur exactly once."""

    def key(name: str) -> str | None:
        return next((key for key, end in ends.items() if f"/{name}".endswith(f"/{end}")), None)

    found: dict[str, bytes] = {}
    for name, content in tar_files(path, lambda name: key(name) is not None, progress):
        which = key(name)
        assert which is not None
        if which in found:
            raise SepNormError(f"{path} has two files {ends[which]}.")
        found[which] = content
    if missing := [end for key, end in ends.items() if key not in found]:
        raise SepNormError(f"{path} has no file {missing[0]}: is it another archive?")
    return found


def zip_lines(path: Path, name: str) -> Iterator[bytes]:
    """The lines of one file of a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            if name not in archive.namelist():
                raise SepNormError(f"{path} has no file {name}: is it another archive?")
            if archive.getinfo(name).file_size > max(LARGE, PACKED * path.stat().st_size):
                raise SepNormError(f"{path} unpacks to far more than it should, and is not read.")
            with archive.open(name) as file:
                yield from file
    except SepNormError:
        raise
    except DAMAGE as error:
        raise SepNormError(f"{path} is no complete zip archive: {one_line(error)}. Download it again.") from error
