"""A self-contained HTML page: a lead, then sections with text, figures and tables."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from sepnorm._version import __version__
from sepnorm.errors import SepNormError
from sepnorm.files import write_text
from sepnorm.report.alternatives import in_words

_LONG = 25  # rows from which a table scrolls
_CONTENTS = 3  # sections from which the page has a table of contents
_NEGATIVE = re.compile(r"(?<![\w.])-(?=\d)")


@dataclass(eq=False)
class Section:
    """A section of a page. ``body`` is HTML; ``figures``, from ``figures.py``, stand side by side if there is room.

    With ``folded``, only the title is visible until a reader opens it.
    """

    title: str
    body: str = ""
    figures: Sequence[Any] = field(default_factory=list)
    folded: bool = False


def write_page(
    path: str | Path, title: str, lead: str, sections: Sequence[Section], pictures: Sequence[str] = ()
) -> Path:
    """Writes one HTML file. ``title`` and section titles are plain text; ``lead`` and bodies are HTML.

    ``pictures`` are SVGs. A point of a figure shows the picture whose number it has in ``customdata``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn: list[Any] = []
    parts = []
    for number, section in enumerate(sections):
        boxes = ""
        for figure in section.figures:
            boxes += _box(figure, len(drawn))
            drawn.append(figure)
        figures = f'<div class="figures">{boxes}</div>' if boxes else ""
        heading, content = f"<h2>{html.escape(section.title)}</h2>", f"{section.body}{figures}"
        if section.folded:
            parts.append(f'<details class="part" id="part-{number}"><summary>{heading}</summary>{content}</details>')
        else:
            parts.append(f'<section id="part-{number}">{heading}{content}</section>')
    resources = files("sepnorm.report")
    data = "[" + ",".join(figure.to_json() for figure in drawn) + "]"
    data = data.replace("<", "\\u003c")  # so that no text in the data ends the script
    images = json.dumps(list(pictures)).replace("<", "\\u003c")
    hover = f'<img id="picture" alt="" hidden><script type="application/json" id="pictures">{images}</script>'
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{html.escape(title)}</title>
<link rel="icon" href="data:,"><style>{(resources / "page.css").read_text(encoding="utf-8")}</style></head>
<body><a class="skip" href="#main">Skip to the content</a>
<main id="main" tabindex="-1"><header><h1>{html.escape(title)}</h1>{lead}</header>{_contents(sections)}{"".join(parts)}</main>
<footer>Written by sepnorm {__version__}.</footer>
{hover if pictures else ""}
<script>{_plotly()}</script><script type="application/json" id="figures">{data}</script>
<script>{(resources / "page.js").read_text(encoding="utf-8")}</script></body></html>
"""
    write_text(path, text)
    return path


def _box(figure: Any, number: int) -> str:
    """The HTML around a figure: title, legend (filled by the script), plot with text alternative, caption."""
    said = html.escape(in_words(figure), quote=True)
    title, caption = (html.escape(figure.layout.meta[key]) for key in ("title", "caption"))
    return (
        f'<figure><p class="title">{title}</p><ul class="legend"></ul>'
        f'<div class="plot" id="figure-{number}" role="img" aria-label="{said}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _contents(sections: Sequence[Section]) -> str:
    if len(sections) < _CONTENTS:
        return ""
    links = "".join(f'<li><a href="#part-{i}">{html.escape(each.title)}</a></li>' for i, each in enumerate(sections))
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>'


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    mark: Callable[[str], str] | None = None,
    spare: Collection[str] = (),
) -> str:
    """An HTML table, which scrolls if it is too wide or too long. The first column holds row headers.

    ``mark`` maps the text of a cell to its CSS class, or an empty string. ``spare``: columns that a phone does not show.
    """

    def cell(text: str, name: str) -> str:
        kind = "spare" if name in spare else mark(text) if mark is not None else ""
        return f'<td class="{kind}">{typeset(text)}</td>' if kind else f"<td>{typeset(text)}</td>"

    def line(row: Sequence[str]) -> str:
        cells = "".join(cell(text, name) for text, name in zip(row[1:], header[1:], strict=True))
        return f'<tr><th scope="row">{html.escape(row[0])}</th>{cells}</tr>'

    def title(name: str) -> str:
        kind = ' class="spare"' if name in spare else ""
        return f'<th scope="col"{kind}>{html.escape(name)}</th>' if name else "<td></td>"

    head = "".join(map(title, header))
    body = "".join(map(line, rows))
    kind = "scroll long" if len(rows) > _LONG else "scroll"
    said = html.escape(f"Table of {', '.join(name for name in header if name)}", quote=True)
    return (
        f'<div class="{kind}" role="region" tabindex="0" aria-label="{said}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def typeset(text: str) -> str:
    """Text as HTML, with minus signs. Only tables on a phone break a line between a number and its interval."""
    return _NEGATIVE.sub("&minus;", html.escape(text)).replace(" ± ", "&nbsp;<wbr>±&nbsp;")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise SepNormError("the report page needs plotly: pip install 'sepnorm[report]'.") from error
    return str(get_plotlyjs()).replace("</script", "<\\/script")
