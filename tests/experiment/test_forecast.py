from __future__ import annotations

import math

import numpy as np
import pytest

from sepnorm.experiment.decisions import decide
from sepnorm.experiment.forecast import seeds_to_decide
from sepnorm.experiment.sequential import critical_values


@pytest.mark.parametrize("most", [None, 40])
def test_four_of_five_comparisons_are_decided_when_the_forecast_says(most):
    """The true difference can be anything: uniform over far more than can be undecided. A few seeds more are left out: there
    one step more than needed gives much more than 80 %."""
    rng = np.random.default_rng(3)
    decided = []
    while len(decided) < 200:
        sigma = 10 ** rng.uniform(-2, 2)
        mu = rng.uniform(-8, 8) * sigma
        values = rng.normal(mu, sigma, size=4).tolist()
        settings = dict(margin=0.3, higher_is_better=True, most=most)
        more = decide({"a": values}, **settings)["a"].more_seeds
        if (more or 0) < 4:
            continue
        for left in reversed(range(more)):
            values.append(rng.normal(mu, sigma))
            if (most or left == 0) and decide({"a": values}, **settings)["a"].verdict != "undecided":
                decided.append(True)
                break
        else:
            decided.append(False)
    assert 0.71 < np.mean(decided) < 0.91  # three standard errors about 81 %


def test_the_forecast_is_the_least_number_by_a_plain_simulation():
    """One path after another, with the differences themselves."""
    seen = np.array([0.4, 1.9, -0.3, 1.2])
    limits = [math.inf, math.inf, *([2.5] * 60)]
    found = seeds_to_decide(seen.mean(), seen.std(ddof=1), 4, limits, 0.0, sequential=False)
    rng = np.random.default_rng(1)

    def rate(more: int) -> float:
        decided = 0
        for _ in range(4000):
            sigma = math.sqrt(3 * seen.var(ddof=1) / rng.chisquare(4))
            x = np.append(seen, rng.normal(rng.normal(seen.mean(), sigma / 2), sigma, size=more))
            decided += abs(x.mean()) > 2.5 * x.std(ddof=1) / math.sqrt(len(x))
        return decided / 4000

    assert rate(found) > 0.78 and rate(found - 2) < 0.82


def test_smaller_effects_need_more_seeds_and_a_margin_can_decide_too():
    def needed(mean: float, margin: float = 0.0, deviation: float = 1.0) -> int | None:
        limits = [math.inf, math.inf, *([2.2] * 300)]
        return seeds_to_decide(mean, deviation, 8, limits, margin, sequential=False)

    assert needed(0.7) < needed(0.5) < needed(0.4)
    assert needed(0.0) is None  # nothing but chance decides
    assert needed(0.0, margin=0.4) > needed(0.0, margin=0.6) > 1
    assert needed(5.0, deviation=10.0) == needed(0.5)
    assert needed(-0.5) == needed(0.5)


def test_nothing_is_forecast_beyond_the_limits_or_from_one_seed():
    limits = critical_values(6, 0.05)
    assert seeds_to_decide(2.0, 1.0, 6, limits, 0.0, sequential=True) is None
    assert seeds_to_decide(2.0, 0.0, 1, limits, 0.0, sequential=True) is None
    assert seeds_to_decide(0.1, 1.0, 4, limits, 0.0, sequential=True) is None
    assert seeds_to_decide(5.0, 1.0, 3, limits, 0.0, sequential=True) in (1, 2)
