"""Records of public data sets: the published files, and the files written from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

#: Called with the amount done and the total; None if nothing is shown.
Tick = Callable[[int, int], None] | None
#: Opens a progress bar with this name.
Progress = Callable[[str], AbstractContextManager[Tick]]
#: Number of rows by file and split.
Rows = Mapping[str, Mapping[str, int]]


@contextmanager
def unseen(name: str) -> Iterator[Tick]:
    """A progress bar that shows nothing."""
    yield None


@dataclass(frozen=True)
class Original:
    """A file as its authors publish it.

    Attributes:
        address: its URL.
        checksum: the published ``md5:...`` or ``sha256:...``; empty if none is published.
    """

    address: str
    checksum: str = ""

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.address.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """One public data set.

    Attributes:
        name: its name on the command line, and its folder.
        what: what it contains, in a few words.
        origin: the page where it is published.
        licence: its licence.
        size: size of the download, in words.
        used_for: the tables and studies that use it.
        originals: the files to download.
        rows: expected number of rows by file and split; an empty mapping for a file is not checked.
        write: called with the originals by name, an output folder and a progress bar. Writes every file of ``rows``
            and returns the number of rows written.
        known: SHA-256 of the decompressed files that the tables were run on, by file name.
        group: download folder shared with other sources; empty for a folder of its own.
    """

    name: str
    what: str
    origin: str
    licence: str
    size: str
    used_for: str
    originals: tuple[Original, ...]
    rows: Rows
    write: Callable[[Mapping[str, Path], Path, Progress], Rows]
    known: Mapping[str, str] = field(default_factory=dict)
    group: str = ""

    @property
    def check(self) -> str:
        """How a download is checked, in words."""
        named = [each.checksum.partition(":")[0] for each in self.originals if each.checksum]
        kinds = {"md5": "MD5", "sha256": "SHA-256"}
        if not named:
            return "rows and splits"
        published = "published " + kinds[named[0]]
        return (
            published
            if len(named) == len(self.originals)
            else f"{published} of {len(named)} of {len(self.originals)} files, and rows and splits"
        )
