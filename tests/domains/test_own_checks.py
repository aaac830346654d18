"""What runs of a user's function may leave out, and metrics that do not decide."""

from __future__ import annotations

import math
import warnings

import pytest

import sepnorm
from sepnorm import SepNormError, SepNormWarning

ONCE = {"metrics": {"accuracy": True, "loss": False}, "quiet": True}


def odd(arm, seed) -> bool:
    return (arm.norm, seed) == ("bn", 1)


def scores(arm, seed) -> dict[str, float]:
    return {"accuracy": len(arm.name) + seed / 10, "loss": len(arm.name) - seed / 10}


def test_a_name_that_is_not_declared_costs_no_page(tmp_path):
    def extra(arm, seed, folder):
        return scores(arm, seed) | ({"other": 1.0} if odd(arm, seed) else {})

    with pytest.warns(SepNormWarning, match="3 of 4 runs gave no 'other', that of ln, seed 0 first"):
        found = sepnorm.compare(extra, ["ln", "bn"], 2, tmp_path, **ONCE)
    assert found.arms[1].values("other") == {1: 1.0} and (tmp_path / "report.html").is_file()


def test_an_unknown_value_of_a_metric_that_does_not_decide_is_left_out_and_noted(tmp_path):
    def unknown(arm, seed, folder):
        return scores(arm, seed) | ({"loss": math.nan} if odd(arm, seed) else {})

    with warnings.catch_warnings():
        warnings.simplefilter("error", SepNormWarning)
        found = sepnorm.compare(unknown, ["ln", "bn"], 4, tmp_path, **ONCE)
    assert found.decisions()["bn@final"].count == 4
    assert found.arms[1].interval("loss").mean == pytest.approx(8 - 0.5 / 3)
    said = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "Not finite or missing, and left out: loss of bn@final, seed 1." in said and "nan" not in said


def test_a_metric_that_does_not_decide_may_be_unknown_in_every_run(tmp_path):
    found = sepnorm.compare(
        lambda arm, seed, folder: scores(arm, seed) | {"loss": math.inf}, ["ln", "bn"], 2, tmp_path, **ONCE
    )
    assert found.arms[1].interval("loss") is None and "bn@final" in found.decisions()


def test_copies_are_found_among_runs_with_unknown_values(tmp_path):
    with pytest.warns(SepNormWarning, match="copies of one run"):
        sepnorm.compare(
            lambda arm, *_: {"accuracy": len(arm.name), "loss": math.nan}, ["ln", "bn"], 3, tmp_path, **ONCE
        )


def test_the_metric_that_decides_must_be_known(tmp_path):
    def unknown(arm, seed, folder):
        return scores(arm, seed) | ({"accuracy": math.nan} if odd(arm, seed) else {})

    with pytest.raises(SepNormError, match="the run of bn@final, seed 1 gave 'accuracy' as nan"):
        sepnorm.compare(unknown, ["ln", "bn"], 2, tmp_path, **ONCE)


def test_a_metric_that_finished_runs_lack_is_refused_before_more_are_run(tmp_path):
    asked = []

    def run(arm, seed, folder):
        asked.append(seed)
        return scores(arm, seed)

    sepnorm.compare(run, ["ln", "bn"], 2, tmp_path, **ONCE)
    with pytest.raises(SepNormError, match=r"ln-seed0 gave no 'f1': it gave accuracy, loss\. Name only these"):
        sepnorm.compare(run, ["ln", "bn"], 3, tmp_path, metrics={"accuracy": True, "f1": True}, quiet=True)
    assert asked == [0, 0, 1, 1]
