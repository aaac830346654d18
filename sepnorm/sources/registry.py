"""The sources by name, and their descriptions."""

from __future__ import annotations

from collections.abc import Mapping

from sepnorm.errors import require_known
from sepnorm.sources.images import IMAGES
from sepnorm.sources.molecules import MOLECULES
from sepnorm.sources.records import Source
from sepnorm.sources.sentences import SENTENCES

SOURCES: dict[str, Source] = {source.name: source for source in (*IMAGES, *SENTENCES, *MOLECULES)}


def find_source(name: str) -> Source:
    """The source with this name."""
    return SOURCES[require_known("data set", name, SOURCES)]


def described(source: Source) -> str:
    """A source as lines: content, files with rows, origin, licence, download, check and use."""
    files = "\n           ".join(f"{source.name}/{file}{_counts(rows)}" for file, rows in source.rows.items())
    lines = {
        "files": files,
        "origin": source.origin,
        "licence": source.licence,
        "download": f"{source.size}, checked by {source.check}",
        "used for": source.used_for,
    }
    return "\n".join([f"{source.name}: {source.what}", *(f"  {key:<8} {value}" for key, value in lines.items())])


def _counts(rows: Mapping[str, int]) -> str:
    said = ", ".join(f"{count:,}" if split == "all" else f"{split} {count:,}" for split, count in rows.items())
    return f" ({said})" if said else ""
