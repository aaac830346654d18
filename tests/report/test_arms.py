from __future__ import annotations

import re
from importlib.resources import files

from pages import SWEEP, comparison

from sepnorm.report.alternatives import in_words
from sepnorm.report.arms import COLOURS, NEUTRAL, NORMS, styles
from sepnorm.report.comparison_figures import loss_curves
from sepnorm.report.figures import log_axis, spectrum
from sepnorm.report.forest import forest, round_ticks


def contrast(one: str, other: str) -> float:
    """As WCAG defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_is_seen_on_light_and_on_dark_ground():
    style = files("sepnorm.report").joinpath("page.css").read_text(encoding="utf-8")
    white, ground = re.findall(r"--ground: (#\w+)", style)
    for colour in {*COLOURS, *NORMS.values(), NEUTRAL}:
        assert contrast(colour, white) >= 3 and contrast(colour, ground) >= 3, colour


def test_an_arm_looks_the_same_whatever_it_is_beside():
    few, many = styles(["ln", "bn+ln@final"]), styles(["mine", "bn+bn@final", "bn@all", "bn+ln@final", "ln"])
    assert all(few[name] == many[name] for name in few)
    assert {name: look.kind for name, look in many.items()} == {
        "mine": "",
        "bn+bn@final": "separate",
        "bn@all": "shared",
        "bn+ln@final": "separate",
        "ln": "shared",
    }
    assert len({look.colour for look in many.values()}) == 5
    assert few["ln"].line["dash"] == "dash" and few["bn+ln@final"].line["dash"] == "solid"
    assert few["ln"].marker["symbol"] == "circle-open" and few["bn+ln@final"].marker["symbol"] == "circle"


def test_arms_of_one_norm_have_colours_of_their_own():
    found = styles(["ln", "ln λ=0.1 cls", "bn+ln@final", "bn+ln@all"])
    assert found["ln"].colour == NORMS["ln"] and found["bn+ln@final"].colour == NORMS["bn+ln"]
    assert len({look.colour for look in found.values()}) == 4 and found["ln λ=0.1 cls"].kind == "shared"
    assert len(styles(f"arm {number}" for number in range(30))) == 30  # colours begin again


def test_the_forest_has_a_line_for_each_arm_and_says_the_verdict(tmp_path):
    drawn = forest(comparison(tmp_path))
    assert drawn.count('<li class="row') == 3  # two against ln, one against bn@final
    assert drawn.count("<circle") == 3 * 3 + 1  # seeds, and one in the key
    assert '<b class="better">better</b> +0.051&nbsp;<wbr>±&nbsp;0.004' in drawn and "<h3>Minus bn@final</h3>" in drawn
    assert "right of the line is better" in drawn and "practically equal, ±0.0081" in drawn
    assert drawn.count('row separate" style="--arm:#8250DF"') == 2  # the same colour in both
    alone = forest(comparison(tmp_path / "one", seeds=1))
    assert "undecided" in alone and 'line class="interval" x1' not in alone  # nothing is known of the spread
    lower = forest(comparison(tmp_path / "lower", labels=False))
    assert "left of the line is better" in lower and "&minus;1.0" in lower
    hostile = comparison(tmp_path / "hostile")
    hostile.arms[1].name = "<script>"
    assert "<script>" not in forest(hostile)


def test_ticks_are_round_numbers():
    assert round_ticks(-0.013, 0.032) == [-0.01, 0.0, 0.01, 0.02, 0.03]
    assert round_ticks(-3, 41) == [0.0, 10.0, 20.0, 30.0, 40.0]
    for low, high in ((-1e-6, 1e-6), (-0.7, 0.65), (0, 123456)):
        assert 2 <= len(round_ticks(low, high)) <= 7


def test_figures_are_told_in_words(tmp_path):
    arms = comparison(tmp_path, SWEEP).arms
    said = in_words(loss_curves(arms[:2]))
    assert said.startswith(
        "Loss of training, with the uniformity term. ln (shared): from 1 to 0.0526, lowest 0.0526, highest 1."
    )
    assert in_words(spectrum({"before": [2.0, 1.0, 0.5]}, "[CLS]")) == (
        "Singular values of [CLS]. before: from 1 to 0.25, lowest 0.25, highest 1."
    )


def test_a_single_last_value_that_falls_off_is_not_drawn():
    (line,) = spectrum({"ln": [1.0, 0.5, 0.2, 0.001]}).data
    assert list(line.y) == [1.0, 0.5, 0.2]
    (steep,) = spectrum({"ln": [1.0, 0.1, 0.01, 0.002]}).data
    assert len(steep.y) == 4


def test_a_log_axis_has_ticks_at_any_range():
    nothing = [float("nan"), float("inf"), 0.0]
    for values, ticks in ((nothing, None), ([1.0, 1.5], None), ([1.0, 50.0, *nothing], "D2"), ([1e-9, 1.0], 2)):
        found = spectrum({"x": [1.0]})
        found.data[0].y = values
        log_axis(found)
        assert found.layout.yaxis.dtick == ticks


def test_rounding_is_not_drawn_as_a_curve():
    found = spectrum({"x": [1.0]})
    found.data[0].y = [5.65685, 5.656851]
    log_axis(found)
    low, high = found.layout.yaxis.range
    assert high - low > 0.1
