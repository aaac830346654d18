from __future__ import annotations

import pytest
import torch

from sepnorm.domains.lbfgs import minimise


def bowls(problems: int, size: int, spread: float = 30.0):
    """Quadratic functions with minima of their own and the value 1 there; ``curvature`` runs from 1 to ``spread``."""
    curvature = torch.logspace(0, torch.tensor(spread).log10(), size, dtype=torch.float64)
    turns = torch.linalg.qr(torch.randn(problems, size, size, dtype=torch.float64))[0]
    matrices = turns @ (curvature[:, None] * turns.transpose(1, 2))
    minima = torch.randn(problems, size, dtype=torch.float64)

    def evaluate(points, which):
        away = points.double() - minima[which]
        slope = (matrices[which] @ away[..., None])[..., 0]
        return 1 + 0.5 * (away * slope).sum(1), slope.to(points.dtype)

    return minima, evaluate


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-5), (torch.float32, 1e-3)])
def test_every_bowl_is_descended_to_its_bottom(dtype, near):
    minima, evaluate = bowls(5, 12)
    found = minimise(evaluate, torch.zeros(5, 12, dtype=dtype), tolerance=1e-12, most=200)
    assert torch.allclose(found.points.double(), minima, atol=near)
    assert torch.allclose(found.values, torch.ones(5, dtype=torch.float64), atol=1e-6)
    assert bool(found.converged.all()) and 5 < int(found.steps.max()) < 100


def test_together_is_as_alone():
    _, evaluate = bowls(4, 7)
    start = torch.randn(4, 7, dtype=torch.float64)
    together = minimise(evaluate, start, tolerance=1e-10, most=100)
    for number in range(4):
        alone = minimise(
            lambda points, which, number=number: evaluate(points, which + number),
            start[number : number + 1],
            tolerance=1e-10,
            most=100,
        )
        assert torch.allclose(alone.points[0], together.points[number], atol=1e-9)
        assert int(alone.steps) == int(together.steps[number])


def test_problems_that_are_done_are_not_evaluated_any_more():
    minima, evaluate = bowls(3, 20, spread=1000.0)
    seen: list[list[int]] = []

    def watched(points, which):
        seen.append(which.tolist())
        return evaluate(points, which)

    start = minima.clone()
    start[1] += 5.0
    found = minimise(watched, start, tolerance=1e-10, most=300)
    assert seen[0] == [0, 1, 2] and all(which == [1] for which in seen[1:]) and len(seen) > 5
    assert found.steps.tolist()[0] == found.steps.tolist()[2] == 0 and torch.equal(found.points[0], minima[0])


def test_steps_end_at_the_most_and_say_so():
    _, evaluate = bowls(2, 30, spread=1e4)
    found = minimise(evaluate, torch.zeros(2, 30, dtype=torch.float64), tolerance=1e-14, most=3)
    assert found.steps.tolist() == [3, 3] and not bool(found.converged.any())


def test_a_step_that_goes_too_far_is_shortened():
    """Of sqrt(1 + x^2) the first unit step from 0.1 is short, but from a curvature that is 1000 times too high it is not."""

    def evaluate(points, which):
        values = (1 + 1000 * points.double().square()).sqrt().sum(1)
        return values, 1000 * points / (1 + 1000 * points.square()).sqrt()

    found = minimise(evaluate, torch.full((1, 3), 0.7, dtype=torch.float64), tolerance=1e-12, most=100)
    assert torch.allclose(found.points, torch.zeros(1, 3, dtype=torch.float64), atol=1e-6)


def test_values_that_are_not_finite_are_stepped_back_from():
    def evaluate(points, which):
        away = points.double()
        values = 1 + away.square().sum(1) * 50
        return values.where(away.abs().amax(1) < 2, torch.nan), 100 * points

    found = minimise(evaluate, torch.full((1, 2), 1.0, dtype=torch.float64), tolerance=1e-12, most=100)
    assert torch.allclose(found.points, torch.zeros(1, 2, dtype=torch.float64), atol=1e-6)


def test_where_nothing_can_be_gained_the_search_ends():
    """A slope that is wrong: no step along it goes down."""
    found = minimise(
        lambda points, which: (points.double().sum(1) + 10, -torch.ones_like(points)),
        torch.zeros(1, 2, dtype=torch.float64),
        tolerance=1e-9,
        most=50,
    )
    assert int(found.steps) == 1 and bool(found.converged) and torch.equal(found.points, torch.zeros(1, 2).double())
