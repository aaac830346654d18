"""The plain path of the layer: split, normalise, concatenate. Torch can differentiate, compile and export it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sepnorm.layer.kinds import batch_rules, wraps_batch_norm
from sepnorm.layer.statistics import Call


def plain(x: Tensor, cls_norm: nn.Module | None, token_norm: nn.Module, call: Call) -> Tensor:
    """Output of the layer for (batch, tokens, channels), or (tokens, batch, channels) with ``call.dim=0``.

    Values at padding must be finite.
    """
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
    """Applies one norm to one part of the sequence. ``samples`` is its number of rows; a batch norm needs two."""
    rules = batch_rules(norm)
    if rules is not None:
        return rules.normalise(norm, x, call, samples)
    if not wraps_batch_norm(norm):
        return norm(x)
    out: Tensor = norm(x.reshape(-1, x.shape[-1]))  # in rank 3, torch's batch norm expects channels in dimension 1
    return out.view(x.shape)
