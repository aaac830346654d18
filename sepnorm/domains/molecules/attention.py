"""Attention with a bias for every pair and head, and dropout, in the forms that are quick for many small matrices on a CPU.

Molecules have some twenty tokens and heads of ten channels, so that a step is hundreds of thousands of tiny products. Torch's
own dropout draws a number of 64 bits for every element, which is a fifth of a step; 16 of them are enough. And products
whose result is (channels, tokens) take a third of the time of those whose result is (tokens, channels).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.layer.torch_internals import softmax_backward

_RANGE = 2**16  # values of the random numbers that decide what is dropped


def attend(query_key_value: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """``query_key_value`` (batch, tokens, 3 * width), ``bias`` (batch, heads, tokens, tokens): (batch, tokens, width).

    ``dropout`` is the share of attention weights that is dropped, 0 in evaluation.
    """
    if torch.is_grad_enabled() and query_key_value.dtype == bias.dtype and bias.device.type == "cpu":
        found: Tensor = _Attention.apply(query_key_value, bias, dropout)
        return found
    batch, heads, tokens, _ = bias.shape
    parts = query_key_value.view(batch, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=bias, dropout_p=dropout)
    return mixed.transpose(1, 2).flatten(2)


class _Attention(torch.autograd.Function):
    """The same by products of (channels, tokens), with the gradient written out."""

    @staticmethod
    def forward(ctx: Any, query_key_value: Tensor, bias: Tensor, dropout: float) -> Tensor:
        heads, tokens = bias.shape[1:3]
        parts = _columns(query_key_value, 3, heads)
        query, key, value = parts
        scale = query.shape[1] ** -0.5
        scores = torch.baddbmm(bias.reshape(-1, tokens, tokens), query.transpose(1, 2), key, alpha=scale)
        weights = scores.softmax(-1)
        kept = keep_mask(weights, dropout) if dropout else None
        ctx.save_for_backward(parts, weights, kept)
        ctx.scale, ctx.share, ctx.shape = scale, 1 - dropout, bias.shape
        mixed = torch.bmm(value, (weights if kept is None else weights * kept).transpose(1, 2))
        return _rows(mixed if kept is None else mixed.div_(ctx.share), 1, heads)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        parts, weights, kept = ctx.saved_tensors
        query, key, value = parts
        (gradient,) = _columns(gradients[0], 1, ctx.shape[1])
        found = torch.empty_like(parts)
        if kept is None:
            torch.bmm(gradient, weights, out=found[2])
            by_weights = torch.bmm(gradient.transpose(1, 2), value)
        else:
            gradient = gradient / ctx.share
            torch.bmm(gradient, weights * kept, out=found[2])
            by_weights = torch.bmm(gradient.transpose(1, 2), value).mul_(kept)
        by_scores = softmax_backward(by_weights, weights)
        torch.bmm(key, by_scores.transpose(1, 2), out=found[0]).mul_(ctx.scale)
        torch.bmm(query, by_scores, out=found[1]).mul_(ctx.scale)
        return _rows(found, 3, ctx.shape[1]), by_scores.view(ctx.shape), None


def _columns(rows: Tensor, parts: int, heads: int) -> Tensor:
    """(batch, tokens, parts * width) to (parts, batch * heads, channels of a head, tokens)."""
    batch, tokens, _ = rows.shape
    columns = rows.view(batch, tokens, parts, -1).permute(2, 0, 3, 1)
    return columns.reshape(parts, batch * heads, -1, tokens)


def _rows(columns: Tensor, parts: int, heads: int) -> Tensor:
    """The way back from ``_columns``."""
    tokens = columns.shape[-1]
    batch = columns.numel() // (parts * heads * columns.shape[-2] * tokens)
    return columns.view(parts, batch, -1, tokens).permute(1, 3, 0, 2).reshape(batch, tokens, -1)


def keep_mask(like: Tensor, dropout: float) -> Tensor:
    """1 where an element of ``like`` is kept, 0 where it is dropped, in its shape and dtype; from the global generator."""
    count = like.numel()
    numbers = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    found = torch.empty_like(like, memory_format=torch.contiguous_format)
    torch.ge(numbers.view(torch.int16)[:count].view(like.shape), round(dropout * _RANGE) - _RANGE // 2, out=found)
    return found


class Dropout(nn.Dropout):
    """``nn.Dropout`` with cheaper random numbers on a CPU; the share is that asked for up to 1 in 65,536."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p or x.device.type != "cpu":
            return super().forward(x)
        return x * keep_mask(x, self.p).div_(1 - self.p)
