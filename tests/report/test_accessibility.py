"""Every kind of page, for people who do not see it, have no mouse, hold a phone, or print it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from browser import AXE, CHROMIUM, DRIVER, MISSING, NO_AXE, open_all, show, started, violations, wait_for
from pages import SWEEP, comparison, of_model, with_details

from sepnorm.domains.diagnosis import diagnose
from sepnorm.domains.healing.healing import heal
from sepnorm.domains.healing.page import write_page_of
from sepnorm.domains.images.pictures import reconstructions
from sepnorm.domains.scores import compare_scores
from sepnorm.report.comparison_page import write_comparison
from sepnorm.report.diagnosis_page import write_diagnosis
from sepnorm.report.page import write_page
from sepnorm.studies.drawing import image_table, loss_figures
from sepnorm.studies.parts import Part

SITE = Path(__file__).parents[2] / "site/index.html"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)]


def of_a_comparison(folder: Path) -> Path:
    found = with_details(comparison(folder / "runs"))
    return write_comparison(folder / "page.html", "Three arms", found, lambda *each: [reconstructions(*each)])


def of_a_sweep(folder: Path) -> Path:
    return write_comparison(folder / "page.html", "A sweep", comparison(folder / "runs", SWEEP))


def of_scores(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    with (folder / "scores.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["arm", "seed", "accuracy"])
        for number, arm in enumerate(["ln", "bn@final", "bn+ln@final", "mine"]):
            rows.writerows([arm, seed, 0.8 + 0.01 * number + 0.001 * rng.random()] for seed in range(5))
    return compare_scores(folder / "scores.csv", folder / "out", {"accuracy": True})[1]


def of_a_model(folder: Path) -> Path:
    return write_diagnosis(folder / "page.html", [of_model()])


def of_vectors(folder: Path) -> Path:
    np.save(folder / "a.npy", np.random.default_rng(0).normal(1.0, 1.0, (200, 12)))
    np.save(folder / "b.npy", np.random.default_rng(0).normal(0.0, 1.0, (200, 12)))
    return write_diagnosis(folder / "page.html", [diagnose(str(folder / f"{name}.npy")) for name in "ab"])


def of_a_healing(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    return write_page_of(
        heal(rng.normal(2.0, 1.0, (200, 12)), labels=rng.integers(0, 3, 200).tolist()), folder / "page.html"
    )


def of_a_study(folder: Path) -> Path:
    found = [(Part("digits", "images", "demo", ("ln", "bn"), 100), comparison(folder / "runs"))]
    table, drawn = image_table(found), loss_figures(found)
    return write_page(folder / "page.html", "A study", table.lead(), drawn.sections)


KINDS = (of_a_comparison, of_a_sweep, of_scores, of_a_model, of_vectors, of_a_healing, of_a_study)


@pytest.mark.skipif(not AXE.is_file(), reason=NO_AXE)
@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_axe_finds_nothing_against_wcag(kind, tmp_path):
    page = kind(tmp_path)
    with started(tmp_path / "profile") as driver:
        for width, dark in ((1280, False), (1280, True), (390, False)):
            show(driver, page, width, 844, dark)
            open_all(driver)
            assert not (found := violations(driver)), (width, dark, found)


@pytest.mark.skipif(not AXE.is_file(), reason=NO_AXE)
@pytest.mark.skipif(not SITE.is_file(), reason="the documentation is not built: make docs")
def test_axe_finds_nothing_on_the_front_page_of_the_documentation(tmp_path):
    for dark in (False, True):
        with started(tmp_path / f"profile-{dark}") as driver:  # a site remembers the scheme
            show(driver, SITE, 1280, 844, dark)
            assert not (found := violations(driver)), (dark, found)


def test_axe_would_find_something(tmp_path):
    if not AXE.is_file():
        pytest.skip(NO_AXE)
    page = tmp_path / "page.html"
    page.write_text('<html><body><p style="color: #aaa; background: #fff">pale</p><img src="data:,"></body></html>')
    with started(tmp_path / "profile") as driver:
        show(driver, page, 1280, 844)
        assert {each.split(":")[0] for each in violations(driver)} >= {"color-contrast", "image-alt", "html-has-lang"}


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    return of_a_comparison(tmp_path_factory.mktemp("comparison"))


def test_keys_alone_reach_everything(page, tmp_path):
    from selenium.webdriver.common.keys import Keys

    with started(tmp_path / "profile") as driver:
        show(driver, page, 1280, 844)

        def press(key: str) -> None:
            driver.switch_to.active_element.send_keys(key)

        press(Keys.TAB)
        assert driver.switch_to.active_element.text == "Skip to the content"
        assert driver.execute_script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
        press(Keys.ENTER)
        wait_for(driver, "return document.activeElement.id === 'main'")
        part = driver.find_element("css selector", "details.part")
        driver.execute_script("arguments[0].querySelector('summary').focus()", part)
        press(Keys.ENTER)
        shown = "return document.querySelector('details.part .plot').querySelectorAll('.scatterlayer .trace').length"
        wait_for(driver, f"{shown} === 3")
        button = part.find_element("css selector", ".legend button")
        assert button.text.startswith("ln shared")
        driver.execute_script("arguments[0].focus()", button)
        press(Keys.SPACE)
        wait_for(driver, f"{shown} === 2")
        assert button.get_attribute("aria-pressed") == "false"
        press(Keys.SPACE)
        wait_for(driver, f"{shown} === 3")
        link = driver.find_element("css selector", "nav li:last-child a")
        driver.execute_script("arguments[0].focus()", link)
        press(Keys.ENTER)
        wait_for(driver, "return document.querySelector('details.part:last-of-type').open")


def test_on_a_phone_the_first_column_stays_in_sight(page, tmp_path):
    with started(tmp_path / "profile") as driver:
        show(driver, page, 390, 844)
        open_all(driver)
        moved = driver.execute_script(
            "return [...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth + 40).map(box => {"
            " const [first, last] = [box.querySelector('tbody th'), box.querySelector('tbody td:last-child')];"
            " box.scrollLeft = 1e4;"
            " return [first.getBoundingClientRect().left - box.getBoundingClientRect().left,"
            "  last.getBoundingClientRect().right - box.getBoundingClientRect().right]; })"
        )
        assert len(moved) > 3  # tables that are wider than the phone
        assert all(abs(first) < 1 and last < 1 for first, last in moved), moved


def test_on_paper_everything_is_open_and_light(page, tmp_path):
    with started(tmp_path / "profile") as driver:
        show(driver, page, 1280, 844, dark=True)
        state = (
            "return [document.querySelectorAll('details:not([open])').length,"
            " [...document.querySelectorAll('.plot')].filter(p => !p.querySelector('.main-svg')).length,"
            " getComputedStyle(document.body).backgroundColor,"
            " Math.max(...[...document.querySelectorAll('.plot .main-svg')].map(p => p.getBoundingClientRect().right"
            " - document.querySelector('main').getBoundingClientRect().right))]"
        )
        before = driver.execute_script(state)
        driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        folded, undrawn, ground, over = driver.execute_script(state)
        assert before[0] > 5 and (folded, undrawn, ground) == (0, 0, "rgb(255, 255, 255)") and over <= 0
        driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
        assert driver.execute_script(state)[::2] == before[::2]
