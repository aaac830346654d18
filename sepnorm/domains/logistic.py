"""Logistic regression on frozen features, for all penalties and scalings at once, in passes over chunks of rows.

The objective is that of scikit-learn's ``LogisticRegression``: the sum of losses plus ``|weights|^2 / (2 C)`` for
scaled features, without penalty on the bias. Arithmetic is in float64 for float64 features and in float32 for others;
sums over chunks are in float64. L-BFGS minimises it, first along the principal axes of the features. With weak
penalties each class has its own curvature; so later stages use coordinates that fit the curvature of each class at the
current point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.domains.curvature import Axes, Blocks, centred
from sepnorm.domains.lbfgs import Evaluate, minimise
from sepnorm.domains.linear_heads import Heads, Rows, few_threads
from sepnorm.errors import SepNormError

#: A regression ends when about this share of its objective remains to gain, or after this many steps.
TOLERANCE, MOST_STEPS = 1e-9, 1000
# least number of steps along the axes; each later stage, with its curvature measured again, has twice as many
_FIRST = 15
# bytes for the curvature of each class: of several heads together, of one head
_BLOCK_BYTES, _MOST_BYTES = 2**30, 2**32
# rows on which curvature is measured: at least, for a dimension, for a class
_LOOKED_AT, _A_DIMENSION, _A_CLASS = 2**14, 16, 32

#: Logits (some, heads, outputs), slice of samples and heads, to losses (heads,) and gradients (some, heads, outputs).
_Loss = Callable[[Tensor, slice, Tensor], tuple[Tensor, Tensor]]


def fit_classes(
    rows: Rows,
    labels: Tensor,
    scales: Tensor,
    strengths: Sequence[float],
    kept: Tensor | None = None,
    start: Heads | None = None,
    most: int = MOST_STEPS,
    tolerance: float = TOLERANCE,
) -> Heads:
    """Fits multinomial logistic regressions, one for each row of ``scales`` (heads, dim).

    ``strengths`` (heads,) are their C. ``labels`` (count,) are class indices from 0, each class present, for the rows
    in ``kept`` (ascending indices, None for all). With two classes the regression has one output, as in scikit-learn,
    returned as minus and plus half of it. ``start`` are heads to begin from, for example those of almost the same rows.
    """
    counts = labels.bincount()
    if len(counts) < 2 or not bool((counts > 0).all()):
        raise SepNormError(
            f"a probe needs two or more classes with a training sample each, found {int((counts > 0).sum())} of {len(counts)}."
        )
    if len(counts) == 2:
        if start is not None:
            start = Heads(start.mean, 2 * start.weight[..., 1:], 2 * start.bias[..., 1:], start.objective, start.steps)
        found = fit_binary(rows, labels[:, None].double(), scales, strengths, kept, start, most, tolerance)
        halves = torch.tensor([-0.5, 0.5], dtype=torch.float64, device=found.weight.device)
        return Heads(rows.mean, found.weight * halves, found.bias * halves, found.objective, found.steps)
    shares = (counts.double() / len(labels)).expand(len(strengths), -1)
    labels = labels.to(rows.device)

    def loss(logits: Tensor, part: slice, which: Tensor) -> tuple[Tensor, Tensor]:
        own = labels[part, None, None].expand(-1, len(which), 1)
        logits = torch.log_softmax(logits, dim=2)
        values = -logits.gather(2, own)[..., 0].sum(0, dtype=torch.float64)
        return values, logits.exp_().scatter_add_(2, own, logits.new_full((1, 1, 1), -1.0).expand(own.shape))

    problem = _Regressions(rows, loss, scales, strengths, kept, shares * (1 - shares))
    return problem.solve(shares.log(), start, most, tolerance)


def fit_binary(
    rows: Rows,
    targets: Tensor,
    scales: Tensor,
    strengths: Sequence[float],
    kept: Tensor | None = None,
    start: Heads | None = None,
    most: int = MOST_STEPS,
    tolerance: float = TOLERANCE,
) -> Heads:
    """Like ``fit_classes``, for every column of ``targets`` (count, outputs): 0, 1, or NaN for unknown."""
    known = targets.isfinite()
    shares = targets.nan_to_num().sum(0).double() / known.sum(0).clamp(min=1)
    if not bool(((shares > 0) & (shares < 1)).all()):
        raise SepNormError("a probe needs samples of both classes, and a target has one among those for training.")
    heads, outputs = len(strengths), targets.shape[1]
    column = torch.arange(outputs).repeat(heads).to(rows.device)  # each output of a head is a separate problem
    scales, strengths = scales.repeat_interleave(outputs, 0), [c for c in strengths for _ in range(outputs)]
    weight = (known.double().mean(0) * shares * (1 - shares)).repeat(heads)[:, None]
    values, known = targets.nan_to_num().to(rows.device, rows.dtype), known.to(rows.device)

    def loss(logits: Tensor, part: slice, which: Tensor) -> tuple[Tensor, Tensor]:
        own, there = values[part][:, column[which], None], known[part][:, column[which], None]
        losses = (F.softplus(logits) - own * logits).mul_(there)
        return losses[..., 0].sum(0, dtype=torch.float64), (logits.sigmoid() - own).mul_(there)

    if start is not None:
        flat = start.weight.transpose(1, 2).reshape(heads * outputs, rows.dim, 1)
        start = Heads(start.mean, flat, start.bias.reshape(-1, 1), start.objective, start.steps)
    problem = _Regressions(rows, loss, scales, strengths, kept, weight)
    found = problem.solve(shares.logit().repeat(heads)[:, None], start, most, tolerance)
    return Heads(
        rows.mean,
        found.weight.view(heads, outputs, rows.dim).transpose(1, 2),
        found.bias.view(heads, outputs),
        found.objective.view(heads, outputs).sum(1),
        found.steps.view(heads, outputs).amax(1),
    )


class _Regressions:
    """The objectives as functions of weights for scaled features, with the bias as last row: (heads, dim + 1, outputs).

    ``weight`` (heads, outputs) is the mean of p (1 - p) at the start.
    """

    def __init__(
        self,
        rows: Rows,
        loss: _Loss,
        scales: Tensor,
        strengths: Sequence[float],
        kept: Tensor | None,
        weight: Tensor,
    ) -> None:
        self.rows, self.loss, self.kept = rows, loss, kept
        self.count = rows.count if kept is None else len(kept)
        self.scales = scales.to(rows.device)
        self.penalties = 1 / torch.tensor(strengths, dtype=torch.float64, device=rows.device)
        self.weight = weight.to(rows.device)

    def solve(self, bias: Tensor, start: Heads | None, most: int, tolerance: float) -> Heads:
        """Minimises from weights of 0 and ``bias`` (heads, outputs), or from ``start``."""
        heads, outputs = bias.shape
        here = torch.zeros(heads, self.rows.dim + 1, outputs, dtype=torch.float64, device=self.rows.device)
        here[:, -1] = bias
        if start is not None:
            here[:, :-1] = torch.where(self.scales > 0, 1 / self.scales, 0.0)[..., None] * start.weight
            here[:, -1] = start.bias + torch.einsum("d,hdo->ho", self.rows.mean - start.mean, start.weight)
        here = centred(here).to(self.rows.dtype)
        values, steps = torch.zeros_like(self.penalties), torch.zeros_like(self.penalties, dtype=torch.long)
        room = outputs * (self.rows.dim + 1) ** 2 * self.rows.dtype.itemsize
        together = max(1, _BLOCK_BYTES // room) if room <= _MOST_BYTES else 0
        stage = max(_FIRST, Blocks.passes(self.count, self.rows.dim))  # never spend more on the curvature than on steps
        left, by_axes = torch.arange(heads, device=self.rows.device), start is None or not together
        with few_threads(4 * self.count * self.rows.dim * heads * outputs):
            while len(left):
                unfinished = []
                for group in left.split(heads if by_axes else together):
                    ways = self._axes(group) if by_axes else self._blocks(here[group], group)
                    begin = torch.zeros(len(group), here[0].numel(), dtype=here.dtype, device=here.device)
                    allowed = min(stage, most - int(steps[group].max()))
                    evaluate = self._function(here[group], ways, group)
                    found = minimise(evaluate, begin, tolerance=tolerance, most=allowed)
                    every = torch.arange(len(group), device=here.device)
                    here[group] += ways.weights(found.points.view_as(here[group]), every)
                    values[group], steps[group] = found.values, steps[group] + found.steps
                    unfinished.append(group[~found.converged & (steps[group] < most)])
                left, stage, by_axes = torch.cat(unfinished), 2 * stage, not together
        weight = here[:, :-1].double() * self.scales[..., None]
        return Heads(self.rows.mean, weight, here[:, -1].double(), values, steps)

    def _axes(self, group: Tensor) -> Axes:
        products = self.rows.products * (self.count / self.rows.count)
        weight, penalties = self.weight[group], self.penalties[group]
        return Axes(products, self.scales[group], weight, penalties, self.count, self.rows.dtype)

    def _blocks(self, here: Tensor, group: Tensor) -> Blocks:
        """Coordinates by the curvature of each class at ``here`` (heads, dim + 1, outputs), measured on some rows."""
        outputs = here.shape[2]
        every = -(-self.count // max(_LOOKED_AT, _A_DIMENSION * self.rows.dim, _A_CLASS * outputs))
        numbers = torch.arange(self.rows.count) if self.kept is None else self.kept
        parts = [(part, where) for part, where in self.rows.chunks(numbers[::every], outputs)]
        samples = torch.cat([part for part, _ in parts])
        found = Blocks(len(group), outputs, samples, self.rows.products * (len(samples) / self.rows.count))
        for head in range(len(group)):
            own, weights = group[head : head + 1], []
            for part, where in parts:
                chosen = slice(where.start * every, (where.stop - 1) * every + 1, every)
                _, errors = self.loss(self._logits(part, here[head : head + 1], own), chosen, own)
                errors = errors[:, 0].abs()  # 1 - p for the sample's own class, p for others
                weights.append(every * errors * (1 - errors))
            found.measure(head, self.scales[own[0]], torch.cat(weights), self.penalties[own[0]])
        return found

    def _function(self, origin: Tensor, ways: Axes | Blocks, group: Tensor) -> Evaluate:
        """The objectives in coordinates with their origin at ``origin`` (heads, dim + 1, outputs)."""

        def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
            weights = origin[which] + ways.weights(points.view(-1, *origin.shape[1:]), which)
            value, slopes = self._evaluate(weights, group[which])
            return value, ways.slopes(slopes, which).flatten(1)

        return evaluate

    def _logits(self, part: Tensor, weights: Tensor, which: Tensor) -> Tensor:
        heads, rows, outputs = weights.shape
        scaled = weights[:, :-1] * self.scales[which, :, None].to(weights)
        flat = scaled.permute(1, 0, 2).reshape(rows - 1, -1)
        return torch.addmm(weights[:, -1].flatten(), part, flat).view(-1, heads, outputs)

    def _evaluate(self, weights: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Values (heads,) and gradients (heads, dim + 1, outputs) of the objectives ``which``."""
        heads, outputs = len(which), weights.shape[2]
        penalties = self.penalties[which]
        value = 0.5 * penalties * weights[:, :-1].square().sum((1, 2), dtype=torch.float64)
        slopes = torch.zeros(self.rows.dim + 1, heads * outputs, dtype=torch.float64, device=weights.device)
        for part, where in self.rows.chunks(self.kept, heads * outputs):
            losses, errors = self.loss(self._logits(part, weights, which), where, which)
            value += losses
            slopes[:-1] += part.T @ errors.view(-1, heads * outputs)
            slopes[-1] += errors.sum(0).flatten()
        found = slopes.view(-1, heads, outputs).permute(1, 0, 2).to(weights.dtype)
        found[:, :-1] *= self.scales[which, :, None].to(weights)
        found[:, :-1] += penalties[:, None, None].to(weights) * weights[:, :-1]
        return value, found
