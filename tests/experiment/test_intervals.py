from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sepnorm.experiment.intervals import Difference, Interval, difference, interval


def test_interval_equals_that_of_scipy():
    values = [0.3, 0.5, 0.45, 0.2]
    found = interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert math.isnan(interval([1.0]).half) and str(interval([1.0])) == "1.000"


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    found = [interval(rng.normal(size=4).tolist()) for _ in range(2000)]
    assert 0.935 < np.mean([abs(i.mean) < i.half for i in found]) < 0.965


def test_pairing_removes_what_a_seed_adds_to_both():
    noise = {seed: 10.0 * seed for seed in range(4)}
    baseline = dict(noise)
    better = {seed: value + 1 + 0.01 * seed for seed, value in noise.items()}
    found = difference(better, baseline, higher_is_better=True)
    assert found.verdict == "better" and found.mean == pytest.approx(1.015) and found.half < 0.05
    assert difference(better, baseline, higher_is_better=False).verdict == "worse"
    assert difference(baseline, better, higher_is_better=True).verdict == "worse"


def test_one_seed_or_no_common_seed_decides_nothing():
    assert difference({0: 2.0}, {0: 1.0}, True).verdict == "undecided"
    assert difference({0: 2.0}, {1: 1.0}, True) is None
    assert difference({0: 1.0, 1: -1.0, 2: 0.5}, {0: 0.0, 1: 0.0, 2: 0.0}, True).verdict == "undecided"
    assert str(difference({0: 2.0, 1: 2.5}, {0: 1.0, 1: 1.0}, True)) == "+1 ± 3"


@pytest.mark.parametrize(
    ("mean", "half", "shown"),
    [
        (0.8234, 0.0081, "0.823 ± 0.008"),
        (0.8234, 0.0015, "0.8234 ± 0.0015"),
        (0.823456, 0.000412, "0.8235 ± 0.0004"),
        (1.234e-5, 2.1e-6, "0.000012 ± 0.000002"),
        (26361.619, 580.657, "26362 ± 581"),
        (21.573, 2.481, "22 ± 2"),
        (21.573, 0.012, "21.573 ± 0.012"),
        (-2.709, 0.237, "-2.7 ± 0.2"),
        (2.017, 1.411, "2.0 ± 1.4"),
        (0.004, 0.3, "0.0 ± 0.3"),
        (0.5, 0.0, "0.500 ± 0.000"),
        (0.5, 1e-17, "0.500 ± 0.000"),
        (0.5, math.nan, "0.500"),
        (1.234e-5, math.nan, "1.23e-05"),
        (26361.619, math.nan, "2.64e+04"),
        (0.0, math.nan, "0.000"),
        (math.nan, math.nan, "nan"),
    ],
)
def test_intervals_are_written_as_precisely_as_they_are_known(mean, half, shown):
    assert str(Interval(mean, half, 5)) == shown
    assert str(Difference(mean, half, 5)) == (shown if mean < 0 else f"+{shown}")


def test_a_mean_alone_has_the_decimals_of_its_interval():
    assert Interval(-0.00749, 0.003, 5).rounded == "-0.007" and Interval(0.5, math.nan, 1).rounded == "0.500"
