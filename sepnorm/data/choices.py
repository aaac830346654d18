"""Which samples are taken: random numbers by seed and number, and even steps."""

from __future__ import annotations

import torch
from torch import Tensor


def seeded(seed: int, number: int, stream: int) -> torch.Generator:
    """Random numbers for one step or epoch of one stream of them."""
    return torch.Generator().manual_seed((seed * 1_000_003 + number * 7_919 + stream) % (2**63))


def evenly(count: int, most: int) -> Tensor:
    """At most ``most`` of the numbers below ``count``, in equal steps: data may be sorted by class."""
    most = min(count, most)
    return torch.arange(most) * count // most
