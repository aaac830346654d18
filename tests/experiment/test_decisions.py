from __future__ import annotations

import math
import pickle
import re

import numpy as np
import pytest
from scipy import stats

from sepnorm import SepNormError
from sepnorm.experiment.decisions import Decision, decide, default_margin
from sepnorm.experiment.intervals import difference


def one(values, margin=0.0, higher_is_better=True, **options) -> Decision:
    return decide({"arm": values}, margin=margin, higher_is_better=higher_is_better, **options)["arm"]


def families(count: int, arms: int, seeds: int, seed: int = 0, sizes=(0.0, 0.4, 1.0, 2.0)):
    """Differences of several arms to one baseline, some of them truly different."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        baseline = rng.standard_normal(seeds)
        yield {
            f"arm {i}": rng.choice(sizes) * rng.choice([-1, 1]) + rng.standard_normal(seeds) - baseline
            for i in range(arms)
        }


def plain_holm(p_values: dict[str, float], level: float) -> set[str]:
    """In the order of their p-values, until the first that is too large."""
    rejected: set[str] = set()
    for name in sorted(p_values, key=p_values.__getitem__):
        if p_values[name] > level / (len(p_values) - len(rejected)):
            break
        rejected.add(name)
    return rejected


def read_off(found: Decision, margin: float) -> str:
    """The verdict by the interval alone, higher being better."""
    if -margin <= found.low and found.high <= margin:
        return "equal"
    if found.low > 0 or (found.low == 0 and found.mean > 0):
        return "better"
    return "worse" if found.high < 0 or (found.high == 0 and found.mean < 0) else "undecided"


def test_one_arm_has_students_interval_and_test():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        values = rng.normal(0.7, 1, size=rng.integers(2, 9))
        for confidence in (0.95, 0.9):
            found, test = one(values, confidence=confidence), stats.ttest_1samp(values, 0)
            assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(confidence)))
            assert (found.verdict == "better") == (test.pvalue < 1 - confidence and test.statistic > 0)
            seen.add(found.verdict)
        old = difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0), True)
        assert one(values).verdict == old.verdict
    assert seen == {"better", "undecided"}


def test_better_and_worse_are_those_of_holm():
    beyond_bonferroni = 0
    for differences in families(400, arms=4, seeds=8):
        found = decide(differences, margin=0.0, higher_is_better=True)
        tests = {name: stats.ttest_1samp(values, 0) for name, values in differences.items()}
        rejected = plain_holm({name: test.pvalue for name, test in tests.items()}, 0.05)
        for name, test in tests.items():
            expected = "undecided" if name not in rejected else "better" if test.statistic > 0 else "worse"
            assert found[name].verdict == expected
            beyond_bonferroni += name in rejected and test.pvalue > 0.05 / 4
    assert beyond_bonferroni > 20


def test_equal_is_by_two_one_sided_tests():
    beyond_bonferroni, equal = 0, 0
    for differences in families(300, arms=3, seeds=10):
        margin = 1.8
        found = decide(differences, margin=margin, higher_is_better=True)
        p_values = {
            name: max(
                stats.ttest_1samp(values, margin, alternative="less").pvalue,
                stats.ttest_1samp(values, -margin, alternative="greater").pvalue,
            )
            for name, values in differences.items()
        }
        rejected = plain_holm(p_values, 0.025)
        assert {name for name in found if found[name].verdict == "equal"} == rejected
        equal += len(rejected)
        beyond_bonferroni += sum(p_values[name] > 0.025 / 3 for name in rejected)
    assert equal > 100 and beyond_bonferroni > 10


@pytest.mark.parametrize("most", [None, 12])
@pytest.mark.parametrize("margin", [0.0, 0.5, 1.5])
def test_the_verdict_can_be_read_off_the_interval(most, margin):
    seen, cut = set(), 0
    for differences in families(300, arms=4, seeds=11, seed=1):
        for name, found in decide(differences, margin=margin, higher_is_better=True, most=most).items():
            assert found.verdict == read_off(found, margin), (name, found)
            assert found.low <= found.mean <= found.high or found.verdict == "equal"
            seen.add(found.verdict)
            cut += 0.0 in (found.low, found.high)
    assert seen >= {"better", "worse", "undecided"} | ({"equal"} if margin > 1 else set())
    assert cut > 0


def test_intervals_of_several_arms_cover_together():
    """Uncut they are Bonferroni's: here with arms that all differ, where a cut at 0 is never wrong."""
    effects, missed = np.array([3.0, 5.0, -4.0, 8.0]), 0
    rng = np.random.default_rng(2)
    for _ in range(3000):
        values = rng.standard_normal((4, 6)) - rng.standard_normal(6) + effects[:, None]
        found = decide(dict(enumerate(values)), margin=0.0, higher_is_better=True)
        missed += any(not found[i].low <= effects[i] <= found[i].high for i in range(4))
    assert missed / 3000 < 0.05


def test_a_certain_difference_within_the_margin_is_equal():
    values = [0.010, 0.011, 0.012, 0.011, 0.010]
    assert one(values, margin=0.001).verdict == "better"
    assert one(values, margin=0.02).verdict == "equal"
    assert one([-v for v in values], margin=0.001).verdict == "worse"
    assert one(values, margin=0.001, higher_is_better=False).verdict == "worse"
    assert one([-v for v in values], margin=0.001, higher_is_better=False).verdict == "better"


@pytest.mark.parametrize("most", [None, 12])
def test_one_seed_decides_nothing(most):
    found = one([3.0], margin=5.0, most=most)
    assert (found.verdict, found.more_seeds, found.count, str(found)) == ("undecided", None, 1, "+3")
    assert found.low == -math.inf and found.high == math.inf


def test_identical_differences_count_as_signs():
    for most, needed in ((None, 6), (12, 9)):  # with most, limits have spent nine tenths of the level
        few, enough = one([0.5] * (needed - 1), most=most), one([0.5] * needed, most=most)
        assert (few.verdict, few.low, few.more_seeds) == ("undecided", -math.inf, 1)
        assert (enough.verdict, enough.low, enough.high, str(enough)) == ("better", 0.5, 0.5, "+0.5 ± 0")
        assert one([-0.5] * needed, most=most).verdict == "worse"
        few, enough = one([0.1] * 3, margin=0.2, most=most), one([0.1] * needed, margin=0.2, most=most)
        assert (few.verdict, few.low, few.more_seeds) == ("undecided", -math.inf, needed - 3)  # within the margin too
        assert (enough.verdict, enough.low, enough.high) == ("equal", enough.mean, enough.mean)
        assert one([0.0] * (needed - 1), most=most).verdict == "undecided"
        assert one([0.0] * needed, most=most).verdict == "equal"
    assert one([0.5] * 3, most=5).more_seeds is None
    # two arms: a sign test at 0.025 takes a seed more, until the other arm is decided
    wide = {"same": [0.5] * 6, "other": [1.0, -1.0, 0.5, 0.1, -0.7, 0.3]}
    assert decide(wide, margin=0.0, higher_is_better=True)["same"].verdict == "undecided"
    assert (
        decide(wide | {"other": [9.0, 9.1, 9.2, 9.0, 9.1, 9.2]}, margin=0.0, higher_is_better=True)["same"].verdict
        == "better"
    )


def test_planned_arms_without_differences_count_in_the_correction():
    values = [0.5, 1.4, 0.8, 1.6, 0.3]
    alone, of_three = one(values), one(values, others=2)
    assert (of_three.low, of_three.high) == (
        decide({"arm": values, "b": [1.0, -1.0] * 2, "c": [1.0, -1.0] * 2}, margin=0.0, higher_is_better=True)[
            "arm"
        ].low,
        of_three.high,
    )
    assert alone.verdict == "better" and of_three.verdict == "undecided" and of_three.low < alone.low


def test_coin_flips_seldom_decide_whenever_one_stops():
    """Differences of +1 and -1 are far from normal: 5.7 % in 400,000, 5.6 % by the limits alone. Signs from six on: 7.1 %."""
    rng = np.random.default_rng(9)
    verdicts = [run(values, 0.1, 12)[0] for values in rng.integers(0, 2, (3000, 12)) * 2.0 - 1]
    assert sum(verdict != "undecided" for verdict in verdicts) / 3000 < 0.065


def test_a_spread_from_rounding_is_none():
    values = [0.9 - 0.88, 0.8 - 0.78, 0.7 - 0.68] * 2
    assert len(set(values)) > 1
    assert str(one(values)) == "+0.02 ± 0" and one(values, margin=0.03).verdict == "equal"
    assert one(values[:3]).low == -math.inf


def test_what_is_no_number_or_does_not_fit_is_refused_in_a_sentence():
    for bad in (math.nan, math.inf):
        with pytest.raises(SepNormError, match=r"^a difference of the arm 'arm' is (nan|inf): leave out seeds"):
            one([0.1, bad, 0.3])
    with pytest.raises(SepNormError, match="no seed in common"):
        one([])
    with pytest.raises(SepNormError, match="has 4 seeds, but most is 3: "):
        one([1.0, 2.0, 3.0, 4.0], most=3)
    with pytest.raises(SepNormError, match="most is a whole number, at least 3, found 2"):
        one([1.0, 2.0], most=2)
    with pytest.raises(SepNormError, match="margin is a finite number of at least 0, found -1"):
        one([1.0, 2.0], margin=-1)
    for confidence in (0.4, 1.0, 95):
        with pytest.raises(SepNormError, match="confidence is a number from"):
            one([1.0, 2.0], confidence=confidence)
    with pytest.raises(SepNormError, match=r"confidence 0.999 is too high for 20 arms"):
        decide({str(i): [1.0, 2.0] for i in range(20)}, margin=0.0, higher_is_better=True, confidence=0.999, most=9)
    assert decide({}, margin=0.0, higher_is_better=True) == {}


def test_the_margin_is_a_hundredth_of_the_baseline():
    assert default_margin([0.8, 0.9, 1.0]) == pytest.approx(0.009)
    assert default_margin([-3.0, -1.0]) == pytest.approx(0.02)
    for bad in ([], [0.5, math.nan]):
        with pytest.raises(SepNormError):
            default_margin(bad)


def test_decisions_are_written_as_precisely_as_they_are_known():
    def shown(mean, half):
        return str(Decision(mean, mean - half, mean + half, 5, ""))

    assert shown(0.01234, 0.00412) == "+0.012 ± 0.004"
    assert shown(0.01234, 0.00152) == "+0.0123 ± 0.0015"
    assert shown(-1.26, 0.4) == "-1.3 ± 0.4" and shown(-0.0001, 0.3) == "+0.0 ± 0.3"
    assert shown(1234.4, 56.7) == "+1234 ± 57"
    assert shown(0.0123, 0.0119) == "+0.0123 ± 0.0119" and shown(0.0119, 0.0123) == "+0.012 ± 0.012"
    assert str(Decision(0.012, 0.0, 0.031, 5, "better")) == "+0.012 (above 0, to +0.031)"


def test_what_is_shown_does_not_contradict_the_verdict():
    rng = np.random.default_rng(4)
    for _ in range(3000):
        values = rng.normal(rng.uniform(0, 2), 1, size=rng.integers(2, 12)) * 10 ** rng.uniform(-6, 3)
        found = one(values)
        mean, half = map(float, re.fullmatch(r"([+-][\d.]+) ± ([\d.]+)", str(found)).groups())
        assert (abs(mean) > half) == (found.verdict != "undecided"), found


def run(values: np.ndarray, margin: float, most: int) -> tuple[str, int]:
    """One arm, looked at after every seed until it is decided."""
    for n in range(2, most + 1):
        found = one(values[:n], margin=margin, most=most)
        if found.verdict != "undecided":
            return found.verdict, n
    return "undecided", most


def test_with_no_difference_few_are_called_better_or_worse_whenever_one_stops():
    rng = np.random.default_rng(5)
    verdicts = [run(values, 0.1, 12)[0] for values in rng.standard_normal((10_000, 12))]
    wrong = sum(verdict in ("better", "worse") for verdict in verdicts)
    assert 350 < wrong <= 500


def test_a_difference_of_one_standard_deviation_is_found_within_twelve_seeds():
    rng = np.random.default_rng(6)
    found = [run(values, 0.01, 12) for values in rng.standard_normal((10_000, 12)) + 1]
    assert sum(verdict == "better" for verdict, _ in found) >= 8000
    assert np.mean([seeds for _, seeds in found]) < 10


def test_equal_under_optional_stopping():
    rng = np.random.default_rng(7)
    wrong = [run(values, 1.0, 12)[0] for values in rng.standard_normal((4000, 12)) * 0.7 + 1.0]
    assert wrong.count("equal") / 4000 < 0.035  # 2.25 % and three standard errors
    right = [run(values, 1.0, 12)[0] for values in rng.standard_normal((1000, 12)) * 0.7]
    assert right.count("equal") / 1000 > 0.8


def test_several_arms_that_share_a_baseline_and_stop_when_they_are_decided():
    """Two of four arms truly differ; the rates are those of any mistake about the other two."""
    rng, wrong, count = np.random.default_rng(8), 0, 1500
    effects = np.array([0.0, 0.0, 3.0, -4.0])
    for _ in range(count):
        values = rng.standard_normal((4, 12)) - rng.standard_normal(12) + effects[:, None]
        seen: dict[int, str] = {}
        for n in range(3, 13):
            for arm, found in decide(
                dict(enumerate(values[:, :n])), margin=0.05, higher_is_better=True, most=12
            ).items():
                if found.verdict != "undecided":
                    seen.setdefault(arm, found.verdict)
        wrong += any(seen.get(arm) in ("better", "worse") for arm in (0, 1))
    assert 0.02 < wrong / count < 0.05 + 3 * math.sqrt(0.05 * 0.95 / count)


def test_undecided_ones_say_how_many_seeds_more_and_decisions_can_be_pickled():
    undecided, decided = one([0.5, 1.5, -0.4, 1.1]), one([0.5, 0.6, 0.55, 0.52])
    assert decided.more_seeds == 0 and undecided.more_seeds in range(1, 40)
    copy = pickle.loads(pickle.dumps(undecided))
    assert copy == undecided and copy.more_seeds == undecided.more_seeds
    assert one([0.1, 1.5, -1.4, 0.1]).more_seeds is None


def test_a_budget_that_has_ended_is_forecast_as_a_new_comparison():
    values = [0.5, 1.5, -0.4, 1.1]
    ended = one(values, most=4)
    assert (ended.verdict, ended.more_seeds) == ("undecided", one(values).more_seeds) and ended.more_seeds > 0
    assert one([0.1, 1.5, -1.4, 0.1], most=4).more_seeds is None  # beyond 200 seeds in all
    assert one([0.5] * 4, most=4).more_seeds == 2
