"""Rules for norms with batch statistics: how to normalise, fold and store them, as ``nn.BatchNorm1d`` does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import SepNormError
from sepnorm.layer import statistics
from sepnorm.layer.statistics import Call


class ScaleShift(nn.Module):
    """``x * weight + bias`` per channel: a batch norm with fixed statistics, as ``freeze`` leaves it."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    @property
    def components(self) -> int:
        """Number of mixture components; 0 for a single scale and shift."""
        return 0

    def forward(self, x: Tensor) -> Tensor:
        """Scales and shifts (..., channels)."""
        return torch.addcmul(self.bias, x, self.weight)

    def extra_repr(self) -> str:
        return str(self.weight.shape[-1])


class BatchRules:
    """The rules of ``nn.BatchNorm1d``. A kind with other statistics overrides these methods in a class of its own.

    Norms of all such kinds have ``running_mean``, ``running_var``, ``num_batches_tracked``, ``eps``, ``momentum``,
    ``weight`` and ``bias``. Only the rules know what else a kind keeps, and in which shape.
    """

    def normalise(self, norm: Any, x: Tensor, call: Call, samples: int) -> Tensor:
        """Normalises one part of a sequence, of rank 3, in float32 at least. Padding stays out of the statistics.

        ``samples`` is the number of rows; a batch norm needs at least two.
        """
        sync = call.sync and norm.training
        step = call.step if norm.training else None
        measures, enough = norm.training or norm.running_mean is None, samples > 1 or sync or step is not None
        if measures and not enough and norm.running_mean is None:
            raise SepNormError(
                "a batch norm without running statistics cannot normalise a single sample: use larger batches, or "
                "track_running_stats=True."
            )
        if _does_it_itself(norm, x, call, sync) and samples > int(measures):
            rows = x.reshape(-1, x.shape[-1])
            # a checkpointed block must repeat the same operations when it is run again: on copies of the statistics
            kept = call.track or not measures
            copies = {} if kept else {name: buffer.clone() for name, buffer in norm.named_buffers()}
            out: Tensor = norm(rows) if kept else torch.func.functional_call(norm, copies, (rows,))
            if norm.training and norm.running_var is not None:
                statistics.bound(norm.running_var)
            return out.view(x.shape)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        correction = None
        if measures and enough:
            found = statistics.differentiable_moments(wide, call.dim, call.padding, sync)
            if step is None:
                stats = statistics.batch_statistics(norm, *found, call.track)
            else:
                stats = statistics.noted_statistics(norm, *found, step)
                correction = None if step.measuring else step.correct(norm, stats)
        else:
            stats = statistics.running_statistics(norm, wide.dtype)
        weight, bias = statistics.corrected(correction, norm.weight, norm.bias)
        return statistics.normalise(stats, wide, weight, bias).to(x.dtype)

    def fold(self, norm: Any) -> ScaleShift:
        """The scale and shift that the norm applies in evaluation."""
        if norm.running_mean is None:
            raise SepNormError("a batch norm without running statistics depends on every batch and cannot be folded.")
        dtype = torch.promote_types(
            norm.running_mean.dtype if norm.weight is None else norm.weight.dtype, torch.float32
        )
        with torch.no_grad():  # the same arithmetic as evaluation, so that outputs are bit for bit the same
            affine = (None if tensor is None else tensor.to(dtype) for tensor in (norm.weight, norm.bias))
            scale, shift = statistics.scale_shift(statistics.running_statistics(norm, dtype), *affine)
        return ScaleShift(scale.clone(), shift.clone())

    def pooled(self, norm: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance per channel over all tracked rows, in double precision."""
        return norm.running_mean.double(), norm.running_var.double()

    def shares(self, norm: Any, rows: Tensor) -> Tensor | None:
        """(count, sets): the weight of each row (count, channels) in each set of statistics; None for a single set."""
        return None

    def store(self, norm: Any, count: Tensor, mean: Tensor, var: Tensor) -> None:
        """Sets the running statistics from the moments (sets, channels) of ``count`` (sets,) rows."""
        norm.running_mean.copy_(mean[0])
        norm.running_var.copy_(var[0])


def _does_it_itself(bn: Any, x: Tensor, call: Call, sync: bool) -> bool:
    """Whether calling the module itself is correct here. Its forward hooks run then."""
    return (
        type(bn).forward is nn.BatchNorm1d.forward
        and x.dtype == getattr(bn.running_mean, "dtype", x.dtype)
        and call.padding is None
        and not sync
        and (call.step is None or not bn.training)
    )
