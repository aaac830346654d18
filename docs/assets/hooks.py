"""What the site has beside the pages of docs/: files from outside of it, sources of the examples, doctests as code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
#: Files that stay where people look for them in a repository, and the pages made of them.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_PICTURE = re.compile(r"^!\[[^\]]*\]\(([^)\s:]+)\)$", re.MULTILINE)
_SOURCE = re.compile(r"^\[[^\]]+\]\(\.\./(examples/\w+\.py)\)$", re.MULTILINE)
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def relinked(text: str, titles: dict[str, str]) -> str:
    """Links from the top of the repository as links from docs/, named as in the menu where they were named by a path."""

    def new(link: re.Match[str]) -> str:
        name, path, anchor = link.groups(default="")
        page = "examples.md" if path.startswith("examples/") else PAGES.get(path, path.removeprefix("docs/"))
        return f"[{titles.get(page, name) if name == path else name}]({page}{anchor})"

    return _LINK.sub(new, text)


def menu(nav: list[dict[str, Any]]) -> dict[str, str]:
    """Titles by page; a part of the menu is named by its first page."""
    entries = [entry for item in nav for entry in item.items()]
    return {pages if isinstance(pages, str) else pages[0]: title for title, pages in entries}


def with_sources(text: str) -> str:
    """A line that is nothing but a link to an example becomes the example."""
    return _SOURCE.sub(lambda link: f'```python title="{link[1]}"\n{(ROOT / link[1]).read_text()}```', text)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of files outside of docs/."""
    for source, page in PAGES.items():
        content = relinked((ROOT / source).read_text(encoding="utf-8"), menu(config.nav))
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Sources of the examples for links to them; pictures that open at full size; intervals on the line of their numbers."""
    text = with_sources(markdown) if page.file.src_uri == "examples.md" else markdown
    text = _PICTURE.sub(r"[\g<0>](\1)", text)
    return _ROW.sub(lambda row: row[0].replace(" ± ", "\u00a0±\u00a0"), text)


class Doctests(Extension):
    """Lines after ``>>>`` in docstrings are code; to Markdown they would be a quotation."""

    def on_object(self, *, obj: Object, **others: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
