from __future__ import annotations

import numpy as np
import pytest
from browser import CHROMIUM, DRIVER, MISSING, check_page, hover_text, opened

from sepnorm.experiment import Arm, Comparison
from sepnorm.images.config import PRESETS
from sepnorm.report.comparison_page import difference_rows, headline, write_comparison


def comparison(folder, seeds: int = 3) -> Comparison:
    rng = np.random.default_rng(0)
    arms = []
    for number, norm in enumerate(("ln", "bn", "bn+bn")):
        arm = Arm(norm, PRESETS["demo"].changed({"norm": norm}))
        for seed in range(seeds):
            arm.metrics[seed] = {"cls_linear_top1": 0.8 + 0.05 * number + 0.01 * seed, "cls_uniformity": -1.0 - number}
            arm.losses[seed] = [(step, 1 / step) for step in range(1, 20)]
            arm.folders[seed] = folder / f"{norm}-{seed}"
            arm.folders[seed].mkdir()
            cloud = {"cls": rng.standard_normal((60, 8)), "labels": rng.integers(0, 3, 60)}
            np.savez(arm.folders[seed] / "embeddings.npz", **cloud)
        arms.append(arm)
    return Comparison(arms)


def test_tables_say_by_how_much_and_whether_it_is_decided(tmp_path):
    found = comparison(tmp_path)
    assert headline(found).startswith(
        "[CLS] linear against ln: bn is better (+0.050 ± 0.000, 3 seeds); bn+bn is better"
    )
    header, rows = difference_rows(found, found.arms[1])
    assert header[0] == "minus bn" and [row[0] for row in rows] == ["ln", "bn+bn"]
    assert rows[0][1].endswith("worse") and rows[0][2].endswith("worse") and rows[1][2].endswith("better")
    alone = comparison(tmp_path / "one", 1) if (tmp_path / "one").mkdir() is None else None
    assert "undecided (+0.050, 1 seeds)" in headline(alone)


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)
def test_the_page_in_a_browser(tmp_path):
    page = write_comparison(tmp_path / "report.html", "A comparison", comparison(tmp_path))
    check_page(page, tmp_path, figures=7)
    with opened(page, tmp_path / "hover", 1280, 800) as driver:
        assert "sample" in hover_text(driver, "figure-5")
        assert "ln, seed 1" in hover_text(driver, "figure-1")
