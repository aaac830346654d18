from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from sepnorm.experiment.sequential import FIRST, critical_values

RESERVE = 0.9  # of the level is what the limits use


def crossing_rate(limits: tuple[float, ...], paths: int, seed: int) -> float:
    """How often a path of t-statistics of standard normal values leaves the limits at some look."""
    rng = np.random.default_rng(seed)
    n, found = np.arange(FIRST, len(limits)), 0
    for chunk in [100_000] * (paths // 100_000):
        x = rng.standard_normal((chunk, len(limits) - 1))
        total, squares = x.cumsum(1)[:, FIRST - 1 :], (x * x).cumsum(1)[:, FIRST - 1 :]
        t = total / np.sqrt(n) / np.sqrt((squares - total**2 / n) / (n - 1))
        found += int((np.abs(t) > limits[FIRST:]).any(1).sum())
    return found / paths


def test_a_single_look_is_students_test():
    for level in (0.05, 0.01):
        limits = critical_values(3, level)
        assert limits[:3] == (math.inf,) * 3
        assert limits[3] == pytest.approx(stats.t.isf(RESERVE * level / 2, 2), rel=1e-9)


@pytest.mark.parametrize("level", [0.05, 0.00625])
def test_two_looks_keep_the_level_by_an_integral_done_another_way(level):
    """The fourth value over the root of the mean square of the first three is Student's t; |t(4)| = c is a quadratic in it."""
    *_, c3, c4 = critical_values(4, level)

    def inside(r: float) -> float:
        """P(|t(4)| <= c4 | sum of three values of norm 1 is √3 r): t² <= c² is (S + x)² <= k (1 + x²), k = 4c² / (3 + c²)."""
        total, k = math.sqrt(3) * r, 4 * c4**2 / (3 + c4**2)
        # (1 - k) x² + 2 S x + S² - k <= 0, with k > 1: outside two roots
        roots = np.roots([1 - k, 2 * total, total**2 - k])
        if abs(roots.imag).max() > 0:
            return 1.0
        low, high = sorted(math.sqrt(3) * roots.real)
        return float(1 - stats.t.cdf(high, 3) + stats.t.cdf(low, 3))

    edge = c3 / math.sqrt(2 + c3**2)
    kink = math.sqrt((4 * c4**2 / (3 + c4**2) - 1) / 3)
    stays = sum(integrate.quad(inside, a, b, limit=400)[0] for a, b in ((0, kink), (kink, edge)))
    assert 1 - stays == pytest.approx(RESERVE * level, rel=2e-3)


@pytest.mark.parametrize(
    ("most", "level", "paths"),
    [(12, 0.05, 2_000_000), (12, 0.05 / 8, 1_000_000), (5, 0.05, 500_000), (40, 0.2, 100_000)],
)
def test_paths_leave_the_limits_as_often_as_they_should(most, level, paths):
    aim = RESERVE * level
    error = math.sqrt(aim * (1 - aim) / paths)
    assert abs(crossing_rate(critical_values(most, level), paths, seed=most) - aim) < 3.5 * error


def test_limits_are_nested_in_the_level_and_fall_with_the_number_of_seeds():
    for most in (4, 12, 100):
        wide, middle, narrow = (np.array(critical_values(most, level)) for level in (0.005, 0.05, 0.1))
        assert len(wide) == most + 1
        finite = np.isfinite(wide)
        assert (wide[finite] > middle[finite]).all() and (middle >= narrow).all()
        assert (np.diff(middle[np.isfinite(middle)]) < 0).all()
        assert middle[-1] > stats.t.isf(0.025, most - 1)


def test_twelve_seeds_suffice_for_a_difference_of_one_standard_deviation():
    limits = np.array(critical_values(12, 0.05))[FIRST:]
    rng = np.random.default_rng(1)
    x = rng.standard_normal((10_000, 12)) + 1
    t = np.stack([stats.ttest_1samp(x[:, :n], 0, axis=1).statistic for n in range(FIRST, 13)], axis=1)
    assert (np.abs(t) > limits).any(1).mean() > 0.8
