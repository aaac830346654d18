"""The page itself: a lead, sections with text, figures and tables, all in one file that needs no network."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from sepnorm._version import __version__
from sepnorm.errors import SepNormError
from sepnorm.files import write_text

_LONG = 25  # rows of a table from which on it scrolls by itself


@dataclass(eq=False)
class Section:
    """A part of a page: ``body`` is HTML, ``figures`` are those of ``figures.py``, side by side where there is room.

    ``folded``: only its title is seen until a reader opens it.
    """

    title: str
    body: str = ""
    figures: Sequence[Any] = field(default_factory=list)
    folded: bool = False


def write_page(
    path: str | Path, title: str, lead: str, sections: Sequence[Section], pictures: Sequence[str] = ()
) -> Path:
    """Writes one HTML file. ``title`` and section titles are text; ``lead`` and bodies are HTML.

    ``pictures`` are SVG, shown beside points of figures that have their number as ``customdata``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn: list[str] = []
    parts = [f"<header><h1>{html.escape(title)}</h1>{lead}</header>"]
    for section in sections:
        boxes = ""
        for figure in section.figures:
            caption = html.escape(str(figure.layout.meta or ""))
            height = f' style="height:{figure.layout.height}px"' if figure.layout.height else ""
            place = f'<div class="plot" id="figure-{len(drawn)}"{height}></div>'
            boxes += f"<figure><figcaption>{caption}</figcaption>{place}</figure>"
            drawn.append(figure.to_json())
        figures = f'<div class="figures">{boxes}</div>' if boxes else ""
        heading, content = f"<h2>{html.escape(section.title)}</h2>", f"{section.body}{figures}"
        if section.folded:
            parts.append(f'<details class="part"><summary>{heading}</summary>{content}</details>')
        else:
            parts.append(f"<section>{heading}{content}</section>")
    resources = files("sepnorm.report")
    data = "[" + ",".join(drawn).replace("<", "\\u003c") + "]"  # no text in the data can end the script
    images = json.dumps(list(pictures)).replace("<", "\\u003c")
    hover = f'<img id="picture" alt="" hidden><script type="application/json" id="pictures">{images}</script>'
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{html.escape(title)}</title>
<link rel="icon" href="data:,"><style>{(resources / "page.css").read_text(encoding="utf-8")}</style></head>
<body><main>{"".join(parts)}<footer>Written by sepnorm {__version__}.</footer></main>
{hover if pictures else ""}
<script>{_plotly()}</script><script type="application/json" id="figures">{data}</script>
<script>{(resources / "page.js").read_text(encoding="utf-8")}</script></body></html>
"""
    write_text(path, text)
    return path


def table(header: Sequence[str], rows: Sequence[Sequence[str]], mark: Callable[[str], str] | None = None) -> str:
    """An HTML table of text that scrolls by itself where it is too wide or too long.

    ``mark`` gives the class of a cell by its text, or nothing.
    """

    def cell(text: str) -> str:
        kind = mark(text) if mark is not None else ""
        shown = html.escape(text).replace(" ± ", "&nbsp;±&nbsp;")
        return f'<td class="{kind}">{shown}</td>' if kind else f"<td>{shown}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    kind = "scroll long" if len(rows) > _LONG else "scroll"
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise SepNormError("the report page needs plotly: pip install 'sepnorm[report]'.") from error
    return str(get_plotlyjs()).replace("</script", "<\\/script")
