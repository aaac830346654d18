"""A headless Chromium to open pages in, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
MISSING = "Chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)"
AXE = Path(__file__).parents[1] / ".axe/axe.min.js"
NO_AXE = "axe-core is not there: make .axe fetches it where there is npm"
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage "
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"  # a mouse
).split()


#: The tables that scroll although nobody has folded them.
SCROLLING = (
    "return [...document.querySelectorAll('.scroll')].filter(e => !e.closest('details'))"
    ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 40) + e.scrollWidth)"
)


@contextmanager
def started(profile: Path) -> Iterator[Any]:
    """A driver of selenium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: Any, page: Path, width: int, height: int, dark: bool = False) -> None:
    """Loads a page at a size."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(page.resolve().as_uri())


@contextmanager
def opened(page: Path, profile: Path, width: int, height: int, dark: bool = False) -> Iterator[Any]:
    """A driver of selenium with the page loaded at a size."""
    with started(profile) as driver:
        show(driver, page, width, height, dark)
        yield driver


def requests(driver: Any) -> list[str]:
    """Addresses on the network that were asked for."""
    import json

    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if url.startswith(("http", "ws", "//"))]


def console_errors(driver: Any) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@contextmanager
def checked_page(page: Path, profile: Path, figures: int) -> Iterator[Any]:
    """A driver with a page of ours: drawn, quiet, self-contained, the verdict in sight, nothing too wide."""
    from selenium.webdriver.support.ui import WebDriverWait

    with started(profile) as driver:
        for width, height, dark in ((1280, 800, False), (390, 844, False), (1280, 800, True)):
            show(driver, page, width, height, dark)
            driver.execute_script("document.querySelectorAll('details.part').forEach(part => part.open = true)")
            drawn = (
                "return document.querySelectorAll('.plot .main-svg').length && [...document.querySelectorAll('.plot')]"
            )
            drawn += ".filter(p => p.querySelector('.main-svg') && p.getBoundingClientRect().height > 100).length"
            WebDriverWait(driver, 30).until(lambda d, script=drawn: d.execute_script(script) == figures)
            assert not (said := console_errors(driver)), said
            assert not (asked := requests(driver)), asked
            if width == 1280:
                box = driver.execute_script(
                    "const r = document.querySelector('.verdict').getBoundingClientRect(); return [r.top, r.bottom];"
                )
                assert 0 <= box[0] < box[1] <= height
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
            wide = driver.execute_script(
                "return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && !e.closest('.plot'))"
                f".filter(e => e.getBoundingClientRect().right > {width} + 1).map(e => e.tagName + e.className)"
            )
            assert not wide, wide
            assert not (scrolling := driver.execute_script(SCROLLING)), (width, scrolling)
            ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert (ground != "rgb(255, 255, 255)") == dark
        show(driver, page, 1280, 800)
        driver.execute_script("document.querySelectorAll('details.part').forEach(part => part.open = true)")
        yield driver


def open_all(driver: Any) -> None:
    """Opens what is folded, and waits until every figure is drawn."""
    driver.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")
    wait_for(driver, "return ![...document.querySelectorAll('.plot')].some(plot => !plot.querySelector('.main-svg'))")


def wait_for(driver: Any, script: str) -> None:
    """Until a script returns true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 30).until(lambda d: d.execute_script(script), script)


def violations(driver: Any) -> list[str]:
    """What axe-core finds on the page against the rules of WCAG 2.2, levels A and AA."""
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    found = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'];"
        "axe.run({runOnly: tags}).then(found => done(found.violations), error => done(String(error)));"
    )
    assert isinstance(found, list), found
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]


def hover_text(driver: Any, plot: str) -> str:
    """Moves the mouse over the middle point of a figure's first trace and returns what it says."""
    import time

    x, y = driver.execute_script(
        f"""const p = document.getElementById("{plot}"); p.scrollIntoView({{block: "center"}});
        const l = p._fullLayout, t = p._fullData[0], i = Math.floor(t.x.length / 2), r = p.getBoundingClientRect();
        return [r.left + l._size.l + l.xaxis.d2p(t.x[i]), r.top + l._size.t + l.yaxis.d2p(t.y[i])];"""
    )
    for dx in (3, 0):
        event = {"type": "mouseMoved", "x": x + dx, "y": y}
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
        time.sleep(0.4)
    return str(driver.execute_script(f"return document.querySelector('#{plot} .hoverlayer').textContent"))
