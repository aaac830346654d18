"""Seeds are added, all arms of a seed together, until every arm is decided."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

from sepnorm.errors import RunFailedError, SepNormError
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.decisions import decide
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.experiment.running import UnfinishedComparisonError, compare
from sepnorm.experiment.runs import Outcome
from sepnorm.report.comparison_words import explanation, headline
from sepnorm.training.configs import ArmConfig

METRICS = Metrics([Metric("accuracy", "accuracy", True, primary=True)])
ARMS = [ArmConfig(data="made up", norm=norm) for norm in ("ln", "bn", "bn+ln")]


class Made:
    """A recipe whose metric is drawn by seed and norm: ``gaps`` are the true differences to ln, in standard deviations."""

    def __init__(self, gaps: dict[str, float], scale: float = 0.01) -> None:
        self.gaps, self.scale = gaps, scale
        self.done: list[tuple[str, int]] = []

    def run(self, config, folder, report):
        self.done.append((config.norm, config.seed))
        place = list(self.gaps).index(config.norm)
        noise = numpy.random.default_rng(1000 * config.seed + place).normal()
        if not self.gaps[config.norm]:
            noise = (-1) ** config.seed * (1 + config.seed / 10)  # about 0 for ever
        value = 0.8 + 0.01 * config.seed + self.scale * (self.gaps[config.norm] + (noise if config.norm != "ln" else 0))
        return Outcome({"accuracy": value}, [(1, 0.5)], {"cls": torch.ones(2, 3)}, lambda folder: folder.mkdir())


def run(recipe: Made, folder, most: int = 12, arms=ARMS) -> Comparison:
    return compare(lambda base: recipe, METRICS, arms[0], arms, range(most), folder, adaptive=True)


def test_large_differences_stop_early_and_small_ones_go_to_the_end(tmp_path):
    large = Made({"ln": 0, "bn": 8, "bn+ln": -8})
    found = run(large, tmp_path / "large")
    assert {name: each.verdict for name, each in found.decisions().items()} == {
        "bn@final": "better",
        "bn+ln@final": "worse",
    }
    seeds = len(found.arms[0].metrics)
    assert 3 <= seeds < 12 and len(large.done) == 3 * seeds  # all arms of a seed together, and none too many
    small = Made({"ln": 0, "bn": 8, "bn+ln": 0}, scale=0.05)
    found = run(small, tmp_path / "small")
    assert len(found.arms[0].metrics) == 12 and found.decisions()["bn+ln@final"].verdict == "undecided"


def test_what_is_finished_is_looked_at_again_as_it_was(tmp_path):
    gaps = {"ln": 0, "bn": 6, "bn+ln": 6}
    first = run(Made(gaps), tmp_path)
    again = Made(gaps)
    second = run(again, tmp_path)
    assert again.done == [] and second.as_dict() == first.as_dict()
    for seed in (
        len(first.arms[0].metrics),
        len(first.arms[0].metrics) + 1,
    ):  # runs ahead of the decision change nothing
        for arm in ARMS:
            ahead = Made(gaps)
            compare(lambda base, ahead=ahead: ahead, METRICS, arm, [arm], [seed], tmp_path)
    assert run(again, tmp_path).as_dict() == first.as_dict() and again.done == []


def test_an_arm_keeps_its_first_verdict(tmp_path):
    """One that is left undecided by later seeds stays decided, as the limits allow."""
    gaps = [0.010, 0.0101, 0.0099, 0.010, -0.2, 0.3, -0.2, 0.3]
    baseline = {seed: {"accuracy": 0.8} for seed in range(8)}
    arm = {seed: {"accuracy": 0.8 + gap} for seed, gap in enumerate(gaps)}
    found = Comparison([Arm("ln", ARMS[0], baseline), Arm("bn", ARMS[1], arm)], METRICS, margin=0.001, most=12)
    assert decide({"bn": gaps}, margin=0.001, higher_is_better=True, most=12)["bn"].verdict == "undecided"
    decision = found.decisions()["bn"]
    assert decision.verdict == "better" and decision.count < 8


def test_the_margin_is_that_of_the_first_seeds():
    values = [0.5, 0.6, 0.7, *[5.0] * 6]
    baseline = {seed: {"accuracy": value} for seed, value in enumerate(values)}
    found = Comparison([Arm("ln", ARMS[0], baseline), Arm("bn", ARMS[1], baseline)], METRICS, most=12)
    assert found.margin_to() == pytest.approx(0.006)  # 1 % of the mean of three
    assert Comparison(found.arms, METRICS).margin_to() == pytest.approx(0.318 / 9)
    assert found.decisions()["bn"].verdict == "equal" and found.decided


def test_an_arm_without_finite_values_is_not_decided(tmp_path):
    baseline = {seed: {"accuracy": 0.8 + seed / 100} for seed in range(3)}
    broken = {seed: {"accuracy": float("nan")} for seed in range(3)}
    found = Comparison([Arm("ln", ARMS[0], baseline), Arm("bn", ARMS[1], broken)], METRICS)
    assert found.decisions() == {} and not found.decided


class Failing(Made):
    """A recipe of which one arm raises, from a seed on."""

    def __init__(self, norm: str, first: int = 0) -> None:
        super().__init__({"ln": 0, "bn": 0, "bn+ln": 0})
        self.norm, self.first = norm, first

    def run(self, config, folder, report):
        outcome = super().run(config, folder, report)
        if config.norm == self.norm and config.seed >= self.first:
            raise RunFailedError(f"the run of {config.arm}, seed {config.seed} failed.")
        return outcome


def test_no_seed_is_added_after_a_failed_run(tmp_path):
    failing = Failing("bn")
    with pytest.raises(UnfinishedComparisonError, match="the run of bn@final, seed 0 failed") as told:
        run(failing, tmp_path)
    assert failing.done == [("ln", 0), ("bn", 0), ("bn+ln", 0)]
    found = told.value.comparison  # of the arms that have results
    assert [arm.name for arm in found.arms] == ["ln", "bn+ln@final"] and list(found.arms[1].metrics) == [0]
    assert found.failed == [("bn@final", 0)] and found.as_dict()["failed"] == [{"arm": "bn@final", "seed": 0}]
    assert headline(found).startswith("Arms left out because runs failed: bn@final, seed 0. Verdicts are corrected")
    assert "Seeds were added until a run failed" in explanation(found)
    assert "corrected for 2 arms (Holm)" in explanation(found)  # the one that failed was planned


def test_arms_that_always_fail_stay_in_the_correction(tmp_path):
    recipe = Failing("bn")
    recipe.gaps = {"ln": 0, "bn": 0, "bn+ln": 2}
    with pytest.raises(UnfinishedComparisonError) as told:
        compare(lambda base: recipe, METRICS, ARMS[0], ARMS, range(4), tmp_path)
    found = told.value.comparison
    of_both = found.decisions()["bn+ln@final"]
    found.failed = []
    assert of_both.low < found.decisions()["bn+ln@final"].low or of_both.low == 0


def test_copies_of_one_run_decide_nothing_and_stop(tmp_path):
    class Copying(Made):
        def run(self, config, folder, report):
            super().run(config, folder, report)
            return Outcome({"accuracy": 0.8 + len(config.norm) / 100, "seconds": config.seed}, [], {}, Path.mkdir)

    recipe = Copying({"ln": 0, "bn": 0, "bn+ln": 0})
    found = run(recipe, tmp_path)
    assert found.copies and len(recipe.done) == 18
    assert {each.verdict for each in found.decisions().values()} == {"undecided"}
    assert headline(found).startswith("Every arm has the same metrics in every seed")


def test_the_seeds_that_are_complete_are_kept_when_runs_fail(tmp_path):
    failing = Failing("bn", first=2)
    with pytest.raises(UnfinishedComparisonError) as told:
        compare(lambda base: failing, METRICS, ARMS[0], ARMS, range(4), tmp_path / "fixed")
    found = told.value.comparison
    assert len(failing.done) == 12 and len(found.arms) == 3 and found.planned == 4
    assert [list(arm.metrics) for arm in found.arms] == [[0, 1]] * 3
    with pytest.raises(UnfinishedComparisonError) as told:
        run(Failing("ln"), tmp_path / "baseline")
    assert told.value.comparison is None  # nothing to compare with


def test_a_margin_that_is_no_number_is_refused_before_any_run(tmp_path):
    recipe = Made({"ln": 0, "bn": 0, "bn+ln": 0})
    for margin in (-1, float("nan"), "0.01"):
        with pytest.raises(SepNormError, match="margin is a finite number of at least 0"):
            compare(lambda base: recipe, METRICS, ARMS[0], ARMS, range(2), tmp_path, margin=margin)
    assert recipe.done == []


def test_one_margin_judges_differences_to_every_arm():
    """That of the baseline: a page draws one band."""
    values = {"ln": 0.5, "bn": 5.0, "bn+ln": 5.03}
    arms = [
        Arm(config.arm, config, {seed: {"accuracy": values[config.norm] + seed * place / 1e4} for seed in range(6)})
        for place, config in enumerate(ARMS)
    ]
    found = Comparison(arms, METRICS)
    assert found.margin_to() == pytest.approx(0.005)
    assert found.decisions(found.arms[1])["bn+ln@final"].verdict == "better"  # not within 1 % of 5
