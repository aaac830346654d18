"""Small published Graphormers for tests."""

from __future__ import annotations

import torch

from sepnorm import Graphormer
from sepnorm.domains.molecules.published.config import PublishedConfig

TINY = {"embedding_dim": 16, "ffn_embedding_dim": 24, "num_attention_heads": 2, "num_hidden_layers": 2}


def model(seed: int = 0, **changes: object) -> Graphormer:
    """A random one whose weights are not small, in evaluation mode."""
    torch.manual_seed(seed)
    found = Graphormer(PublishedConfig(**(TINY | changes))).eval()
    for value in found.parameters():
        value.data += 0.3 * torch.randn_like(value)
    return found
