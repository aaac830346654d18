"""The plain path of the layer: split, normalise, concatenate, by operations that torch can derive, compile and export."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import SepNormError
from sepnorm.layer import statistics
from sepnorm.layer.kinds import BATCH_NORMS, wraps_batch_norm
from sepnorm.layer.statistics import Call


def plain(x: Tensor, cls_norm: nn.Module | None, token_norm: nn.Module, call: Call) -> Tensor:
    """The layer's output for (batch, tokens, channels), or (tokens, batch, channels) with ``call.dim=0``; padding is finite."""
    length, batch = x.shape[call.dim], x.shape[1 - call.dim]
    if cls_norm is None:
        return _one(token_norm, x, call, samples=batch * length)
    cls, tokens = x.split([call.num_cls, length - call.num_cls], call.dim)
    cls = _one(cls_norm, cls, call._replace(padding=None), samples=batch)
    if length == call.num_cls:
        return cls
    if call.padding is not None:
        call = call._replace(padding=call.padding[:, call.num_cls :])
    tokens = _one(token_norm, tokens, call, samples=batch * (length - call.num_cls))
    return torch.cat([cls.to(tokens.dtype), tokens], call.dim)


def _one(norm: nn.Module, x: Tensor, call: Call, samples: int) -> Tensor:
    """One norm over a part of the sequence; ``samples`` are what a batch norm needs two of."""
    if isinstance(norm, BATCH_NORMS):
        return _batch_norm(norm, x, call, samples)
    if not wraps_batch_norm(norm):
        return norm(x)
    out: Tensor = norm(x.reshape(-1, x.shape[-1]))  # of rank 3, torch's batch norm would take tokens for channels
    return out.view(x.shape)


def _batch_norm(bn: Any, x: Tensor, call: Call, samples: int) -> Tensor:
    """Batch norm of (..., channels), in float32 at least, leaving padding out of the statistics."""
    sync = call.sync and bn.training
    measures, enough = bn.training or bn.running_mean is None, samples > 1 or sync
    if measures and not enough and bn.running_mean is None:
        raise SepNormError(
            "a batch norm without running statistics cannot normalise a single sample: use larger batches, or "
            "track_running_stats=True."
        )
    if _does_it_itself(bn, x, call, measures, sync) and samples > int(measures):
        out = bn(x.reshape(-1, x.shape[-1])).view(x.shape)
        if bn.training and bn.running_var is not None:
            statistics.bound(bn.running_var)
        return out
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if measures and enough:
        found = statistics.differentiable_moments(wide, call.dim, call.padding, sync)
        stats = statistics.batch_statistics(bn, *found, call.track)
    else:
        stats = statistics.running_statistics(bn, wide.dtype)
    return statistics.normalise(stats, wide, bn.weight, bn.bias).to(x.dtype)


def _does_it_itself(bn: Any, x: Tensor, call: Call, measures: bool, sync: bool) -> bool:
    """Whether a call of the module does what is wanted; hooks on it are called then."""
    return (
        type(bn).forward is nn.BatchNorm1d.forward
        and x.dtype == getattr(bn.running_mean, "dtype", x.dtype)
        and call.padding is None
        and not sync
        and (call.track or not measures)
    )
