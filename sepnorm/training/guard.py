"""Skips optimizer steps whose loss or gradient is not finite. Weights and batch statistics stay as they were."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.distributed import total
from sepnorm.errors import SepNormError
from sepnorm.layer.kinds import BATCH_NORMS

logger = logging.getLogger("sepnorm")
PATIENCE = 3  # skipped steps in a row after which a run stops


class Guard:
    """Checks every step between its backward pass and the optimizer."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self._kept: list[tuple[Tensor, Tensor]] = []

    def begin(self, model: nn.Module) -> None:
        """Stores the batch statistics, which the forward pass is about to change."""
        norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
        self._kept = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]

    def allows(self, model: nn.Module, losses: Sequence[Tensor], step: int, what: Callable[[], str]) -> bool:
        """Whether the optimizer may step. If not, gradients are dropped and batch statistics restored.

        ``what`` returns a description of the step's samples, for the message. Raises after ``PATIENCE`` refusals in a
        row.
        """
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        norm: Any = nn.utils.get_total_norm(gradients).float()
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # with FSDP each process has a part
        values = torch.stack([*(loss.float() for loss in losses), norm])
        bad = (~values.isfinite()).any().float()
        if not float(total(bad)):  # all processes decide alike
            self.in_a_row = 0
            return True
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, old in self._kept:
                buffer.copy_(old)
        self.in_a_row += 1
        shown, samples = ", ".join(f"{float(loss):g}" for loss in losses), what()
        logger.warning(
            "step %d was refused: its loss is %s, or its gradients are not finite (%s).", step, shown, samples
        )
        if self.in_a_row >= PATIENCE:
            raise SepNormError(
                f"{PATIENCE} steps in a row, up to step {step}, had a loss or gradients that are not finite ({samples}): weights "
                "are kept as they were before; lower learning_rate, set clip=1, or look for broken values in these samples."
            )
        return False
