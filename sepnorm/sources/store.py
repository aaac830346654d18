"""Writes the files of a source: checks what exists, downloads and checks originals, writes files atomically."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sepnorm.data.places import is_address
from sepnorm.data.tables import opened
from sepnorm.errors import SepNormError
from sepnorm.files import locked, make_folder, require_file, sync, write_text
from sepnorm.sources.download import download, wrong_checksum
from sepnorm.sources.records import Original, Progress, Rows, Source, unseen

SUMS = "SHA256SUMS"  # for `sha256sum --check`
ORIGINALS = "originals"
_SCRATCH = ".sepnorm-"


@dataclass
class Obtained:
    """The files of a source.

    Attributes:
        files: their paths.
        fresh: True if they were written now, False if they were there already.
        notes: sentences on whether they equal the files that the tables were run on.
    """

    files: list[Path]
    fresh: bool
    notes: list[str] = field(default_factory=list)


def obtain(source: Source, out: Path, given: str | None = None, progress: Progress = unseen) -> Obtained:
    """Writes the files of a source to the folder of its name in ``out``, unless they exist.

    Args:
        source: one of ``SOURCES``.
        out: the folder for all data. Downloads are kept in its subfolder ``originals``, which may be removed.
        given: a local file or folder with the published files, or another URL; default the published URL.
        progress: opens a progress bar for a download or a long computation.

    Returns:
        The files, and whether they were written now.

    Raises:
        SepNormError: if a file cannot be downloaded, fails its check, or would overwrite one of yours.
    """
    make_folder(out)
    with locked(out):
        place = out / source.name
        files = [place / name for name in source.rows]
        if _is_right(source, place):
            return Obtained(files, False)
        recorded = _recorded(place)
        if strange := next((path for path in files if os.path.lexists(path) and path.name not in recorded), None):
            raise SepNormError(
                f"{strange} is there and was not written by this command: move it away, or name another folder by --out."
            )
        originals = _originals(source, out, given, progress)
        make_folder(place)
        for old in place.glob(f"{_SCRATCH}*"):  # left by a killed command; we hold the lock
            shutil.rmtree(old, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=place) as name:
            scratch = Path(name)
            _require_rows(source, source.write(originals, scratch, progress), originals)
            for path in files:
                sync(scratch / path.name)
                os.replace(scratch / path.name, path)
        sums = {path.name: _digest(path) for path in files}
        write_text(place / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sums.items()))
        return Obtained(files, True, _notes(source, place))


def _is_right(source: Source, place: Path) -> bool:
    """Whether all files exist and are those that this command wrote, or those that the tables were run on."""
    recorded = _recorded(place)
    for name in source.rows:
        path = place / name
        if not path.is_file():
            return False
        if recorded.get(name) != _digest(path) and (name in recorded or not _is_known(source, path)):
            return False
    return True


def _recorded(place: Path) -> dict[str, str]:
    """SHA-256 by file name, recorded when the files were written."""
    path = place / SUMS
    if not path.is_file():
        return {}
    words = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return {pair[1].strip(): pair[0] for pair in words if len(pair) == 2}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_known(source: Source, path: Path) -> bool:
    if path.name not in source.known:
        return False
    digest = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(2**18):
            digest.update(block)
    return digest.hexdigest() == source.known[path.name]


def _notes(source: Source, place: Path) -> list[str]:
    """Sentences on whether files equal those of the tables, where these are known."""
    same = {name: _is_known(source, place / name) for name in source.known}
    return [
        f"{name} is what the tables were run on, byte for byte."
        if equal
        else f"{name} has the rows that the tables were run on, but not all of its text is the same."
        for name, equal in same.items()
    ]


def _require_rows(source: Source, found: Rows, originals: Mapping[str, Path]) -> None:
    for name, expected in source.rows.items():
        if expected and dict(found[name]) != dict(expected):
            shown = [
                ", ".join(f"{split} {count:,}" for split, count in rows.items()) for rows in (found[name], expected)
            ]
            raise SepNormError(
                f"{name} would have the rows {shown[0] or 'none'}, and {shown[1]} are expected, so it is not written: remove "
                f"{', '.join(map(str, originals.values()))} and download again, or hand in other files by --from."
            )


def _originals(source: Source, out: Path, given: str | None, progress: Progress) -> dict[str, Path]:
    """The published files by name, checked, and downloaded if missing."""
    if given is not None and not is_address(given):
        return {original.name: _handed_in(source, original, Path(given)) for original in source.originals}
    kept = out / ORIGINALS / (source.group or source.name)
    make_folder(kept)
    found = {}
    for original in source.originals:
        path = kept / original.name
        if not path.is_file() or wrong_checksum(original, path):
            download(_address(source, original, given), path, progress)
            if wrong := wrong_checksum(original, path):
                path.unlink()
                raise SepNormError(
                    f"{wrong}, so it was removed: give the same command again, and if that does not help, hand in the file of "
                    f"{original.address} by --from."
                )
        found[original.name] = path
    return found


def _address(source: Source, original: Original, given: str | None) -> str:
    """The URL to download from. ``given`` is the URL of the only file, or of a folder."""
    if given is None:
        return original.address
    if len(source.originals) == 1 and not given.endswith("/"):
        return given
    return f"{given.rstrip('/')}/{original.name}"


def _handed_in(source: Source, original: Original, given: Path) -> Path:
    path = given / original.name if given.is_dir() else given
    if not given.is_dir() and len(source.originals) > 1:
        names = ", ".join(each.name for each in source.originals)
        raise SepNormError(
            f"{source.name} is made of {names}: name the folder that holds them by --from, found {given}."
        )
    if given.is_dir() and not path.is_file():
        raise SepNormError(f"{given} holds no {original.name}: put the file of {original.address} there.")
    require_file(path)
    if wrong := wrong_checksum(original, path):
        raise SepNormError(f"{wrong}: it is damaged or another version, so hand in the file of {original.address}.")
    return path
