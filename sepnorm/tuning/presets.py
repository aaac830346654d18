"""Published settings for tuning special tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError


@dataclass(frozen=True)
class Preset:
    """Settings of AdamW without weight decay and warm-up.

    Args:
        learning_rate: learning rate, constant during training.
        batch_size: number of samples per batch.
    """

    learning_rate: float
    batch_size: int

    def optimizer(self, model: nn.Module) -> torch.optim.AdamW:
        """Builds AdamW over the trainable parameters of a model.

        Args:
            model: a model after ``tune_special``.

        Returns:
            The optimiser, with the learning rate of this preset.

        Raises:
            SepNormError: if no parameter requires a gradient.
        """
        require_module(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
            raise SepNormError(f"nothing of {type(model).__name__} is trained: call tune_special first.")
        return torch.optim.AdamW(trained, lr=self.learning_rate, weight_decay=0.0)


#: Settings of Yang et al. by data set: named entities of CoNLL-2003, and paraphrases of MRPC.
PRESETS = {"conll": Preset(3e-3, 16), "mrpc": Preset(2.5e-4, 32)}
