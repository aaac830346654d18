"""Numbers in prose: each is named in claims.toml with where it comes from, and what is named nowhere is found.

An entry has the ``page``, the ``text`` around the numbers as it stands there, and one of these:

- ``from``: for each ``{}`` of the text a reference into a record or the code (``records.quantity``);
- ``pending``: the name of a table without a record; its numbers must stand in that table, which says that it is an older one;
- ``quoted``: the publication that has the figure;
- ``why``: the number is no result but a setting, a definition, a limit or an example.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import records
from rendering import MARK, ROOT, pages
from tables import PENDING

#: Pages whose numbers are no results of ours, or are checked elsewhere, with the reason.
EXEMPT = {
    "docs/what-works.md": "written by docs/results/what_works.py, and compared with the code by a test",
    "docs/api/": "made from docstrings, whose examples are run",
    "docs/data.md": "sizes and checksums of files, which sepnorm data checks",
}
_WORDS = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|sixteen|twenty|thirty|forty|sixty"
_UNITS = "minutes?|hours?|seconds?|s|ms|µs|points?|MB|GB|MiB|GiB|kB|times|seeds?|epochs?"
#: Of these "one" and "two" are no figures but rules, as in "a batch of one sample".
_COUNTED = "samples|steps|dimensions|images|molecules|sentences"
_MANY = _WORDS.removeprefix("one|two|")
#: What looks like a measurement.
NUMBER = re.compile(
    rf"[+-]?\d[\d,]*\.\d+\w*|±\s*\d\S*|\d[\d,.]*\s?%|\b\d[\d,.]*x\b|\b(?:\d[\d,.]*|{_WORDS})[ \u00a0](?:{_UNITS})\b"
    rf"|\b(?:\d[\d,.]*|{_MANY})[ \u00a0](?:{_COUNTED})\b|\b\d{{1,3}}(?:,\d{{3}})+\b|\bwidth \d+\b",
    re.IGNORECASE,
)
_VERSIONED = (
    "torch|Python|transformers|sentence-transformers|timm|peft|Lightning|lightly|sepnorm|"
    "PyG|Ray|submitit|accelerate|arXiv:?"
)
_VERSION = re.compile(rf"\b(?:{_VERSIONED})\s+v?\d[\d.]*x?")
_CODE = re.compile(r"^```.*?^```|^(?: {4}|\t).*?$|<!--.*?-->|\]\([^)]*\)|https?://\S+", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Claim:
    """The text of a page with ``{}`` for numbers, and where they come from."""

    page: str
    text: str
    sources: tuple[str, ...] = ()
    pending: str = ""
    quoted: str = ""
    why: str = ""

    def written(self) -> str:
        """As it has to stand in the page."""
        return one_line(self.text.format(*map(records.quantity, self.sources)) if self.sources else self.text)


def one_line(text: str) -> str:
    return " ".join(text.split())


@cache
def claims() -> tuple[Claim, ...]:
    found = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))
    return tuple(
        Claim(
            page, one["text"], tuple(one.get("from", ())), *(one.get(key, "") for key in ("pending", "quoted", "why"))
        )
        for page, entries in found.items()
        for one in entries
    )


def prose(text: str) -> str:
    """A page without code, records and links, on one line."""
    return one_line(_CODE.sub(" ", MARK.sub(" ", text)))


def complaints() -> list[str]:
    """Claims that are not what a page says, and numbers that no claim is made for."""
    found = [f"{claim.page} is no page." for claim in claims() if not (ROOT / claim.page).is_file()]
    for page in pages():
        found += complaints_on(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
    return found


def complaints_on(page: str, text: str) -> list[str]:
    """The same for the text of one page."""
    found, whole = [], one_line(MARK.sub(" ", text))
    for claim in (each for each in claims() if each.page == page):
        if sum(map(bool, (claim.sources, claim.pending, claim.quoted, claim.why))) != 1:
            found.append(f"{page}: {claim.text!r} has one of from, pending, quoted and why.")
        elif claim.written() not in whole:
            found.append(f"{page} does not say: {claim.written()}")
        elif claim.pending and (missing := _not_in_table(claim)):
            found.append(f"{page}: {', '.join(missing)} is not in the table {claim.pending}, or that is not pending.")
    if not any(page.startswith(exempt) for exempt in EXEMPT):
        found += [f"{page}: no claim is made for {number}" for number in unclaimed(page, prose(text))]
    return found


def unclaimed(page: str, text: str) -> list[str]:
    """Numbers that look measured and stand in no claim, with the words around them."""
    for claim in sorted(claims(), key=lambda claim: -len(claim.text)):
        if claim.page == page:
            text = text.replace(claim.written(), " ")
    text = _VERSION.sub(" ", re.sub(r"`[^`]*`", " ", text))
    return [
        f"{match[0]!r} in '{text[max(0, match.start() - 40) : match.end() + 20]}'" for match in NUMBER.finditer(text)
    ]


def _not_in_table(claim: Claim) -> list[str]:
    """Numbers of a claim that its older table does not have."""
    if claim.pending not in PENDING:
        return [claim.pending]
    tables = [
        found[4]
        for page in pages()
        for found in MARK.finditer(page.read_text(encoding="utf-8"))
        if found[2] == claim.pending
    ]
    figure = r"\d[\d,]*(?:\.\d+)?(?<!,)"
    has = {each.replace(",", "") for each in re.findall(figure, " ".join(tables))}
    numbers = re.findall(figure, re.sub(r"`[^`]*`|[A-Z]+-\w+", " ", claim.text))
    return [number for number in numbers if number.replace(",", "") not in has]


def main() -> None:
    print("\n".join(complaints()) or "Every number is accounted for.")


if __name__ == "__main__":
    main()
