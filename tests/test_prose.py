"""How the documentation is written: short, in lines that a terminal shows, in sentences that are read once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
CODE = re.compile(r"^```.*?^```|^(?: {4}|\t).*?$|<!--.*?-->", re.MULTILINE | re.DOTALL)


def sentences(text: str) -> list[str]:
    """Sentences of prose: headings, tables and code are none, and an item of a list ends one."""
    text = re.sub(r"(?m)^(?:#.*|\|.*|!\[.*|<.*)$", "", CODE.sub("", text))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    return [
        one
        for part in paragraphs
        for one in re.split(r"(?<=[.?!:])\s+(?=[\"'*`\[(A-Z])", " ".join(part.split()))
        if one
    ]


def test_the_readme_has_at_most_900_words():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_is_longer_than_120_characters_outside_of_tables_and_code(page):
    text = CODE.sub(lambda code: "\n" * code[0].count("\n"), page.read_text(encoding="utf-8"))
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert long == []


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_no_sentence_is_longer_than_35_words(name):
    long = [each for each in sentences((ROOT / name).read_text(encoding="utf-8")) if len(each.split()) > 35]
    assert long == []


def test_long_sentences_are_found():
    words = " ".join(["word"] * 36)
    assert max(len(each.split()) for each in sentences(f"# A\n\nShort. But {words}.\n\n- An item\n- {words}\n")) == 37


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_table_of_more_than_six_columns_is_folded(page):
    text = re.sub(r"(?s)<details.*?</details>", "", CODE.sub("", page.read_text(encoding="utf-8")))
    wide = [line for line in text.splitlines() if re.fullmatch(r"\|(?:\s*:?-+:?\s*\|){7,}", line.strip())]
    assert wide == []
