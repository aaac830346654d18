"""Choice of samples: seeded random generators, and evenly spaced indices."""

from __future__ import annotations

import torch
from torch import Tensor


def seeded(seed: int, number: int, stream: int) -> torch.Generator:
    """A generator that depends only on the seed, the number of the step or epoch, and ``stream``.

    Different values of ``stream`` give independent generators for different uses, such as order and masks.
    """
    return torch.Generator().manual_seed((seed * 1_000_003 + number * 7_919 + stream) % (2**63))


def evenly(count: int, most: int) -> Tensor:
    """At most ``most`` indices below ``count``, evenly spaced, since data may be sorted by class."""
    most = min(count, most)
    return torch.arange(most) * count // most
