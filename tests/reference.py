"""The layer written out in plain torch: what every path is compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def normalise_rows(norm: nn.Module, rows: Tensor, keep: Tensor, training: bool) -> Tensor:
    """One norm over (batch, tokens, channels); ``keep`` (batch, tokens) marks what counts for batch statistics."""
    if isinstance(norm, nn.BatchNorm1d):
        flat, counted = rows.reshape(-1, rows.shape[-1]), rows[keep]
        if training:
            mean = counted.mean(0)
            var = (counted - mean).square().mean(0)
        else:
            mean, var = norm.running_mean, norm.running_var
        out = ((flat - mean) / torch.sqrt(var + norm.eps)).view(rows.shape)
    elif isinstance(norm, nn.RMSNorm):
        out = rows / torch.sqrt(rows.square().mean(-1, keepdim=True) + norm.eps)
        return out * norm.weight
    else:
        mean = rows.mean(-1, keepdim=True)
        out = (rows - mean) / torch.sqrt((rows - mean).square().mean(-1, keepdim=True) + norm.eps)
    if norm.weight is None:
        return out
    return out * norm.weight + norm.bias


def reference(layer: nn.Module, x: Tensor, padding: Tensor | None = None) -> Tensor:
    """The output of a ``SepNorm`` or ``SharedNorm`` by split, normalise and concatenate."""
    n = layer.num_cls
    x = x if layer.token_dim == 1 else x.transpose(0, 1)
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if padding is None else ~padding
    real = keep.clone()
    real[:, :n] = True
    real |= not layer.training
    x = torch.where(real.unsqueeze(-1), x, 0.0)  # what lies in padding is nobody's concern
    if hasattr(layer, "norm"):
        out = normalise_rows(layer.norm, x, keep, layer.training)
    else:
        whole = torch.ones_like(keep)
        parts = [normalise_rows(layer.cls_norm, x[:, :n], whole[:, :n], layer.training)]
        parts.append(normalise_rows(layer.token_norm, x[:, n:], keep[:, n:], layer.training))
        out = torch.cat(parts, 1)
    return out if layer.token_dim == 1 else out.transpose(0, 1)


def reference_running(norm: nn.BatchNorm1d, counted: Tensor, momentum: float = 0.1) -> tuple[Tensor, Tensor]:
    """Running mean and variance after one step with these rows (count, channels), from the values before."""
    mean = (1 - momentum) * norm.running_mean + momentum * counted.mean(0)
    return mean, (1 - momentum) * norm.running_var + momentum * counted.var(0, unbiased=True)


def randomise(layer: nn.Module, seed: int = 0) -> nn.Module:
    """Weights and statistics that are nobody's default."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
        for name, b in layer.named_buffers():
            if b.is_floating_point():
                b.copy_(torch.rand(b.shape, generator=generator, dtype=torch.float64) + (0.5 if "var" in name else 0.0))
    return layer
