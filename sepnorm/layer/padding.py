"""Padding masks: padded tokens stay out of batch statistics and of means over tokens.

A padding mask is boolean (batch, tokens), True where padded, as torch's ``key_padding_mask``. ``keep`` is its inverse.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sepnorm.errors import SepNormError

#: Name in messages for the mask of a converted model, which the user did not pass to the norm.
OF_THE_MODEL = "the padding mask of the running model"


def check_padding(padding: Any, batch: int, tokens: int, name: str = "padding_mask") -> None:
    """Raises unless ``padding`` is a mask for (batch, tokens, channels). Messages call it ``name``."""
    if not isinstance(padding, Tensor) or padding.dtype != torch.bool:
        found = getattr(padding, "dtype", type(padding).__name__)
        raise SepNormError(
            f"{name} is boolean, True where padded, found {found}. From a transformers attention_mask: "
            "padding_mask = attention_mask == 0."
        )
    if tuple(padding.shape) != (batch, tokens):
        raise SepNormError(
            f"{name} has the shape (batch, tokens) = {(batch, tokens)} for this input, found {tuple(padding.shape)}. "
            "Give a mask with one entry for every token that reaches the norm, [CLS] among them."
        )


def padded_left(padding: Tensor) -> bool:
    """Whether a sample has padding first and tokens behind it. One that is all padding has no [CLS] to lose."""
    if padding.shape[1] == 0 or not bool(padding[:, 0].any()):
        return False
    return bool((padding[:, 0] & ~padding.all(1)).any())


def refuse_left_padding(left_padded: tuple[int, ...], batch: int, tokens: int) -> None:
    """Raises if a mask with padding on the left, of the shape ``left_padded``, is one of these tokens."""
    if left_padded == (batch, tokens):
        raise SepNormError(
            "a sample of this batch is padded on the left, and a converted norm takes the first position for [CLS]: pad on "
            'the right, as by tokenizer.padding_side = "right".'
        )


def in_layout(padding: Tensor, token_dim: int) -> Tensor:
    """The mask in the layout of the tokens: (batch, tokens, 1), or (tokens, batch, 1) with ``token_dim=0``."""
    return (padding if token_dim == 1 else padding.t()).unsqueeze(-1)


def zero_padding(x: Tensor, padding: Tensor, num_cls: int, token_dim: int, whole: bool) -> Tensor:
    """Zeroes padded tokens, except the first ``num_cls``, so that they reach neither statistics nor gradients.

    With ``whole=False`` only non-finite values are zeroed, and other outputs at padding stay as they are.
    """
    padding = torch.cat([torch.zeros_like(padding[:, :num_cls]), padding[:, num_cls:]], 1)
    where = in_layout(padding, token_dim)
    return x.masked_fill(where if whole else where & ~x.isfinite(), 0.0)


def rows_that_count(x: Tensor, part: str, num_cls: int, token_dim: int, padding: Tensor | None = None) -> Tensor:
    """The rows (count, channels) of ``"cls"``, ``"tokens"`` or ``"all"``, without padding.

    [CLS] is the first ``num_cls`` tokens. It never counts as padding, except as one of ``"all"``.
    """
    batch, tokens, width = x.shape[1 - token_dim], x.shape[token_dim], x.shape[-1]
    if part == "cls":
        return x.narrow(token_dim, 0, num_cls).reshape(-1, width)
    first = num_cls if part == "tokens" else 0
    if padding is None:
        return x.narrow(token_dim, first, tokens - first).reshape(-1, width)
    check_padding(padding, batch, tokens, OF_THE_MODEL)
    keep = ~padding
    keep[:, :first] = False
    return x.reshape(-1, width).index_select(0, in_layout(keep, token_dim).reshape(-1).nonzero().view(-1))


def masked_mean(x: Tensor, keep: Tensor) -> Tensor:
    """Mean of (batch, tokens, ...) over tokens where ``keep`` (batch, tokens) is True; zero where there is none."""
    keep = keep.to(x.device).view(*keep.shape, *[1] * (x.dim() - 2))
    return x.masked_fill(~keep, 0.0).sum(1) / keep.sum(1).clamp(min=1)
