from __future__ import annotations

import json
import re
from dataclasses import asdict
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from browser import CHROMIUM, DRIVER, MISSING, SCROLLING, checked_page, console_errors, hover_text, opened, requests
from models import bert, sentences
from pages import SWEEP, THREE, comparison, with_details

from sepnorm.domains.images.pictures import reconstructions
from sepnorm.domains.molecules.pictures import draw
from sepnorm.experiment.decisions import Decision
from sepnorm.geometry import singular_values
from sepnorm.report.comparison_figures import against_lambda, against_uniformity, lambda_lines
from sepnorm.report.comparison_page import write_comparison
from sepnorm.report.comparison_words import clause, explanation, headline
from sepnorm.report.diagnosis import Points
from sepnorm.report.figures import embedding_map, spectrum
from sepnorm.report.page import Section, write_page
from sepnorm.report.runs import diagnosis_of, read_layers
from sepnorm.report.selection import references, shown_arms
from sepnorm.report.tables import aligned, difference_rows, fitting_rows, summary_rows
from sepnorm.surgery.inspection import inspect

needs_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)


def test_tables_say_by_how_much_and_whether_it_is_decided(tmp_path):
    found = comparison(tmp_path)
    assert headline(found).startswith(
        "[CLS] linear against ln: bn@final is better (+0.051 ± 0.004, 3 seeds); bn+bn@final is better"
    )
    header, rows = difference_rows(found, found.arms[1])
    assert header[0] == "minus bn@final" and [row[0] for row in rows] == ["bn+bn@final"]
    assert rows[0][1].endswith("better")  # ln has its verdict in "minus ln"
    assert not any(cell.endswith(("better", "worse", "undecided")) for row in rows for cell in row[2:])  # not judged
    assert "undecided (+0.05, 1 seed)" in headline(comparison(tmp_path / "one", seeds=1))


def test_a_spectrum_does_not_fall_where_a_norm_leaves_a_zero():
    rows = torch.nn.functional.layer_norm(torch.randn(500, 16, generator=torch.Generator().manual_seed(0)), (16,))
    values = singular_values(rows).tolist()
    assert values[-1] < 1e-5 * values[0]  # outputs of a LayerNorm sum to 0
    (line,) = spectrum({"ln": values}).data
    assert len(line.x) == 15 and min(line.y) > 0.1
    low = spectrum({"two of four": [1.0, 0.5, 1e-9, 0.0]})
    assert list(low.data[0].x) == [1, 2] and low.layout.xaxis.range == (0, 5)
    assert list(spectrum({"nothing": [0.0, 0.0]}).data[0].y) == [1.0]


@pytest.mark.slow
def test_a_page_of_eight_arms_and_ten_seeds_is_small(tmp_path):
    norms = ("ln", "bn", "bn+ln", "bn+bn", "ln+ln", "ln+bn", "rms", "bn+rms")
    found = comparison(tmp_path, [{"norm": norm} for norm in norms], seeds=10)
    rng = np.random.default_rng(1)
    for arm in found.arms:
        for seed, folder in arm.folders.items():
            arm.losses[seed] = [(step, 1 / step + rng.random()) for step in range(1, 5000)]
            if seed == 0:  # the seed that figures are of
                cloud = {"cls": rng.standard_normal((2000, 64)), "tokens": rng.standard_normal((4096, 64))}
                np.savez(folder / "embeddings.npz", **cloud, labels=rng.integers(0, 10, 2000))
    page = write_comparison(tmp_path / "report.html", "Eight arms", found)
    assert page.stat().st_size < 8e6


def test_a_phone_leaves_out_columns_that_the_folded_table_has_too(tmp_path):
    text = write_comparison(tmp_path / "a.html", "A", comparison(tmp_path)).read_text(encoding="utf-8")
    first, second = re.findall(r"<table>.*?</table>", text, flags=re.DOTALL)[:2]
    assert re.findall(r'<th scope="col" class="spare">(\w+)</th>', first) == ["uniformity", "rank"]
    assert first.count('<td class="spare">') == 2 * first.count('<th scope="row">')
    assert "spare" not in second and "[CLS] uniformity" in second
    assert re.search(r"@media screen and \(max-width: 44rem\) { \.spare { display: none; } }", text)


def test_a_note_stands_between_the_title_and_the_verdict(tmp_path):
    note = "Scored by other <data> than yours."
    text = write_comparison(tmp_path / "a.html", "A", comparison(tmp_path), note=note).read_text(encoding="utf-8")
    title, said, verdict = (text.index(each) for each in ("<h1", "by other &lt;data&gt; than", '<div class="verdict'))
    assert title < said < verdict


def test_only_what_is_decided_is_marked(tmp_path):
    found = comparison(tmp_path)
    for seed in range(3):
        found.arms[1].metrics[seed]["cls_linear_top1"] = 0.7 + 0.2 * seed  # no better and no worse
    text = write_comparison(tmp_path / "report.html", "A comparison", found).read_text(encoding="utf-8")
    page = text.split("</style>")[1].split("<script>")[0]
    assert "<strong>Better than ln by [CLS] linear: bn+bn@final</strong>" in page and page.count("<strong>") == 1
    assert (
        '<td class="better">+0.102&nbsp;<wbr>±&nbsp;0.007 better</td>' in page
        and '<td class="better">better</td>' in page
    )
    undecided = re.findall(r"<td([^>]*)>(?:[^<]|<wbr>)* undecided</td>", page)
    assert undecided and not any(undecided)
    alone = comparison(tmp_path / "one", seeds=1)
    text = write_comparison(tmp_path / "one.html", "A comparison", alone).read_text(encoding="utf-8")
    page = text.split("</style>")[1].split("<script>")[0]
    assert "No arm is decided against ln by [CLS] linear." in page
    assert "<strong>" not in page and 'class="better"' not in page and 'class="worse"' not in page


@pytest.mark.slow
@needs_browser
def test_the_page_of_three_arms_in_a_browser(tmp_path):
    found = with_details(comparison(tmp_path))
    page = write_comparison(
        tmp_path / "report.html", "A <comparison>", found, lambda arms, seed: [reconstructions(arms, seed)]
    )
    with checked_page(page, tmp_path, figures=14) as driver:
        assert driver.title == "A <comparison>"
        assert "ln, seed 1" in hover_text(driver, "figure-1")
        assert "encoder.layer" in hover_text(driver, "figure-8")
        assert "sample" in hover_text(driver, "figure-12")
        titles = [box.text for box in driver.find_elements("css selector", "h2")]
        assert titles == [
            "Differences by seed",
            "Results",
            "Training",
            "Reconstructions",
            "Has [CLS] collapsed?",
            "Shape of [CLS] and tokens",
            "Features",
            "Layer by layer",
            "Map",
            "Norm by norm",
            "Definitions",
        ]
        assert (
            driver.execute_script(
                "return [...document.images].map(i => [i.naturalWidth, i.naturalHeight, getComputedStyle(i).imageRendering])"
            )
            == [[71, 8, "pixelated"]] * 5
        )
        titles = figure_titles(driver)
        assert "Singular values of [CLS]" in titles[2] and "Singular values of tokens" in titles[3]
        assert "Map of ln" in titles[12] and "Map of bn+bn@final" in titles[13]
        better, plain = (
            driver.execute_script(f"return getComputedStyle(document.querySelector('{cell}')).color")
            for cell in ("td.better", "td:not([class])")
        )
        assert better != plain


@pytest.mark.slow
@needs_browser
def test_the_page_of_a_lambda_sweep_in_a_browser(tmp_path):
    page = write_comparison(tmp_path / "report.html", "A sweep", comparison(tmp_path, SWEEP))
    with checked_page(page, tmp_path, figures=17) as driver:  # as above for eight arms, without layers, and two targets
        assert figure_titles(driver)[2:4] == [
            "[CLS] linear against lambda on [CLS]",
            "[CLS] linear against lambda on [CLS] and tokens",
        ]
        places = "return document.getElementById('figure-2')._fullLayout.xaxis._categories"
        assert driver.execute_script(places) == ["0", "0.01", "0.1"]


@needs_browser
def test_the_table_of_results_fits_a_phone_with_every_column_that_it_has(tmp_path):
    found = comparison(tmp_path, [{"norm": "ln"}, {"norm": "bn+bn"}])
    for number, arm in enumerate(found.arms):
        for seed, metrics in arm.metrics.items():
            metrics["cls_linear_top1"] = 0.811 - 0.02 * number + 0.0084 * seed * (1 - 2 * number)
            metrics["mean_linear_top1"] = 0.791 + 0.0131 * seed
    page = write_comparison(tmp_path / "report.html", "Two arms", found)
    assert '<th scope="col" class="spare">mean linear</th>' in page.read_text() and "undecided</td>" in page.read_text()
    with opened(page, tmp_path / "profile", 390, 844) as driver:
        assert driver.execute_script(SCROLLING) == []
        assert not driver.find_element("xpath", "//th[text()='mean linear']").is_displayed()


@pytest.mark.slow
@needs_browser
def test_the_page_of_data_without_labels_in_a_browser(tmp_path):
    page = write_comparison(tmp_path / "report.html", "No labels", comparison(tmp_path, SWEEP, labels=False))
    with checked_page(page, tmp_path, figures=19) as driver:  # two measures against lambda rather than one
        assert "The data have no labels" in driver.find_element("css selector", ".verdict").text
        titles = figure_titles(driver)
        assert titles[1] == "Uniformity against [CLS] effective rank"
        assert titles[2] == "[CLS] uniformity against lambda on [CLS]"
        assert titles[4] == "[CLS] effective rank against lambda on [CLS]"


def test_without_labels_geometry_takes_the_lead(tmp_path):
    found = comparison(tmp_path, labels=False)
    assert [metric.key for metric in found.leading] == ["cls_uniformity", "cls_effective_rank"]
    assert headline(found).startswith(
        "The data have no labels, so only geometry was measured. [CLS] uniformity against ln: bn@final is better (-1.0"
    )
    assert found.ranked()[0].name == "bn+bn@final"  # the lowest uniformity
    for arm in found.arms:
        arm.metrics = {seed: {"spearman": 0.5 + seed} for seed in arm.metrics}
    assert [metric.key for metric in found.leading] == ["spearman"]  # of which nobody said whether more is better
    assert "so there is no verdict" in headline(found) and found.decisions() == {}
    assert against_uniformity(found) == []


def test_many_arms_have_full_tables_and_few_figures(tmp_path):
    arms = [
        {"norm": norm, "uniformity_weight": weight / 10, "uniformity_on": on}
        for norm in ("ln", "bn+bn")
        for on in ("cls", "tokens", "both")
        for weight in range(not (norm == "ln" and on == "cls"), 11)
    ]
    found = comparison(tmp_path, arms, seeds=2)
    assert len(found.arms) > 60
    shown = shown_arms(found)
    assert shown == [found.arms[0], *found.arms[-7:]]
    found.arms[-1].metrics[0]["cls_linear_top1"] = float("nan")
    assert found.arms[-1] not in shown_arms(found) and len(shown_arms(found)) == 8
    text = write_comparison(tmp_path / "report.html", "Many", found, lambda arms, seed: [made(arms, seed)]).read_text(
        encoding="utf-8"
    )
    page = text.split("</style>")[1].split("<script>")[0]
    assert f"show 8 of the {len(found.arms)} arms: the baseline ln and the 7 best by [CLS] linear" in page
    assert (
        page.count(f'<tr><th scope="row">{found.arms[7].name}</th>') == 6
    )  # summary, means, difference, verdict, and measures of two
    assert page.count('class="plot"') == 2 + 3 + 3 + 8 + 2 and f"8 of {len(found.arms)} arms are drawn" in page
    assert "<summary><h2>Of a domain</h2></summary>8 arms, seed 0" in page
    assert f"of {len(found.arms) - 2} arms" in headline(found) and len(headline(found)) < 300  # one has no value
    assert len(against_uniformity(found)[0].data) == 2  # by norm


def figure_titles(driver) -> list[str]:
    return [box.text for box in driver.find_elements("css selector", ".figures .title")]


def made(arms, seed) -> Section | None:
    return Section("Of a domain", f"{len(arms)} arms, seed {seed}")


def test_lines_against_lambda_begin_without_the_term(tmp_path):
    inner = {"norm": "ln", "uniformity_weight": 0.1, "uniformity_form": "inner"}
    found = comparison(tmp_path, [*SWEEP, inner, {"norm": "bn"}])
    lines = {name: [arm.config.uniformity_weight for arm in arms] for name, arms in lambda_lines(found, "cls").items()}
    assert lines == {
        "ln": [0, 0.01, 0.1],
        "bn+bn@final": [0, 0.01, 0.1],
        "ln, inner": [0, 0.1],
        "bn@final": [0],
    }
    both = {name: len(arms) for name, arms in lambda_lines(found, "both").items()}
    assert both == {"ln": 2, "bn+bn@final": 2, "bn@final": 1}
    assert [figure.layout.meta["title"] for figure in against_lambda(found)] == [
        "[CLS] linear against lambda on [CLS]",
        "[CLS] linear against lambda on [CLS] and tokens",
    ]
    line = against_lambda(found)[0].data[0]
    assert line.y[0] == pytest.approx(0.81) and line.error_y.array[0] == pytest.approx(0.0248, abs=1e-4)
    assert against_lambda(comparison(tmp_path / "same")) == []


def test_differences_are_to_arms_of_the_same_lambda(tmp_path):
    found = comparison(tmp_path, SWEEP)
    assert [arm.name for arm in references(found)] == ["ln", "bn+bn@final"]
    assert [arm.name for arm in references(comparison(tmp_path / "two", THREE[:2]))] == ["ln"]


def test_the_second_reference_is_a_shared_norm_if_there_is_one(tmp_path):
    norms = [{"norm": norm} for norm in ("ln", "bn+ln", "bn", "rms")]
    assert [arm.name for arm in references(comparison(tmp_path, norms))] == ["ln", "bn@final"]


def test_the_correction_is_told_for_each_arm_that_is_subtracted(tmp_path):
    assert "for each arm that is subtracted by itself: 2 arms minus ln, 1 arm minus bn@final. " in explanation(
        comparison(tmp_path)
    )
    two = comparison(tmp_path / "two", THREE[:2])
    assert "judged by [CLS] linear alone, at 95 %." in explanation(two)


def test_an_arm_that_was_decided_early_says_after_how_many_seeds(tmp_path):
    found = comparison(tmp_path, seeds=7)
    found.most = 12
    for seed in range(7):  # without spread but for the last seeds
        for number, arm in enumerate(found.arms):
            noise = (0.0001 if seed < 5 else 0.03) * (-1) ** seed * number
            arm.metrics[seed]["cls_linear_top1"] = 0.8 + 0.05 * number + 0.01 * seed + noise
    count = found.decisions()["bn@final"].count
    said = f"better after {count} seeds"
    assert count < 7 and summary_rows(found)[1][1][3] == said and fitting_rows(found)[1][1][3] == said
    assert difference_rows(found, found.arms[0])[1][0][1].endswith(f" {said}")
    page = write_comparison(tmp_path / "report.html", "A", found).read_text(encoding="utf-8")
    assert f'<td class="better">{said}</td>' in page and f"better</b> after {count} seeds" in page
    assert "An arm keeps the difference and interval of the seeds that decided it" in page
    assert max(map(len, aligned(*fitting_rows(found)).splitlines())) <= 100


@pytest.mark.parametrize(
    ("most", "more", "words"),
    [
        (None, 8, "12 seeds; a new comparison of about 20 would decide it"),
        (None, None, "12 seeds; more seeds would hardly decide it"),
        (12, 8, "12 seeds; the budget ended, a new comparison of about 20 would decide it"),
        (12, None, "12 seeds; the budget ended, more seeds would hardly decide it"),
        (30, 8, "12 seeds; about 8 more would decide it"),
    ],
)
def test_what_is_undecided_says_how_many_seeds_would_decide_it(most, more, words):
    decision = Decision(0.004, 0.0, 0.008, 12, "undecided", lambda: more)
    assert clause(decision, most) == f"undecided (+0.004 ± 0.004, {words})"


@pytest.mark.parametrize("name", ["bn+ln@final", "bn+ln@encoder.layers.*.final_layer_norm and some more of it"])
def test_a_table_fits_a_terminal(tmp_path, name):
    found = comparison(tmp_path)
    rng = np.random.default_rng(0)
    for arm in found.arms:
        arm.name = arm.name if arm is found.arms[0] else f"{name} {found.arms.index(arm)}"
        for metrics in arm.metrics.values():
            metrics |= {"mean_linear_top1": 0.9 + rng.normal() / 10, "cls_uniformity": -1e4 * rng.random()}
    assert max(map(len, aligned(*summary_rows(found)).splitlines())) > 100 or name == "bn+ln@final"
    for width in (100, 80, 60):
        header, rows = fitting_rows(found, width)
        assert max(map(len, aligned(header, rows).splitlines())) <= width
        assert header[1:4] == ["[CLS] linear", "minus ln", "verdict"]
        assert len({row[0] for row in rows}) == 3 and rows[1][0].startswith("bn+") and rows[1][0].endswith("1")
    assert fitting_rows(found, 1000) == summary_rows(found)
    found.arms[0].name = "ln of a very long name " * 4
    header, rows = fitting_rows(found, 90)
    assert header[2] == f"minus {rows[0][0]}" and "…" in header[2]


def test_losses_with_another_term_in_them_are_not_compared(tmp_path):
    found = comparison(tmp_path, SWEEP)
    header, rows = difference_rows(found, found.arms[0])
    losses = {row[0]: row[header.index("final loss")] for row in rows}
    assert losses.pop("bn+bn@final") == "+0.000 ± 0.000" and set(losses.values()) == {""}
    assert all(cell for row in rows for cell in row[:-1])


def test_layers_are_read_back_as_they_were(tmp_path):
    found = inspect(bert(), [sentences(16)])
    (tmp_path / "layers.json").write_text(json.dumps(asdict(found)))
    again = read_layers(tmp_path / "layers.json")
    assert again is not None and asdict(again) == asdict(found) and str(again) == str(found)
    assert read_layers(tmp_path / "none.json") is None


def test_a_run_without_layers_tokens_and_means_is_diagnosed(tmp_path):
    arm = comparison(tmp_path).arms[0]
    np.savez(arm.folders[0] / "embeddings.npz", cls=np.eye(8).repeat(3, 0))
    found = diagnosis_of(arm, 0)
    assert found.layers is None and found.tokens is None and found.mean_of_tokens is None
    assert found.verdict.illnesses == ["duplicates"] and found.points.labels is None
    for other in comparison(tmp_path / "other").arms:
        assert diagnosis_of(other, 0).mean_of_tokens is not None


@pytest.mark.slow
@needs_browser
def test_a_molecule_is_drawn_where_the_pointer_is(tmp_path):
    from selenium.webdriver.support.ui import WebDriverWait

    smiles = [f"{'C' * length}O" for length in range(1, 31)]
    points = Points(torch.randn(30, 8, generator=torch.Generator().manual_seed(0)), None, smiles)
    numbers = {name: number for number, name in enumerate(smiles)}
    figure = embedding_map(points, "ln", numbers)
    page = write_page(tmp_path / "map.html", "Map", "", [Section("Map", figures=[figure])], [draw(s) for s in smiles])
    with opened(page, tmp_path / "profile", 1280, 800) as driver:
        state = "const p = document.getElementById('picture'); return [p.hidden, p.naturalWidth > 50, p.src]"
        assert driver.execute_script(state)[0] is True
        said = hover_text(driver, "figure-0")
        hidden, drawn, source = driver.execute_script(state)
        assert not hidden and drawn and source.startswith("data:image/svg+xml")
        name = next(name for name in sorted(smiles, key=len, reverse=True) if name in said)
        assert unquote(source.partition(",")[2]) == draw(name)
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 2, "y": 2})
        WebDriverWait(driver, 5).until(lambda d: d.execute_script(state)[0])
        assert not console_errors(driver) and not requests(driver)


def test_readings_of_runs_are_drawn_over_training_as_means_over_seeds(tmp_path):
    from sepnorm.report.progress_figures import progress_curves

    arms = comparison(tmp_path).arms
    assert progress_curves(arms) == []  # these runs kept none
    for arm in arms:
        for seed, folder in arm.folders.items():
            values = np.array([-0.5, -1.0, -2.0]) - seed
            np.savez(
                folder / "monitor.npz",
                steps=np.array([1, 5, 9]),
                cls_uniformity=values,
                cls_effective_rank_centered=-values,
            )
    drawn = progress_curves(arms)
    assert len(drawn) == 2 and [line.name for line in drawn[0].data] == [arm.name for arm in arms]
    seeds = list(arms[0].folders)
    assert list(drawn[0].data[0].x) == [1, 5, 9]
    assert list(drawn[0].data[0].y) == pytest.approx(np.array([-0.5, -1.0, -2.0]) - np.mean(seeds))
