"""The documentation: every public name is on a page, no link is dead, and the site is built without a warning."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import unicodedata
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, DRIVER, MISSING, console_errors, opened, requests

import sepnorm

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
API = [name for page in (ROOT / "docs/api").glob("*.md") for name in re.findall(r"(?m)^::: (\S+)$", page.read_text())]


def resolve(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if _is_module(".".join(parts[:count])):
            return reduce(getattr, parts[count:], importlib.import_module(".".join(parts[:count])))
    raise AssertionError(f"{name} does not exist")


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


def imported(source: str) -> set[str]:
    """The names that code takes from modules of the package."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {f"{n.module}.{a.name}" for n in found for a in n.names if (n.module or "").split(".")[0] == "sepnorm"}


def public_names() -> set[str]:
    """What the package exports, and what the documentation and the examples take from its modules."""
    names = {f"sepnorm.{name}" for name in sepnorm.__all__ if name != "__version__"}
    for module in (sepnorm.geometry, sepnorm.losses, sepnorm.pooling, sepnorm.tuning):
        names |= {f"{module.__name__}.{name}" for name in module.__all__}
    for file in sorted((ROOT / "examples").glob("*.py")):
        names |= imported(file.read_text())
    for page in PAGES:
        names |= imported("\n".join(re.findall(r"(?m)^ *(from sepnorm[\w.]* import .*)$", page.read_text())))
    return names


def anchors(page: Path) -> set[str]:
    """Anchors of a page: its headings, and names of the API."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    found = set(re.findall(r"(?m)^::: (\S+)$", text))
    for heading in re.findall(r"(?m)^#+ (.+)$", text):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


def dead_links(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there."""
    text = re.sub(r"(?ms)^```.*?^```|^    .*?$|`[^`\n]*`", "", page.read_text())
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not link.startswith(("http://", "https://")) and (
            not target.exists() or (anchor and anchor not in anchors(target))
        ):
            dead.append(link)
    return dead


def members(cls: type) -> list[str]:
    """The public methods and properties that a class defines itself."""
    kinds = (property, staticmethod, classmethod)
    own = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    return [name for name, value in own.items() if isinstance(value, kinds) or inspect.isfunction(value)]


def test_what_the_api_pages_name_exists_and_has_a_docstring():
    assert len(API) == len(set(API)) > 50
    for name in API:
        found = resolve(name)
        assert inspect.getdoc(found), name
        for member in members(found) if inspect.isclass(found) else []:
            assert inspect.getdoc(getattr(found, member)), f"{name}.{member}"


def test_every_public_name_is_on_an_api_page():
    pages = [resolve(name) for name in API]
    names = public_names()
    assert {"sepnorm.convert", "sepnorm.geometry.rankme", "sepnorm.domains.molecules.features.featurise"} <= names
    assert sorted(name for name in names if not any(resolve(name) is found for found in pages)) == []


def test_every_measure_and_loss_gives_the_shape_of_its_input():
    for module in (sepnorm.geometry, sepnorm.losses, sepnorm.pooling):
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function) and "x" in inspect.signature(function).parameters:
                assert re.search(r"\(samples, dim", inspect.getdoc(function)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page):
    assert dead_links(page) == []


def test_dead_links_are_found(tmp_path):
    other, page = tmp_path / "other.md", tmp_path / "page.md"
    other.write_text("# A [CLS] of its own\n\n::: sepnorm.convert\n")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#a-cls-of-its-own) [c](other.md#sepnorm.convert) [d](#here) [e](https://example.org/x)\n"
        "![f](none.png) [g](other.md#none) [h](#none) `[i](code)`\n```\n[j](code)\n```\n\n    [k](code)\n"
    )
    assert dead_links(page) == ["none.png", "other.md#none", "#none"]


@pytest.mark.parametrize("name", ["heal", "monitor", "pooling", "special-tokens", "mixture", "use/index"])
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{name}.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, f"{name}.md", "exec"), scope)


def test_every_example_is_shown():
    shown = set(re.findall(r"(?m)^\[(examples/\w+\.py)\]\(\.\./\1\)$", (ROOT / "docs/examples.md").read_text()))
    assert shown == {f"examples/{file.name}" for file in (ROOT / "examples").glob("*.py")}


#: How many tables scroll although they are not folded.
WIDE = (
    "return [...document.querySelectorAll('.md-content table')]"
    ".filter(e => !e.closest('details') && e.getBoundingClientRect().right > innerWidth + 1).length"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: mkdocs then counts no warnings, and --strict means nothing.
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    found = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "WARNING" not in found.stdout + found.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_fetches_nothing_from_elsewhere(site):
    names = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in (ROOT / "docs").rglob("*.md")}
    names |= {"index.html", "changelog.html", "contributing.html"}
    for name in names:
        text = (site / name).read_text()
        assert not re.findall(
            r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//|<link[^>]+href=\"?(?:https?:)?//", text
        )
    front = (site / "index.html").read_text()
    assert "What it does not do" in front and 'href="results.html">results</a>' in front
    assert 'href="notebooks/images.html"' in front
    assert 'class="nf">main</span>' in (site / "examples.html").read_text()
    assert not list(site.rglob("*.py"))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason=MISSING)
def test_the_site_opened_as_files_is_quiet_fits_a_telephone_and_can_be_searched(site, tmp_path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    for page in (
        "index.html",
        "results.html",
        "results/images.html",
        "diagnosis.html",
        "heal.html",
        "api/surgery.html",
    ):
        with opened(site / page, tmp_path / page.replace("/", "-"), 390, 844) as driver:
            width = driver.execute_script("return document.documentElement.scrollWidth")
            assert width <= 390, page
            assert driver.execute_script(WIDE) == 0, page
            assert requests(driver) == []
    with opened(site / "index.html", tmp_path / "search", 1280, 800) as driver:
        field = driver.find_element(By.CSS_SELECTOR, "input.md-search__input")
        field.click()
        field.send_keys("participation")
        hits = WebDriverWait(driver, 20).until(
            lambda d: d.find_elements(By.CSS_SELECTOR, "a.md-search-result__link[href*='api/geometry.html']")
        )
        assert hits
        assert requests(driver) == []
        assert console_errors(driver) == []
