"""Resumable downloads and checksums."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from sepnorm._version import __version__
from sepnorm.errors import SepNormError, one_line
from sepnorm.files import sync
from sepnorm.sources.records import Original, Progress

_SECONDS = 30.0  # without data before a download fails
_AT_ONCE = 2**18  # bytes
_MOST = 2**31  # bytes of a file: all originals are smaller
_MIB = 2**20
_BROKEN = (OSError, http.client.HTTPException)


def download(address: str, path: Path, progress: Progress) -> None:
    """Downloads a file. If this fails, the next call resumes from the partial file.

    A partial file is named after the server's ETag or date, so that two versions are never mixed.
    """
    if not address.startswith(("http://", "https://")):
        raise SepNormError(f"{address} is no address that can be downloaded: it has to begin with http:// or https://.")
    with _opened(address) as answer:
        total = int(answer.headers.get("Content-Length") or 0)
        mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        part = path.with_name(f"{path.name}.{hashlib.sha256(f'{mark} {total}'.encode()).hexdigest()[:8]}.part")
        have = part.stat().st_size if mark and total and part.is_file() else 0
        if not 0 < have < total:
            _keep(answer, address, part, 0, total, progress)
    if 0 < have < total:
        with _opened(address, have) as answer:
            whole = answer.status != 206  # the server may ignore the range
            _keep(answer, address, part, 0 if whole else have, total, progress)
    sync(part)
    os.replace(part, path)
    for old in path.parent.glob(f"{path.name}.*.part"):
        old.unlink()


def _opened(address: str, start: int = 0) -> Any:
    headers = {"User-Agent": f"sepnorm/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        raise _unreachable(address, f"the server says {error.code} {error.reason}") from error
    except (*_BROKEN, ValueError) as error:
        raise _unreachable(address, one_line(getattr(error, "reason", None) or error)) from error


def _unreachable(address: str, why: str) -> SepNormError:
    return SepNormError(
        f"{address} cannot be downloaded ({why}): fetch it where that is possible, and hand it in by --from FILE_OR_FOLDER."
    )


def _keep(answer: Any, address: str, part: Path, have: int, total: int, progress: Progress) -> None:
    """Appends the body of a response to a partial file of ``have`` bytes."""
    if total > _MOST:
        raise SepNormError(f"{address} has {total / 2**30:.1f} GiB, more than any file that is wanted here.")
    with progress(f"{address.rpartition('/')[2]}, MiB") as tick, open(part, "r+b" if have else "wb") as file:
        file.seek(have)
        while True:
            try:
                block = answer.read1(_AT_ONCE)  # whatever has arrived, so that slow responses are kept too
            except _BROKEN as error:
                raise _stopped(address, have, total, one_line(error)) from error
            if not block:
                break
            file.write(block)
            file.flush()
            have += len(block)
            if have > (total or _MOST):
                raise SepNormError(
                    f"{address} sends more than {total or _MOST:,} bytes: the address is not what it was."
                )
            if tick is not None and total:
                tick(have // _MIB, total // _MIB)
    if have < total:
        raise _stopped(address, have, total, "the connection ended")


def _stopped(address: str, have: int, total: int, why: str) -> SepNormError:
    so_far, next_time = (f"{have:,} of {total:,}", "goes on from there") if total else (f"{have:,}", "begins anew")
    return SepNormError(f"{address} stopped after {so_far} bytes ({why}): the same command {next_time}.")


def wrong_checksum(original: Original, path: Path) -> str:
    """Describes a mismatch with the published checksum; empty if it matches or none is published."""
    if not original.checksum:
        return ""
    kind, _, expected = original.checksum.partition(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    return "" if found == expected else f"{path} has the {kind.upper()} {found}, and {expected} is expected"
