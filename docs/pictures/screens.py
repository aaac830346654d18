"""Takes the pictures of the report pages, from the folders that ``make demo`` and ``sepnorm diagnose`` write.

    make demo
    sepnorm diagnose runs/compare-images-demo/runs/ln-seed0/embeddings.npz
    python docs/pictures/screens.py

It needs Chromium and its driver.
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

with tempfile.TemporaryDirectory() as profile, started(Path(profile)) as driver:
    for name, (page, height) in PAGES.items():
        show(driver, Path(page), 1200, height)
        driver.execute_script("document.documentElement.style.overflow = 'hidden'")  # no bar to scroll by
        time.sleep(3)  # figures are drawn
        driver.save_screenshot(str(Path(__file__).parent / name))
