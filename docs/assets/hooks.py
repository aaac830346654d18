"""What the site has beside the pages of docs/: files from outside of it, sources of the examples, notebooks, doctests as code."""

from __future__ import annotations

import json
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
        page = PAGES.get(path, path.removeprefix("docs/"))
        if path.startswith("examples/"):
            page = f"notebooks/{Path(path).stem}.md" if path.endswith(".ipynb") else "examples.md"
        return f"[{titles.get(page, name) if name == path else name}]({page}{anchor})"

    return _LINK.sub(new, text)


def menu(nav: list[dict[str, Any]]) -> dict[str, str]:
    """Titles by page; the first page of a part without a title of its own has that of the part."""
    found: dict[str, str] = {}
    for title, pages in (entry for item in nav for entry in item.items()):
        if isinstance(pages, str):
            found[pages] = title
        else:
            found |= {pages[0]: title} if isinstance(pages[0], str) else {}
            found |= {page: name for each in pages if isinstance(each, dict) for name, page in each.items()}
    return found


def with_sources(text: str) -> str:
    """A line that is nothing but a link to an example becomes the example."""
    return _SOURCE.sub(lambda link: f'```python title="{link[1]}"\n{(ROOT / link[1]).read_text()}```', text)


def of_notebook(book: dict[str, Any], name: str) -> str:
    """A notebook as Markdown: its prose, its code, and what the code printed."""
    parts = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join("".join(output.get("text", "")) for output in cell.get("outputs", []))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join([*parts, f"*This page is `examples/notebooks/{name}`, as it ran last.*\n"])


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of files outside of docs/."""
    for source, page in PAGES.items():
        content = relinked((ROOT / source).read_text(encoding="utf-8"), menu(config.nav))
        files.append(File.generated(config, page, content=content))
    for path in sorted((ROOT / "examples/notebooks").glob("*.ipynb")):
        content = of_notebook(json.loads(path.read_text(encoding="utf-8")), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Sources of the examples for links to them; pictures that open at full size; an interval on one line."""
    text = with_sources(markdown) if page.file.src_uri == "examples.md" else markdown
    text = _PICTURE.sub(r"[\g<0>](\1)", text)
    return _ROW.sub(lambda row: row[0].replace(" ± ", " ±\u00a0"), text)


class Doctests(Extension):
    """Lines after ``>>>`` in docstrings are code; to Markdown they would be a quotation."""

    def on_object(self, *, obj: Object, **others: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
