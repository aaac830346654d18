"""Fits a diagonal Gaussian mixture to the rows of a batch, over all processes: k-means++ start, EM, moments."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from sepnorm.distributed import AllReduce

_NEVER = -1e30  # log of a share of zero; finite, so that it can be saved and exported


class Components(NamedTuple):
    """Components of a mixture: shares (K,), means and biased variances (K, channels)."""

    prior: Tensor
    mean: Tensor
    var: Tensor

    def to(self, dtype: torch.dtype) -> Components:
        return Components(*(part.to(dtype) for part in self))


class Density(NamedTuple):
    """``log(prior_k N(x; mean_k, var_k + eps))`` up to a constant: coefficients of x² and x, and an offset."""

    quadratic: Tensor
    linear: Tensor
    offset: Tensor

    @classmethod
    def of(cls, components: Components, eps: float) -> Density:
        prior, mean, var = components
        precision = 1.0 / (var + eps)
        log_prior = torch.where(prior > 0, prior.log(), _NEVER)
        offset = log_prior - 0.5 * (mean.square() * precision - precision.log()).sum(1)
        return cls(-0.5 * precision, mean * precision, offset)

    def shares(self, x: Tensor, squares: Tensor) -> Tensor:
        """Responsibilities (count, K): posterior probabilities of the components for rows (count, channels)."""
        logits = torch.addmm(torch.addmm(self.offset, squares, self.quadratic.t()), x, self.linear.t())
        return logits.softmax(-1)


class Rows:
    """The rows (count, channels) of a batch that a mixture is fitted to.

    In double precision: variances are computed as differences of second moments, so that all work is matrix products.

    Args:
        x: all rows. Rows that do not count must be finite.
        keep: (count,), False for rows that do not count, such as padding.
        sync: whether the rows of all processes count.
    """

    def __init__(self, x: Tensor, keep: Tensor | None, sync: bool) -> None:
        self.x = x.to(torch.float32 if x.device.type == "mps" else torch.float64)  # mps has no float64
        self.squares = self.x.square()
        self.keep = None if keep is None else keep.to(self.x.dtype).unsqueeze(1)
        self.sync = sync

    def count(self) -> int:
        """Number of rows that count, over all processes."""
        if self.keep is None and not self.sync:
            return self.x.shape[0]
        kept = self.x.new_tensor(float(self.x.shape[0])) if self.keep is None else self.keep.sum()
        return int(self._total(kept))

    def shares(self, components: Components, eps: float) -> Tensor:
        """Responsibilities (count, K); zeros for rows that do not count."""
        return self._kept(Density.of(components, eps).shares(self.x, self.squares))

    def measure(self, shares: Tensor) -> tuple[Tensor, Components]:
        """Mass of each component, and the moments of its rows. Differentiable in the rows."""
        parts = [shares.sum(0), shares.t() @ self.x, shares.t() @ self.squares]
        if self.sync:
            packed: Tensor = AllReduce.apply(torch.cat([part.reshape(-1) for part in parts]))
            split = packed.split([part.numel() for part in parts])
            parts = [new.view(part.shape) for new, part in zip(split, parts, strict=True)]
        count = parts[0].detach()
        divisor = torch.where(count > 0, count, 1.0).unsqueeze(1)
        mean = parts[1] / divisor
        return count, Components(count / count.sum(), mean, (parts[2] / divisor - mean.square()).clamp(min=0))

    def fit(self, start: Components, steps: int, eps: float) -> Tensor:
        """Responsibilities after ``steps`` steps of EM. A component with fewer than two rows gets none."""
        for _ in range(steps):
            start = self._next(*self.measure(self.shares(start, eps)))
        shares = self.shares(start, eps)
        count = self._total(shares.sum(0))
        return self.shares(start._replace(prior=torch.where(count < 2, 0.0, start.prior)), eps)

    def _next(self, count: Tensor, found: Components) -> Components:
        """Adds one virtual row of average variance to each component, so that none shrinks onto a single row."""
        prior, mean, var = found
        count = count.unsqueeze(1)
        return Components(prior, mean, (count * var + prior @ var) / (count + 1))

    def start(self, components: int, seed: int) -> Components:
        """Initial components by k-means++: means are drawn rows, each with the variance of the whole batch.

        A row is drawn with probability proportional to its squared distance from the nearest mean so far. The draws
        have their own seed: torch's random state is untouched, all ranks draw alike, and a resumed run repeats them.
        """
        draws = random.Random(seed)
        ones = self._kept(torch.ones_like(self.x[:, :1]))
        means = [self._drawn(ones[:, 0], draws.random())]
        while len(means) < components:
            means.append(self._drawn(ones[:, 0] * self._away(means), draws.random()))
        whole = self.measure(ones)[1].var
        prior = self.x.new_full((components,), 1.0 / components)
        return Components(prior, torch.stack(means), whole.expand(components, -1))

    def split(self, old: Components, dead: list[int], seed: int, eps: float) -> Components:
        """Restarts the ``dead`` components. Each splits the component nearest to a row drawn as in k-means++.

        It starts one standard deviation from that component's mean, towards the row. On the row itself it would keep
        that row alone: in many dimensions, all other rows are nearer to the mean than to any row.
        """
        draws = random.Random(seed)
        prior, mean, var = (part.clone() for part in old)
        living = [number for number in range(len(prior)) if number not in dead]
        ones = self._kept(torch.ones_like(self.x[:, :1]))
        for number in dead:
            row = self._drawn(ones[:, 0] * self._away([mean[each] for each in living]), draws.random())
            near = living[int((mean[living] - row).square().sum(1).argmin())]
            deviation = (var[near] + eps).sqrt()
            step = (row - mean[near]) / deviation
            mean[number] = mean[near] + deviation * step / step.norm().clamp(min=1)
            prior[near] = prior[number] = prior[near] / 2
            var[number] = var[near]
            living.append(number)
        return Components(prior / prior.sum(), mean, var)

    def _away(self, means: list[Tensor]) -> Tensor:
        """(count,): squared distance of each row from the nearest of ``means``."""
        return torch.stack([(self.x - mean).square_().sum(1) for mean in means]).amin(0)

    def _drawn(self, mass: Tensor, where: float) -> Tensor:
        """The row where the cumulative ``mass``, over ranks in order, passes the fraction ``where`` of the total."""
        sums = mass.cumsum(0)
        own = mass.sum()
        if not self.sync:
            return self.x[_passed(sums, where * own)]
        edges = torch.zeros(dist.get_world_size(), dtype=mass.dtype, device=mass.device)
        edges[dist.get_rank()] = own
        edges = self._total(edges).cumsum(0)
        owner = _passed(edges, where * edges[-1])
        row = torch.zeros_like(self.x[:1]).sum(0)
        if int(owner) == dist.get_rank():
            row = self.x[_passed(sums, where * edges[-1] - (edges[owner] - own))]
        return self._total(row)

    def _kept(self, shares: Tensor) -> Tensor:
        return shares if self.keep is None else shares * self.keep

    def _total(self, x: Tensor) -> Tensor:
        if self.sync:
            x = x.clone()
            dist.all_reduce(x)
        return x


def _passed(sums: Tensor, where: Tensor) -> Tensor:
    """The first index at which non-decreasing ``sums`` exceed ``where``."""
    return torch.searchsorted(sums, where.reshape(1), right=True)[0].clamp(max=len(sums) - 1)
