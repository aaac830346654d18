"""Pages from records: whatever stands between ``<!-- record NAME -->`` and ``<!-- end -->`` is rendered anew.

``<!-- record NAME output -->`` shows it as a terminal does, ``output:1,4-6`` some lines. ``<!-- record overview -->`` is the
table of ``tables.OVERVIEW``, ``overview front`` a shorter one, ``poolings`` that of ``tables.POOLINGS``. A table of more than six
columns is folded.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import records
from tables import NOT_YET, OVERVIEW, PENDING, PICTURES, POOLINGS, TABLES, Pooled, Row

from sepnorm.domains.comparison import as_text
from sepnorm.report.tables import aligned, markdown, summary_rows

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
MARK = re.compile(r"(<!-- record ([\w-]+)(?: ([\w:,-]+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_TABLES = re.compile(r"(?:(?:^\|.*(?:\n|\Z))+\n?)+", re.MULTILINE)
_COMMAND = re.compile(r"^```bash\n.*?^```$", re.MULTILINE | re.DOTALL)
_MOST_COLUMNS = 6
_WIDTH = 88  # of a command; a phone scrolls less


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def rendered(page: Path, text: str | None = None) -> str:
    """The text of a page with every record in its place; older tables, which have none, stay with their command."""
    text = page.read_text(encoding="utf-8") if text is None else text
    return MARK.sub(lambda found: found[1] + between(found[2], found[3] or "", found[4], page) + found[5], text)


def between(name: str, view: str, old: str, page: Path) -> str:
    if name == "overview":
        return "\n" + overview(page, view == "front") + "\n"
    if name == "poolings":
        return "\n" + poolings(page) + "\n"
    if name in records.names():
        return f"\n{drawn(name, page) if not view else ''}{shown(name, view)}\n\n"
    if name not in PENDING:
        raise SystemExit(f"{page}: there is no record {name}, and it is not among those to come (PENDING).")
    return old if _figures_of(old) else f"\n{NOT_YET}\n\n{command(TABLES[name].command)}\n\n"


def _figures_of(old: str) -> str:
    """What an older table has beside its command, which stays with it; nothing where there never was one."""
    return _COMMAND.sub("", old).replace(NOT_YET, "").strip()


def drawn(name: str, page: Path) -> str:
    """The picture of a comparison that has one."""
    if name not in PICTURES:
        return ""
    file = Path(os.path.relpath(DOCS / "pictures" / PICTURES[name].file, page.parent)).as_posix()
    return f"![Singular values of CLS, and the score of every seed, under shared and separate norms]({file})\n\n"


@cache
def shown(name: str, view: str) -> str:
    record = records.read(name)
    if view.startswith("output"):
        return fenced(output(name, view.partition(":")[2]))
    text = summary(name) if "arms" in record else printed(record["text"])
    return f"{command(TABLES[name].command)}\n\n{record['where']}\n\n{text}"


def output(name: str, only: str = "") -> str:
    """As the command shows it in a terminal, of a comparison the table; ``only`` some lines, as ``1,4-6``."""
    record = records.read(name)
    if "arms" in record:
        return aligned(*summary_rows(records.comparison(name)))
    lines = record["text"]
    for_each = [part.partition("-") for part in only.split(",") if part]
    chosen = [line for first, _, last in for_each for line in lines[int(first) - 1 : int(last or first)]]
    return "\n".join(chosen or lines)


def summary(name: str) -> str:
    """Of a comparison: what decides in six columns, then all metrics folded."""
    whole = records.comparison(name)
    header, rows = summary_rows(whole)
    if "verdict" in header:  # beside its difference
        place = header.index("verdict")
        header = header[:place] + header[place + 1 :]
        rows = [[*row[: place - 1], f"{row[place - 1]} {row[place]}".strip(), *row[place + 1 :]] for row in rows]
    _, rest = as_text(whole).split("\n\n", 1)[1].strip().split("\n\n", 1)
    tables, note = rest.rsplit("\n\n", 1)
    folded = details("All metrics and differences", tables)
    said = textwrap.fill(f"{len(records.read(name)['seeds'])} seeds. {note}", 116, break_on_hyphens=False)
    return f"{markdown(header, rows)}\n{said}\n\n{folded}"


def printed(lines: list[str]) -> str:
    """Printed Markdown with wide tables folded; anything else as a terminal shows it."""
    text = "\n".join(lines)
    if not _TABLES.search(text):
        return fenced(text)
    wrapped = [line if line.startswith("|") else textwrap.fill(line, 116, break_on_hyphens=False) for line in lines]
    return fold("\n".join(wrapped))


def fold(text: str) -> str:
    """Tables that follow each other are folded together where one of them has more than six columns."""

    def one(found: re.Match[str]) -> str:
        tables = found[0].strip()
        if max(line.count("|") - 1 for line in tables.splitlines()) <= _MOST_COLUMNS:
            return found[0]
        return details("All columns", tables) + "\n\n"

    return _TABLES.sub(one, text)


def details(title: str, text: str) -> str:
    return f"<details markdown>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def command(text: str) -> str:
    """As a block of code, wrapped."""
    lines = [""]
    for word in re.findall(r"\S+(?: (?!--)[^-\s]\S*)*", text):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _WIDTH:
            lines.append("   ")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    assert shlex.split(" ".join(lines)) == shlex.split(text)
    return "```bash\n" + " \\\n".join(lines) + "\n```"


@cache
def overview(page: Path, front: bool) -> str:
    """Separate norms against ``ln``, one row for each record that there is; beside the front page's also against shared ``bn``."""
    header = ["data", "metric", "shared", "separate", "difference", "seeds"]
    rows = []
    for row in OVERVIEW:
        if row.record not in records.names() or (front and not row.front):
            continue
        arms = [arm for arm in ("ln", "bn@final") if arm in records.read(row.record)["arms"]]
        link = _link(row, page)
        for shared in [arms] if front else [[arm] for arm in arms]:
            gap = records.quantity(f"{row.record}: {row.separate} minus {shared[0]}, {row.metric}")
            names = [_score(row.record, arm, row.metric) for arm in shared]
            separate = _score(row.record, row.separate, row.metric)
            rows.append([link, row.name, ", ".join(names), separate, f"{gap} {gap.verdict}", str(gap.seeds)])
    return _dense(header, rows)


@cache
def poolings(page: Path) -> str:
    """[CLS] of a model, and what the mean of tokens and moments gain over it, with ``ln`` and with separate norms."""
    header = ["data, score", "norm", "[CLS]", "mean minus [CLS]", "moments minus [CLS]", "moments minus mean"]
    rows = []
    for row in POOLINGS:
        if row.record not in records.names():
            continue
        for arm in ("ln", row.separate):
            cls, mean, moments = (f"{prefix}{row.metric}" for prefix in (row.prefix, "mean_", "moments_"))
            score = f"{records.quantity(f'{row.record}: {arm}, {cls}')}"
            gaps = [records.within(row.record, arm, *pair) for pair in ((mean, cls), (moments, cls), (moments, mean))]
            rows.append([f"{_link(row, page)}, {row.name}", f"`{arm.partition('@')[0]}`", score, *gaps])
    return _dense(header, rows)


def _dense(header: list[str], rows: list[list[str]]) -> str:
    return re.sub(r"(?m)^\|(?: --- \|)+$", "|" + "---|" * len(header), markdown(header, rows))


def _link(row: Row | Pooled, page: Path) -> str:
    path, _, anchor = row.link.partition("#")
    return f"[{row.data}]({Path(os.path.relpath(DOCS / path, page.parent)).as_posix()}#{anchor})"


def _score(record: str, arm: str, metric: str) -> str:
    return f"`{arm.partition('@')[0]}` {records.quantity(f'{record}: {arm}, {metric}'):.3f}"


def differing() -> Iterator[tuple[Path, str]]:
    """Files that are not what the records say, with what they should be."""
    for page in pages():
        text = rendered(page)
        if text != page.read_text(encoding="utf-8"):
            yield page, text
    sys.path.insert(0, str(DOCS / "pictures"))
    import comparison_picture

    for name, picture in PICTURES.items():
        if name in records.names():
            file, text = DOCS / "pictures" / picture.file, comparison_picture.draw(records.read(name), picture)
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                yield file, text


def complaints() -> list[str]:
    """What is wrong with marks: tables without a place, old ones that do not say so, and names to come that have come."""
    marks = [
        (found[2], found[4], page) for page in pages() for found in MARK.finditer(page.read_text(encoding="utf-8"))
    ]
    here = {name for name, _, _ in marks}
    found = [f"{name} has no place on any page." for name in sorted(set(records.names()) - here)]
    found += [f"{name} has no command." for name in sorted(here - TABLES.keys() - {"overview", "poolings"})]
    found += [
        f"{name} has the record of another command: {records.read(name)['command']}"
        for name in records.names()
        if name in TABLES and records.read(name)["command"] != TABLES[name].recorded
    ]
    found += [
        f"{name} has its record: delete it from PENDING in tables.py."
        for name in sorted(PENDING & set(records.names()))
    ]
    found += [f"{name} is to come, and has no place on any page." for name in sorted(PENDING - here)]
    found += [
        f"{page}: the table {name} has no record and does not begin with {NOT_YET!r}"
        for name, old, page in marks
        if name in PENDING - set(records.names()) and not old.strip().startswith(NOT_YET)
    ]
    return found


def render() -> list[Path]:
    """Writes what differs."""
    changed = list(differing())
    for path, text in changed:
        path.write_text(text, encoding="utf-8")
    return [path for path, _ in changed]
