"""Attention with a bias per pair and head, and dropout, optimised for many small matrices on a CPU.

Molecules have about twenty tokens and heads of ten channels, so a step is hundreds of thousands of tiny products. Three
things make them fast:

- A product with the result (channels, tokens) takes a third of the time of one with (tokens, channels). The linear
  layer before it writes channels as rows (``ColumnLinear``), so that nothing has to be transposed.
- A batch is split into parts of molecules of similar size, and each part is padded by itself. Elementwise operations
  run on all parts at once.
- Torch's dropout draws 64 random bits per element; 16 are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.layer.torch_internals import softmax_backward

_RANGE = 2**16  # number of random values that decide on dropout


class ColumnLinear(nn.Linear):
    """``nn.Linear`` that stores its output channel by channel, as ``attend`` reads it, while training on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.device.type == "cpu") or self.bias is None:
            return super().forward(x)
        found = torch.addmm(self.bias[:, None], self.weight, x.flatten(0, -2).t())
        return found.t().view(*x.shape[:-1], -1)


def attend(query_key_value: Tensor, bias: Tensor | Sequence[Tensor], dropout: float) -> Tensor:
    """Multi-head attention on a batch, or on several parts of one.

    Args:
        query_key_value: (batch, tokens, 3 * width), or (rows, 3 * width) with the rows of all parts one after another.
        bias: (batch, heads, tokens, tokens), or a list with one per part. It is read without a copy if heads are
            outermost in memory.
        dropout: share of attention weights to drop; 0 in evaluation.

    Returns:
        (batch, tokens, width) or (rows, width).
    """
    biases = (bias,) if isinstance(bias, Tensor) else tuple(bias)
    rows = query_key_value.flatten(0, -2)
    quick = torch.is_grad_enabled() and rows.dtype == biases[0].dtype and rows.device.type == "cpu"
    mixed = _Attention.apply(rows, dropout, *biases) if quick else _plain(rows, biases, dropout)
    found: Tensor = mixed.view(*query_key_value.shape[:-1], -1)
    return found


def _plain(rows: Tensor, biases: Sequence[Tensor], dropout: float) -> Tensor:
    found = []
    for some, bias in zip(rows.split([len(bias) * bias.shape[2] for bias in biases]), biases, strict=True):
        batch, heads, tokens, _ = bias.shape
        parts = some.view(batch, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=bias, dropout_p=dropout)
        found.append(mixed.transpose(1, 2).reshape(len(some), -1))
    return torch.cat(found)


class _Attention(torch.autograd.Function):
    """Attention by products of (channels, tokens), with an explicit gradient; heads are outermost.

    Each part goes through all operations before the next, so that it stays in the CPU cache.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, dropout: float, *biases: Tensor) -> Tensor:
        shapes = [bias.shape for bias in biases]
        scale = (rows.shape[1] // (3 * shapes[0][1])) ** -0.5
        numbers = _numbers(sum(shape.numel() for shape in shapes) if dropout else 0)
        found = rows.new_empty(rows.shape[1] // 3, len(rows)).t()
        saved = []
        for some, to, bias, drawn in zip(
            _columns(rows, 3, shapes), _columns(found, 1, shapes), biases, _split(numbers, shapes, dropout), strict=True
        ):
            part = some.contiguous()
            query, key, value = part.flatten(1, 2)
            scores = bias.transpose(0, 1).reshape(-1, *bias.shape[2:])
            weights = torch.baddbmm(scores, query.transpose(1, 2), key, alpha=scale).softmax(-1)
            dropped = _kept(drawn, weights, dropout).mul_(weights) if dropout else weights
            to.copy_(torch.bmm(value, dropped.transpose(1, 2)).view(to.shape))
            saved += [part, weights]
        ctx.save_for_backward(numbers, *saved)
        ctx.scale, ctx.dropout, ctx.shapes = scale, dropout, shapes
        return found.div_(1 - dropout) if dropout else found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        numbers, *saved = ctx.saved_tensors
        gradient, dropout, shapes = gradients[0] / (1 - ctx.dropout), ctx.dropout, ctx.shapes
        found = gradient.new_empty(3 * gradient.shape[1], len(gradient)).t()
        by_biases = []
        for came, to, part, weights, drawn, (batch, heads, *pair) in zip(
            _columns(gradient, 1, shapes),
            _columns(found, 3, shapes),
            saved[::2],
            saved[1::2],
            _split(numbers, shapes, dropout),
            shapes,
            strict=True,
        ):
            by_mixed = came.contiguous().flatten(0, 2)
            query, key, value = part.flatten(1, 2)
            by_weights = torch.bmm(by_mixed.transpose(1, 2), value)
            dropped = weights
            if dropout:
                kept = _kept(drawn, weights, dropout)
                by_weights.mul_(kept)
                dropped = kept.mul_(weights)
            by_scores = softmax_backward(by_weights, weights)
            by_part = torch.empty_like(part)
            by_query, by_key, by_value = by_part.flatten(1, 2)
            torch.bmm(key, by_scores.transpose(1, 2), out=by_query).mul_(ctx.scale)
            torch.bmm(query, by_scores, out=by_key).mul_(ctx.scale)
            torch.bmm(by_mixed, dropped, out=by_value)
            to.copy_(by_part)
            by_biases.append(by_scores.view(heads, batch, *pair).transpose(0, 1))
        return found, None, *by_biases


def _columns(rows: Tensor, count: int, shapes: Sequence[torch.Size]) -> Iterator[Tensor]:
    """Views of (rows, count * width), one per part: (count, heads, molecules, channels of a head, tokens)."""
    columns, start = rows.t(), 0
    for batch, heads, tokens, _ in shapes:
        some = columns.narrow(1, start, batch * tokens)
        yield some.view(count, heads, -1, batch, tokens).transpose(2, 3)
        start += batch * tokens


def _split(numbers: Tensor, shapes: Sequence[torch.Size], dropout: float) -> Iterator[Tensor]:
    """The random numbers of each part (heads * molecules, tokens, tokens); unused without dropout."""
    if not dropout:
        return (numbers for _ in shapes)
    parts = numbers.split([shape.numel() for shape in shapes])
    return (part.view(-1, *shape[2:]) for part, shape in zip(parts, shapes, strict=True))


def keep_mask(like: Tensor, dropout: float) -> Tensor:
    """A mask with shape and dtype of ``like``, 1 to keep and 0 to drop, drawn from torch's global generator."""
    return _kept(_numbers(like.numel()).view(like.shape), like, dropout)


def _numbers(count: int) -> Tensor:
    """Random 16-bit numbers of a generator that is faster than torch's and seeded by it."""
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.from_numpy(np.random.SFC64(seed).random_raw((count + 3) // 4).view(np.int16)[:count])


def _kept(numbers: Tensor, like: Tensor, dropout: float) -> Tensor:
    found = torch.empty_like(like, memory_format=torch.contiguous_format)
    return torch.ge(numbers, round(dropout * _RANGE) - _RANGE // 2, out=found)


class Dropout(nn.Dropout):
    """``nn.Dropout`` with cheaper random numbers on a CPU. The rate is exact to 1 in 65,536."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p or x.device.type != "cpu":
            return super().forward(x)
        return x * keep_mask(x, self.p).div_(1 - self.p)


class GELU(nn.GELU):
    """``nn.GELU`` without oneDNN, which keeps compiled kernels for each input shape: 400 shapes took 182 MiB.

    oneDNN takes only contiguous tensors, so a transposed input bypasses it.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(-1, -2)).transpose(-1, -2)
