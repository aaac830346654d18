"""Adds learnt tokens in front of the patches of a masked autoencoder's encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def give_leading_tokens(vit: Any, count: int) -> None:
    """Adds learnt tokens between [CLS] and the patches, like DINOv2's registers: ``count`` leading tokens in all."""
    cls = vit.embeddings.cls_token.detach()
    more = torch.randn(1, count - 1, cls.shape[2]) * 0.02
    vit.embeddings.cls_token = nn.Parameter(torch.cat([cls[:, :1], more], dim=1))
    vit.config.num_register_tokens = count - 1
