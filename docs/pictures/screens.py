"""Takes the pictures of the report pages, from the folders that ``make demo`` and ``sepnorm diagnose`` write.

    make demo
    sepnorm diagnose runs/compare-images-demo/runs/ln-seed0/embeddings.npz
    python docs/pictures/screens.py

It needs Chromium and its driver. Beside each picture stands the text in it, by which ``tests/report/test_screens.py`` notices
when pages have come to say something else.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from browser import show, started

PAGES = {
    "comparison.png": ("runs/compare-images-demo/report.html", 940),
    "diagnosis.png": ("sepnorm-diagnosis/embeddings.npz/report.html", 640),
}

#: The text of the blocks that begin in the window, a line each.
SEEN = """
return [...document.querySelectorAll('h1, h2, p, li, th, td')]
    .filter(e => e.getClientRects().length && e.getBoundingClientRect().top < innerHeight)
    .map(e => e.innerText.replace(/\\s+/g, ' ').trim()).filter(Boolean).join('\\n')
"""

with tempfile.TemporaryDirectory() as profile, started(Path(profile)) as driver:
    for name, (page, height) in PAGES.items():
        show(driver, Path(page), 1200, height)
        driver.execute_script("document.documentElement.style.overflow = 'hidden'")  # no bar to scroll by
        time.sleep(3)  # figures are drawn
        picture = Path(__file__).parent / name
        driver.save_screenshot(str(picture))
        picture.with_suffix(".txt").write_text(f"{driver.execute_script(SEEN)}\n", encoding="utf-8")
