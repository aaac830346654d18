"""What a monitor measures: [CLS] and mean of tokens of a batch, and their geometry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import SepNormError
from sepnorm.geometry.cloud import Directions, Triangle
from sepnorm.geometry.measures import dead_of, entropy_rank
from sepnorm.geometry.pairs import compare_pairs, directions_of
from sepnorm.geometry.spectra import alpha_of
from sepnorm.layer.padding import masked_mean
from sepnorm.surgery import model_call


def embed_by_cls(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | None]:
    """[CLS] (samples, dim) and the mean of tokens without padding, from the model's last hidden states."""
    output = model_call.run(model, batch)
    hidden = output
    if not isinstance(output, Tensor):
        names = ("last_hidden_state", "token_embeddings")
        kept = output if isinstance(output, Mapping) else vars(output) if hasattr(output, "__dict__") else {}
        hidden = next((kept[name] for name in names if isinstance(kept.get(name), Tensor)), None)
    if not isinstance(hidden, Tensor) or hidden.dim() != 3:
        found = (
            f"a tensor of shape {tuple(hidden.shape)}" if isinstance(hidden, Tensor) else f"a {type(output).__name__}"
        )
        raise SepNormError(
            f"{type(model).__name__} returns {found}, not hidden states (batch, tokens, dim): pass embed=lambda model, batch: "
            "(cls, None), which returns [CLS]."
        )
    mask = output.get("attention_mask") if isinstance(output, Mapping) else None
    if mask is None and isinstance(batch, Mapping):
        mask = batch.get("attention_mask")
    if mask is None:
        return hidden[:, 0], hidden.mean(1)
    return hidden[:, 0], masked_mean(hidden, torch.as_tensor(mask).bool())


def figures_of(rows: Tensor) -> dict[str, float]:
    """Measures of vectors (samples, dim) by name; all are NaN if a value is not finite."""
    rows = rows.detach().float().cpu()
    names = (
        "mean_cosine",
        "uniformity",
        "effective_rank",
        "effective_rank_centered",
        "rank_share",
        "alpha_req",
        "dead",
    )
    if rows.dim() != 2 or len(rows) < 2:
        raise SepNormError(
            f"a monitor compares samples and needs at least two per batch, found vectors of shape {tuple(rows.shape)}."
        )
    if not bool(rows.isfinite().all()) or not bool((rows != 0).any(1).sum() > 1):
        return dict.fromkeys(names, math.nan)
    triangle, directions = Triangle(), Directions(rows.shape[1])
    triangle.add(rows)
    directions.add(rows)
    centred = triangle.singular_values(center=True)
    rank = entropy_rank(centred)
    values = (
        directions.mean_cosine,
        float(compare_pairs(directions_of(rows), 2, directions.count, 0).uniformity),
        entropy_rank(triangle.singular_values()),
        rank,
        rank / max(min(len(rows) - 1, rows.shape[1]), 1),
        alpha_of(centred),
        dead_of(triangle) / rows.shape[1],
    )
    return dict(zip(names, values, strict=True))
