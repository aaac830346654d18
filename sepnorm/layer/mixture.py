"""``MixtureNorm``: batch norm per component of a Gaussian mixture, and its rules."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.arguments import flag, number, require_floats, whole
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.layer import statistics
from sepnorm.layer.batch_rules import BatchRules, ScaleShift
from sepnorm.layer.mixture_fit import Components, Density, Rows
from sepnorm.layer.mixture_scales import MixtureScales, full_precision, piecewise, scales_of
from sepnorm.layer.statistics import Call
from sepnorm.layer.torch_internals import WideStatistics, in_backward

MOST_COMPONENTS = 1000
_FIRST_STEPS = 10  # EM steps after a k-means++ start
_STEPS = 2  # EM steps after a start from the running components, which are close
_DEAD = 0.01  # a component with less than this fraction of an equal share is restarted


class MixtureNorm(WideStatistics):
    """Mixture Normalisation: batch norm with statistics for sub-populations of the batch.

    Kalayeh and Shah, TPAMI 2019 (arXiv 1806.02892). A diagonal Gaussian mixture with shares ``p_k``, means and
    variances is fitted to the rows of the batch. With the responsibility ``t_k(x)`` of component k for x, and ``w_k(x)
    = t_k(x) / sum of t_k over the batch``,

        m_k = sum of w_k(x) x        v_k = sum of w_k(x) (x - m_k)²        p_k = mean of t_k(x)

        y = sum over k of  t_k(x) / sqrt(p_k) * (x - m_k) / sqrt(v_k + eps),    then  y * weight + bias

    The sums in ``m_k`` and ``v_k`` run over the batch. Gradients flow through x, ``m_k`` and ``v_k``, as in batch norm;
    responsibilities and shares are constants in the backward pass. With one component it is batch norm. If each row
    belongs to one component, the output has variance ``components``, not one, because of ``1 / sqrt(p_k)``.

    Training: the first batch starts from k-means++ draws and takes ten EM steps. Later batches start from the running
    components and take two, so that component k of one batch is component k of the next. Running means, variances and
    shares move by ``momentum`` and are used in evaluation. A component with fewer than two rows skips a batch. A
    component whose running share falls below 0.01 / ``components`` restarts as a part of another, with one warning. A
    batch with fewer than two rows per component is normalised by the running components.

    Shapes: (..., dim) in and out. Inside a ``SepNorm`` or ``SharedNorm`` the statistics leave padding out and are
    synchronised over processes. Under gradient checkpointing, do not call a norm twice before a backward pass.

    Args:
        dim: number of channels.
        components: number of components of the mixture, from 1 to 1,000.
        eps: added to variances before the root is taken.
        momentum: weight of a new batch in the running statistics, from 0 to 1. None averages over all batches.
        affine: whether the norm has a trainable ``weight`` and ``bias``.
        device: device of parameters and buffers. By default that of torch.
        dtype: dtype of ``weight`` and ``bias``. By default that of torch. Statistics are in float32 at least.

    >>> from sepnorm import SepNorm
    >>> norm = SepNorm(8, "batch", lambda dim: MixtureNorm(dim, 5))        # "bn+mix", with five components
    >>> norm(torch.randn(4, 10, 8)).shape
    torch.Size([4, 10, 8])
    """

    running_mean: Tensor
    running_var: Tensor
    running_prior: Tensor
    num_batches_tracked: Tensor
    _last: tuple[Components, int] | None = None  # start of the last batch's EM, to run a checkpointed block again
    _warned_of_death = False
    _warned_of_few = False

    def __init__(
        self,
        dim: int,
        components: int = 3,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = whole(dim, "dim", 1, statistics.MOST_CHANNELS)
        self.components = whole(components, "components", 1, MOST_COMPONENTS)
        self.eps = number(eps, "eps", 0)
        self.momentum = statistics.checked_momentum(momentum)
        affine = flag(affine, "affine")
        self.weight = nn.Parameter(torch.ones(self.dim, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.zeros(self.dim, device=device, dtype=dtype)) if affine else None
        wide: dict[str, Any] = {
            "device": device,
            "dtype": torch.promote_types(dtype or torch.get_default_dtype(), torch.float32),
        }
        self.register_buffer("running_mean", torch.zeros(self.components, self.dim, **wide))
        self.register_buffer("running_var", torch.ones(self.components, self.dim, **wide))
        # The first component has all the mass until a batch is fitted: a new norm then equals a new batch norm.
        prior = torch.zeros(self.components, **wide)
        prior[0] = 1.0
        self.register_buffer("running_prior", prior)
        self.register_buffer("num_batches_tracked", torch.tensor(0, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises over all rows.

        Args:
            x: (..., dim), floating-point. Every row counts.

        Returns:
            A tensor of the same shape and dtype.
        """
        require_floats(x, "the input of a MixtureNorm")
        if x.dim() == 0 or x.shape[-1] != self.dim:
            raise SepNormError(
                f"this MixtureNorm was built for {self.dim} channels in the last dimension, found the shape {tuple(x.shape)}."
            )
        return self.normalise(x.reshape(-1, x.shape[-1]), None, track=not in_backward(), sync=False).view(x.shape)

    def normalise(self, x: Tensor, keep: Tensor | None, track: bool, sync: bool) -> Tensor:
        """Normalises rows, with padding left out and over all processes if asked. ``SepNorm`` calls this.

        Args:
            x: rows (count, dim).
            keep: (count,) bool, False for rows that stay out of the statistics. None counts every row.
            track: whether the running statistics move.
            sync: whether the statistics are those of all processes.

        Returns:
            A tensor of the same shape and dtype as ``x``.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        with full_precision(x):
            out = self._by_batch(x, keep, track, sync, wide) if self.training else None
            if out is None:
                out = piecewise(x.to(wide), *self.evaluation(wide))
        return out.to(x.dtype)

    def _by_batch(self, x: Tensor, keep: Tensor | None, track: bool, sync: bool, wide: torch.dtype) -> Tensor | None:
        """The output with the statistics of the batch; None if it has too few rows."""
        rows = Rows(x, keep, sync)
        with torch.no_grad():
            if not self._is_enough(rows.count()):
                self._last = None
                return None
            joined: list[int] = []
            if track or self._last is None:
                start, joined, steps = self._start(rows)
                self._last = (start, steps)
            else:
                start, steps = self._last
            shares = rows.fit(start, steps, self.eps)
        count, found = rows.measure(shares)
        if track:
            self._track(count, found, joined)
        centre, scale, shift = (part.to(wide) for part in scales_of(found, self.weight, self.bias, self.eps))
        shares = shares.to(wide)
        return (x.to(wide) - centre) * (shares @ scale) + shares @ shift

    def _is_enough(self, count: int) -> bool:
        if count >= 2 * self.components:
            return True
        if self.components == 1:  # same as a batch norm, which does not warn here
            return False
        text = (
            f"a mixture of {self.components} components is fitted to at least {2 * self.components} rows, and a training batch "
            f"has {count}"
        )
        if self._is_new(self._living()):
            raise SepNormError(f"{text}: use larger batches, or fewer components.")
        if not self._warned_of_few:
            self._warned_of_few = True
            warnings.warn(
                f"{text}: the running components are used for such steps. Drop the last incomplete batch (drop_last=True), "
                "or use larger batches or fewer components.",
                SepNormWarning,
                stacklevel=6,
            )
        return False

    def _running(self) -> Components:
        return Components(self.running_prior, self.running_mean, self.running_var)

    def _living(self) -> list[int]:
        """Numbers of the components whose running share is large enough."""
        least = _DEAD / self.components
        return [number for number, share in enumerate(self.running_prior.tolist()) if share >= least]

    def _is_new(self, living: list[int]) -> bool:
        """Whether no batch was fitted yet, or none that was finite: a norm that is new, or calibrated as one component."""
        return not living or (len(living) == 1 and not self.num_batches_tracked)

    def _start(self, rows: Rows) -> tuple[Components, list[int], int]:
        """Start of EM, the numbers of components that are new in it, and the number of EM steps."""
        old, living = self._running().to(rows.x.dtype), self._living()
        if len(living) == self.components:
            return old, [], _STEPS if self.components > 1 else 0
        seed = int(self.num_batches_tracked)
        if self._is_new(living):
            return rows.start(self.components, seed), list(range(self.components)), _FIRST_STEPS
        dead = [number for number in range(self.components) if number not in living]
        if not self._warned_of_death:
            self._warned_of_death = True
            warnings.warn(
                f"{len(dead)} of {self.components} components of a mixture norm lost all rows and restart as parts of others "
                "(warned once). If it continues, use fewer components.",
                SepNormWarning,
                stacklevel=7,
            )
        return rows.split(old, dead, seed, self.eps), dead, _FIRST_STEPS

    def _track(self, count: Tensor, found: Components, joined: list[int]) -> None:
        """Updates the running components. New ones take the batch's values; those without rows stay as they are."""
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            rates = torch.full_like(count, statistics.tracking_factor(self))
            rates[joined] = 1.0
            self.running_prior.lerp_(found.prior.to(self.running_prior), rates.to(self.running_prior))
            self.running_prior.div_(self.running_prior.sum())
            rates = torch.where(count > 0, rates, 0.0).to(self.running_mean).unsqueeze(1)
            unbiased = found.var * (count / (count - 1).clamp(min=1)).unsqueeze(1)
            self.running_mean.lerp_(found.mean.to(self.running_mean), rates)
            self.running_var.lerp_(unbiased.to(self.running_var), rates)
            statistics.bound(self.running_var)

    def evaluation(self, dtype: torch.dtype) -> tuple[Tensor, Density, Tensor, Tensor]:
        """The constants that evaluation uses.

        Args:
            dtype: dtype of the returned tensors.

        Returns:
            A centre (dim,) to subtract, the density of the centred mixture, and scales and shifts (components, dim).
        """
        running = self._running().to(dtype)
        centre, scale, shift = scales_of(running, self.weight, self.bias, self.eps)
        return centre, Density.of(running._replace(mean=running.mean - centre), self.eps), scale, shift

    def _keeps_wide(self) -> list[nn.Module]:
        return [self]

    def extra_repr(self) -> str:
        return f"{self.dim}, components={self.components}, eps={self.eps}, momentum={self.momentum}"


class MixtureRules(BatchRules):
    """Rules for the batch statistics of ``MixtureNorm``."""

    def normalise(self, norm: Any, x: Tensor, call: Call, samples: int) -> Tensor:
        if call.step is not None and norm.training:
            raise SepNormError("a mixture is fitted to one batch at a time: statistics=step is for batch norms alone.")
        batch_first = x if call.dim == 1 else x.transpose(0, 1)  # so that k-means++ draws the same rows in both layouts
        keep = None if call.padding is None or not norm.training else ~call.padding.reshape(-1)
        out: Tensor = norm.normalise(batch_first.reshape(-1, x.shape[-1]), keep, call.track, call.sync)
        out = out.view(batch_first.shape)
        return out if call.dim == 1 else out.transpose(0, 1)

    def fold(self, norm: Any) -> ScaleShift:
        dtype = torch.promote_types(
            norm.running_mean.dtype if norm.weight is None else norm.weight.dtype, torch.float32
        )
        with torch.no_grad():
            centre, density, scale, shift = norm.evaluation(dtype)
        return MixtureScales(centre.clone(), density, scale.clone(), shift.clone())

    def pooled(self, norm: Any) -> tuple[Tensor, Tensor]:
        prior, mean, var = norm._running().to(torch.float64)
        middle = prior @ mean
        return middle, prior @ (var + (mean - middle).square())

    def shares(self, norm: Any, rows: Tensor) -> Tensor | None:
        """Responsibilities of the last batch that the norm has seen, which ``rows`` must be."""
        start, steps = norm._last or (norm._running(), 0)
        found = Rows(rows, None, sync=False)
        return found.fit(start.to(found.x.dtype), steps, norm.eps)

    def store(self, norm: Any, count: Tensor, mean: Tensor, var: Tensor) -> None:
        count = torch.where(count < 2, 0.0, count)  # fewer than two rows have no variance
        missing = norm.components - len(count)
        norm.running_prior.copy_(torch.cat([count / count.sum(), count.new_zeros(missing)]))
        found = (count > 0).nonzero().view(-1)
        norm.running_mean[found] = mean[found].to(norm.running_mean)
        norm.running_var[found] = var[found].to(norm.running_var)
