"""A second report in the folder of a comparison."""

from __future__ import annotations

import json
import random
import re
import warnings

import pytest

import sepnorm
from sepnorm import Metric, SepNormError
from sepnorm.domains.scores import compare_scores
from sepnorm.errors import SecondLookWarning

ARMS = ["ln", "bn", "bn+ln"]
METRICS = {"accuracy": True, "loss": False}


def scores(arm, seed) -> dict[str, float]:
    drawn = random.Random(f"{arm.name}{seed}")
    return {"accuracy": 0.7 + drawn.gauss(0, 0.01), "loss": 1 + drawn.gauss(0, 0.01)}


def diverging(arm, seed, folder):
    """Every time, with one arm and seed."""
    return scores(arm, seed) | ({"accuracy": float("nan")} if (arm.norm, seed) == ("bn", 3) else {})


def test_an_arm_that_always_fails_can_be_left_out_and_still_counts(tmp_path):
    asked = []

    def run(arm, seed, folder):
        asked.append((arm.norm, seed))
        return diverging(arm, seed, folder)

    again = {"out": tmp_path, "metrics": METRICS, "quiet": True, "most": 6}
    for count in (12, 1):  # no further seed is begun, and the second time only the failed run is done
        with pytest.raises(SepNormError, match="If an arm fails again, leave it out: the same folder goes on"):
            sepnorm.compare(run, ARMS, "auto", **again)
        assert len(asked) == count
        asked.clear()
    with pytest.raises(
        SepNormError, match=r"without bn\+ln@final: choose another folder with out=, or add .* to arms="
    ):
        sepnorm.compare(run, ["ln", "bn"], "auto", **again)
    for _ in range(2):  # the first time it goes on, the second it reads
        found = sepnorm.compare(run, ["ln", "bn+ln"], "auto", **again)
        assert {seed for _, seed in asked} <= {4, 5} and not found.looks
        assert found.failed == [("bn@final", 3)] and found.family() == {"bn@final", "bn+ln@final"}
        said = (tmp_path / "results.md").read_text(encoding="utf-8")
        assert (
            said.startswith("Arms left out because runs failed: bn@final, seed 3.") and "until a run failed" not in said
        )
        assert "corrected for 2 arms (Holm)" in said
    alone = sepnorm.compare(run, ["ln", "bn+ln"], "auto", **(again | {"out": tmp_path / "alone"}))
    mine, theirs = (each.decisions()["bn+ln@final"] for each in (found, alone))
    assert len(found.arms[0].metrics) > 4 and (
        mine.high - mine.low > theirs.high - theirs.low or mine.count > theirs.count
    )


def test_the_command_names_its_own_options(run, tmp_path):
    (tmp_path / "out").mkdir()
    found = {"arms": [{"name": name, "seeds": {"0": {}}} for name in ("ln", "rms")], "failed": []}
    (tmp_path / "out/results.json").write_text(json.dumps(found))
    code, _, err = run("compare", "images", "--norms", "ln,bn", "--out", "out")
    assert code == 1 and re.search(
        "without rms: choose another folder with --out, or add the missing arms to --norms", err
    )


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({}, {}, ""),
        ({}, {"margin": 0.05}, "margin"),
        ({"margin": 0.05}, {}, "margin"),
        ({"margin": 0.05}, {"margin": 0.05}, ""),
        ({}, {"metrics": {"loss": False, "accuracy": True}}, "primary metric"),
        ({}, {"metrics": [Metric("accuracy", "accuracy", True)]}, ""),
        ({}, {"metrics": {"loss": False}, "margin": 0}, "margin and another primary metric"),
    ],
)
def test_what_decides_is_not_changed_after_a_report_without_a_word(tmp_path, first, second, said):
    def train(arm, seed, folder):
        return scores(arm, seed)

    def looked(changes):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = sepnorm.compare(train, ["ln", "bn"], 4, tmp_path, **({"metrics": METRICS} | changes), quiet=True)
        return found, [str(each.message) for each in told if each.category is SecondLookWarning]

    assert looked(first)[1] == []
    found, told = looked(second)
    assert [f"held a report with another {said} before" in each for each in told] == [True] * bool(said)
    found, told = looked(second)  # the same again is no further look, and the note stays
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert told == [] and ("set anew after a report in this folder" in page) == bool(said) == bool(found.changed)


def test_a_default_margin_that_moves_with_the_data_is_no_second_look(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("arm,seed,accuracy\nln,0,0.5\nbn,0,0.6\nln,1,0.51\nbn,1,0.63\n")
    compare_scores(table, tmp_path / "out", {"accuracy": True})
    table.write_text(table.read_text().replace("0.51", "0.41"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SecondLookWarning)
        assert compare_scores(table, tmp_path / "out", {"accuracy": True})[0].changed == []
