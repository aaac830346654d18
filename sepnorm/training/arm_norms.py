"""The norms of a run's config, put into its encoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from sepnorm.surgery.conversion import convert
from sepnorm.training.configs import RunConfig


def give_norms(encoder: nn.Module, config: RunConfig, calibrate: Iterable[Any] | None = None) -> None:
    """Converts in place, as ``convert`` does; ``ln`` is what an encoder has."""
    if config.norm == "ln":
        return
    convert(encoder, config.norm, sites=config.sites, calibrate=calibrate, num_cls=config.num_cls)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = config.momentum
