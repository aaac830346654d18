"""Tar files as WebDataset has them: files of the same name but for the suffix are one sample."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, Any, Self

from sepnorm.data.places import is_address
from sepnorm.data.records import IMAGES
from sepnorm.data.tables import LONGEST_TEXT

_TEXTS = ("cls", "json", "label", "text", "txt")
_LARGEST = 2**28  # bytes of a sample in a shard
_LARGEST_NAME = 2**20  # bytes of a long name, or of other data about a member, which are read whole
_ABOUT = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class _Member(tarfile.TarInfo):
    """A member of a shard. Raises for one that says more about another member than names take."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _ABOUT and found.size > _LARGEST_NAME:
            raise ValueError(f"a name in it has {found.size:,} bytes, and {_LARGEST_NAME:,} are the most")
        return found


def tar_rows(files: list[str]) -> Iterator[dict[str, Any]]:
    """A row a sample, a column a suffix: images as bytes, and texts. Other files are passed over.

    Ours rather than that of ``datasets``, which opens an address by an option that s3fs refuses, and unpickles some suffixes.
    """
    for name in files:
        with _opened(name) as file, tarfile.open(fileobj=file, mode="r|", tarinfo=_Member) as tar:
            yield from _rows(tar)


def _opened(name: str) -> IO[bytes]:
    if not is_address(name):
        return open(name, "rb")
    import fsspec

    file: IO[bytes] = fsspec.open(name, "rb").open()
    return file


def _rows(tar: tarfile.TarFile) -> Iterator[dict[str, Any]]:
    last, row, size = None, dict[str, Any](), 0
    for member in tar:
        folder, slash, base = member.name.rpartition("/")
        stem, _, suffix = base.partition(".")
        if not member.isfile() or not stem or not suffix:
            continue
        key = f"{folder}{slash}{stem}"
        if key != last and row:
            yield row
            row = {}
        size = size if key == last else 0
        last = key
        column = suffix.lower()
        kind = column.rpartition(".")[2]
        if kind not in _TEXTS and f".{kind}" not in IMAGES:
            continue
        if member.issparse():
            raise ValueError(f"{member.name} in it is a file with holes, which can be of any size: pack it without")
        size += member.size
        if size > _LARGEST:
            raise ValueError(f"{member.name} in it brings a sample to {size:,} bytes, and {_LARGEST:,} are the most")
        file = tar.extractfile(member)
        assert file is not None  # of an ordinary file
        if kind in _TEXTS:
            row[column] = file.read(4 * LONGEST_TEXT).decode("utf-8", "replace").strip()
        else:
            row[column] = {"bytes": file.read()}
    if row:
        yield row
