"""Puts the norms of a run's config into its encoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from sepnorm.layer.kinds import BATCH_NORMS
from sepnorm.surgery.conversion import convert
from sepnorm.training.configs import RunConfig


def give_norms(encoder: nn.Module, config: RunConfig, calibrate: Iterable[Any] | None = None) -> None:
    """Converts ``encoder`` in place, as ``sepnorm.convert`` does. ``ln`` changes nothing."""
    if config.norm == "ln":
        return
    components = config.components if "mix" in config.norm.split("+") else None
    convert(
        encoder,
        config.norm,
        sites=config.sites,
        calibrate=calibrate,
        num_cls=config.num_cls,
        components=components,
    )
    for module in encoder.modules():
        if isinstance(module, BATCH_NORMS):
            module.momentum = config.momentum  # type: ignore[assignment]
