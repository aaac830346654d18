from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from browser import CHROMIUM, DRIVER, MISSING, checked_page, hover_text
from pages import of_model

from sepnorm.domains.diagnosis import diagnose
from sepnorm.report import figures
from sepnorm.report.diagnosis_page import short_names, write_diagnosis

needs_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)


@pytest.fixture
def cloud_file(tmp_path):
    def write(name: str, scale: float = 1.0, offset: float = 0.0):
        rng = np.random.default_rng(0)
        path = tmp_path / name
        labels = np.array(["cat", "dog", "<b>bird</b>"])[rng.integers(0, 3, 150)]
        np.savez(path, embeddings=offset + scale * rng.standard_normal((150, 12)), label=labels)
        return str(path)

    return write


@pytest.mark.slow
@needs_browser
def test_the_page_of_a_model_in_a_browser(tmp_path):
    page = write_diagnosis(tmp_path / "report.html", [of_model()])
    with checked_page(page, tmp_path, figures=9) as driver:
        assert re.search(r"sentence \d+ </script>", hover_text(driver, "figure-7"))
        assert "encoder.layer" in hover_text(driver, "figure-3")
        driver.execute_script("window.scrollTo(0, 0)")
        assert "healthy" in driver.find_element("css selector", ".verdict").text


@pytest.mark.slow
@needs_browser
def test_the_page_of_two_files_in_a_browser(tmp_path, cloud_file):
    found = [diagnose(cloud_file("wide.npz")), diagnose(cloud_file("narrow.npz", 0.01, 1.0))]
    page = write_diagnosis(tmp_path / "report.html", found)
    with checked_page(page, tmp_path, figures=6) as driver:
        assert "row" in hover_text(driver, "figure-3")
        assert driver.execute_script("return document.getElementById('figure-3').data.map(t => t.name)") == [
            "&lt;b&gt;bird&lt;/b&gt;",
            "cat",
            "dog",
        ]
        verdicts = [box.text.split("\n")[0] for box in driver.find_elements("css selector", ".verdict")]
        assert verdicts == ["wide.npz: healthy", "narrow.npz: partly collapsed: off-centre"]


def test_nothing_from_the_data_becomes_markup(tmp_path):
    text = write_diagnosis(tmp_path / "report.html", [of_model()]).read_text(encoding="utf-8")
    assert "<img" not in text
    assert (
        "src="
        not in re.sub(r"<script>.*?</script>", "", text, count=1, flags=re.DOTALL)
        .split("</style>")[1]
        .split('<script type="application/json"')[0]
    )


def test_collapsed_and_tiny_input_still_gives_a_page(tmp_path):
    for rows in (np.ones((30, 4)), np.array([[1.0, 0.0], [0.0, 1.0]]), np.random.default_rng(0).normal(size=(5, 1))):
        np.save(tmp_path / "x.npy", rows)
        text = write_diagnosis(tmp_path / "report.html", [diagnose(str(tmp_path / "x.npy"))]).read_text(
            encoding="utf-8"
        )
        assert text.count('class="plot"') == 5


def test_names_are_short_but_tell_targets_apart():
    assert short_names(["a/b/model", "c/other"]) == ["model", "other"]
    assert short_names(["a/model", "b/model"]) == ["a/model", "b/model"]
    assert short_names(["a/model", "a/model"]) == ["a/model (1)", "a/model (2)"]


def test_cosines_of_pairs_are_the_same_in_parts(monkeypatch):
    rows = torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    whole = figures.random_cosines(rows)
    monkeypatch.setattr(figures, "_MOST_AT_ONCE", 7 * 300 + 1)
    assert torch.equal(figures.random_cosines(rows), whole)
