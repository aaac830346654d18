"""L-BFGS for many convex problems at once. Each has its own history and step length, and leaves on convergence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_HISTORY = 10  # pairs of steps and gradient changes
_DECREASE = 1e-4  # smallest share of the gain promised by the slope that a step must reach (Armijo)
_SHORTEST = 1e-4  # a step this short without gain means that the precision is exhausted
_PATIENCE = 10  # steps in a row that gain less than the tolerance mean the same

#: From points (some, size) and numbers of problems (some,) to values (some,) in float64 and gradients (some, size).
Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(eq=False)
class Minimum:
    """Points (problems, size); values, numbers of steps, and convergence, (problems,) each."""

    points: Tensor
    values: Tensor
    steps: Tensor
    converged: Tensor


class _History:
    """The latest steps and gradient changes (problems, size) of the problems that remain."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.scale: Tensor | None = None

    def add(self, step: Tensor, change: Tensor) -> None:
        product, square = (step * change).sum(1), change.square().sum(1)
        usable = product > torch.finfo(step.dtype).eps * square  # the problem is convex, so anything less is rounding
        inverse = torch.where(usable, 1 / product, 0.0)  # 0 leaves a pair out
        self.pairs = [*self.pairs[1 - _HISTORY :], (step, change, inverse)]
        latest = torch.where(usable, product / square, 1.0 if self.scale is None else self.scale)
        self.scale = latest

    def keep(self, kept: Tensor) -> None:
        self.pairs = [(step[kept], change[kept], inverse[kept]) for step, change, inverse in self.pairs]
        self.scale = None if self.scale is None else self.scale[kept]

    def direction(self, gradient: Tensor) -> Tensor:
        """The gradient (problems, size) times minus the inverse curvature that the pairs imply."""
        found, shares = -gradient, []
        for step, change, inverse in reversed(self.pairs):
            share = inverse * (step * found).sum(1)
            found = torch.addcmul(found, share[:, None], change, value=-1)
            shares.append(share)
        if self.scale is not None:
            found = found * self.scale[:, None]
        for (step, change, inverse), share in zip(self.pairs, reversed(shares), strict=True):
            found = torch.addcmul(found, (share - inverse * (change * found).sum(1))[:, None], step)
        return found


def minimise(evaluate: Evaluate, start: Tensor, *, tolerance: float, most: int) -> Minimum:
    """Minimises convex, positive functions from ``start`` (problems, size).

    The functions should be in coordinates in which their curvature is about 1. Then half the squared gradient is about
    the possible gain. A problem ends when that is below ``tolerance`` times its value, when steps gain nothing any
    more, or after ``most`` steps.
    """
    noise = 10 * torch.finfo(start.dtype).eps  # of a value; a smaller increase is none
    which = torch.arange(len(start), device=start.device)
    here = start.clone()
    value, gradient = evaluate(here, which)
    found = Minimum(here.clone(), value.clone(), torch.zeros_like(which), torch.zeros_like(which, dtype=torch.bool))
    history, idle = _History(), torch.zeros_like(which)
    for number in range(most + 1):
        found.points[which], found.values[which], found.steps[which] = here, value, number
        left = (0.5 * gradient.double().square().sum(1) > tolerance * value) & (idle < _PATIENCE)
        found.converged[which] = ~left
        if number == most or not bool(left.any()):
            break
        if not bool(left.all()):
            which, here, value, gradient, idle = which[left], here[left], value[left], gradient[left], idle[left]
            history.keep(left)
        direction = history.direction(gradient)
        slope = (gradient * direction).sum(1).double()
        length = torch.ones_like(value)
        next_value, next_gradient = value.clone(), gradient.clone()
        tried = torch.arange(len(which), device=start.device)
        while len(tried):
            steps = length[tried, None].to(here.dtype) * direction[tried]
            next_value[tried], next_gradient[tried] = evaluate(here[tried] + steps, which[tried])
            gain = next_value - value - _DECREASE * length * slope
            tried = tried[~(gain[tried] <= noise * value[tried])]
            bend = 2 * (next_value - value - length * slope)[tried]
            lowest = -slope[tried] * length[tried].square() / bend  # minimum of the parabola through the known values
            length[tried] = lowest.nan_to_num(0.0).clamp(0.1 * length[tried], 0.5 * length[tried])
            hopeless = tried[length[tried] < _SHORTEST]
            length[hopeless], idle[hopeless] = 0.0, _PATIENCE
            next_value[hopeless], next_gradient[hopeless] = value[hopeless], gradient[hopeless]
            tried = tried[length[tried] > 0]
        idle = torch.where(value - next_value > tolerance * value, 0, idle + 1)
        step = length[:, None].to(here.dtype) * direction
        history.add(step, next_gradient - gradient)
        here, value, gradient = here + step, next_value, next_gradient
    return found
