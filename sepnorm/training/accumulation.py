"""Batch statistics over all micro-batches of an optimizer step, for devices that hold few samples at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from sepnorm.errors import SepNormError
from sepnorm.layer import TokenNorm
from sepnorm.layer.kinds import BATCH_NORMS
from sepnorm.layer.statistics import StepStatistics


class Accumulation:
    """Measures the batch statistics of a whole optimizer step in a first forward pass without gradients.

    Works for one batch norm only: the input of a second would depend on statistics of the first that are not known yet.
    """

    def __init__(self, model: nn.Module) -> None:
        measured = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, TokenNorm) and any(isinstance(norm, BATCH_NORMS) for norm in module.children())
        }
        if len(measured) > 1:
            some = " and ".join(list(measured)[:2])
            raise SepNormError(
                f"statistics=step works with one batch norm, and this model has {len(measured)}, such as {some}: use sites=final "
                "or statistics=batch."
            )
        self._norms = list(measured.values())

    def measure(self, run: Callable[[Any], Any], batches: Iterable[Any]) -> None:
        """Runs the forward pass ``run`` over ``batches`` and pools the statistics.

        The random state is restored afterwards, so the training pass has the same dropout.
        """
        if not self._norms:
            return
        step = StepStatistics()
        for norm in self._norms:
            norm.step = step
        device = next(norm.parameters()).device
        kind = "cuda" if device.type == "cpu" else device.type  # fork_rng needs a type even without devices
        with torch.no_grad(), torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=kind):
            for batch in batches:
                run(batch)
        step.finish()

    def end(self) -> None:
        """Returns the norms to statistics of single batches, after training."""
        for norm in self._norms:
            norm.step = None
