"""The registry of poolings by name, for commands, recipes and evaluations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from sepnorm.arguments import require_floats
from sepnorm.errors import SepNormError, require_known
from sepnorm.pooling.moments import MomentPool, check_mask, check_tokens

#: Largest size of a vector of ``moments``. A moment matrix with more entries is sketched to this size.
SKETCH = 512


def mean(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of each sample's tokens.

    Args:
        tokens: (batch, tokens, dim), floating-point.
        mask: (batch, tokens), true or 1 for tokens, false or 0 for padding. By default every token counts.

    Returns:
        (batch, dim), in float32, or float64 for float64 tokens. Zero for a sample without tokens.

    >>> mean(torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]]), torch.tensor([[1, 1, 0]]))
    tensor([[2., 3.]])
    """
    check_tokens(tokens)
    dtype = torch.float64 if tokens.dtype == torch.float64 else torch.float32
    if mask is None:
        return tokens.mean(1, dtype=dtype)
    keep = check_mask(tokens, mask)
    return tokens.masked_fill(~keep, 0).sum(1, dtype=dtype) / keep.sum(1).clamp(min=1)


def cls_mean(cls: Tensor | None, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """[CLS] and the mean of tokens, concatenated.

    Args:
        cls: [CLS] vectors (batch, dim). Required: None raises.
        tokens: (batch, tokens, dim), without [CLS].
        mask: (batch, tokens), true or 1 for tokens, false or 0 for padding. By default every token counts.

    Returns:
        (batch, 2 dim), [CLS] first, in float32, or float64 for float64 tokens.

    Raises:
        SepNormError: if ``cls`` is None or does not fit ``tokens``.
    """
    front, behind = _cls(cls, tokens, mask), mean(tokens, mask)
    if front.shape != behind.shape:
        raise SepNormError(f"cls must be {tuple(behind.shape)} to match the tokens, found {tuple(front.shape)}.")
    return torch.cat([front.to(behind), behind], dim=1)


def _cls(cls: Tensor | None, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """The [CLS] vectors; raises for a model without [CLS]."""
    if cls is None:
        raise SepNormError("there is no [CLS] to pool: use mean or moments.")
    require_floats(cls, "cls")
    return cls


@cache
def _compact(dim: int, device: torch.device) -> MomentPool:
    """The ``MomentPool`` for ``dim``, sketched where the matrix is large. Cached, so that its sketch is drawn once."""
    full = (dim + 1) * (dim + 2) // 2
    return MomentPool(dim, sketch=SKETCH if full > SKETCH else None).to(device)


def _moments(cls: Tensor | None, tokens: Tensor, mask: Tensor | None) -> Tensor:
    check_tokens(tokens)
    return _compact(tokens.shape[-1], tokens.device)(tokens, mask)


#: Poolings by name, of [CLS] (batch, dim) or None, tokens (batch, tokens, dim) and a mask (batch, tokens) or None.
POOLINGS: dict[str, Callable[[Tensor | None, Tensor, Tensor | None], Tensor]] = {
    "cls": _cls,
    "mean": lambda cls, tokens, mask: mean(tokens, mask),
    "cls+mean": cls_mean,
    "moments": _moments,
}


def pool(name: str, cls: Tensor | None, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Pools by name: one vector per sample.

    Args:
        name: ``"cls"``, ``"mean"``, ``"cls+mean"`` or ``"moments"``. The last is ``MomentPool`` with power 0.5,
            sketched to 512 numbers where the matrix has more.
        cls: [CLS] vectors (batch, dim), or None for a model without [CLS].
        tokens: (batch, tokens, dim), without [CLS].
        mask: (batch, tokens), true or 1 for tokens, false or 0 for padding. By default every token counts.

    Returns:
        (batch, size), where size is dim, 2 dim or the size of the moments.

    Raises:
        SepNormError: if there is no such pooling, or it needs [CLS] and ``cls`` is None.

    >>> pool("cls+mean", torch.zeros(2, 8), torch.randn(2, 5, 8)).shape
    torch.Size([2, 16])
    """
    return POOLINGS[require_known("pooling", name, POOLINGS)](cls, tokens, mask)
