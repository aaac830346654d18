"""SimCSE: two views of a sentence must find each other among all sentences of the batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.distributed import mean_over_all
from sepnorm.domains.text.config import TextConfig
from sepnorm.domains.text.masked import Predictor
from sepnorm.losses import info_nce, uniformity_loss


class SimCSE(nn.Module):
    """A transformers text encoder as ``encoder``, with the loss of a run's config (Gao et al., EMNLP 2021)."""

    def __init__(self, encoder: Any, config: TextConfig, predictor: Predictor | None = None) -> None:
        super().__init__()
        self.encoder, self.settings, self.predictor = encoder, config, predictor
        width = encoder.config.hidden_size
        torch.manual_seed(config.weights_seed)  # equal weights of the head in every arm
        linear = nn.Linear(width, width)
        nn.init.normal_(linear.weight, std=getattr(encoder.config, "initializer_range", 0.02))
        nn.init.zeros_(linear.bias)
        self.head = nn.Identity() if config.head == "none" else nn.Sequential(linear, nn.Tanh())

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, sentences: int, seed: int, targets: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The loss. All views are in one batch, so batch statistics are over all of them.

        ``input_ids`` and ``attention_mask`` are (views * sentences, tokens): the sentences; a second view of each (the
        same sentence with other dropout, or one that it entails); optionally hard negatives; and with ``targets``
        (sentences, tokens) the sentences with masked words. ``seed`` seeds dropout, so that a step depends on its batch
        only.
        """
        if self.training:
            torch.manual_seed(seed)
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        views = hidden.split(sentences)
        masked = views[-1] if targets is not None else None
        rows = self.head(hidden[: len(hidden) - (0 if masked is None else sentences), 0])
        first, second, *negatives = rows.split(sentences)
        loss = info_nce(first, second, *negatives, temperature=self.settings.temperature)
        if self.settings.uniformity_weight:
            loss = loss + self.settings.uniformity_weight * self._uniformity(views[0], attention_mask[:sentences])
        if masked is not None and targets is not None and self.predictor is not None:
            wanted = targets != -100
            logits = self.predictor(masked[wanted])
            term = mean_over_all(F.cross_entropy(logits, targets[wanted], reduction="none"), wanted.sum())
            loss = loss + self.settings.masked_weight * term
        return {"loss": loss}

    def embed(self, hidden: Tensor) -> Tensor:
        """Sentence vectors (sentences, dim) from hidden states: [CLS], passed through the head if that is kept."""
        cls = hidden[:, 0]
        return self.head(cls) if self.settings.head == "kept" else cls

    def _uniformity(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """The uniformity loss of one view, since two must stay close: on [CLS], on tokens without padding, or on both."""
        form, on = self.settings.uniformity_form, self.settings.uniformity_on
        parts = []
        if on in ("cls", "both"):
            parts.append(uniformity_loss(hidden[:, 0], form))
        if on in ("tokens", "both"):
            parts.append(uniformity_loss(hidden[:, 1:][attention_mask[:, 1:].bool()], form))
        return torch.stack(parts).sum()


def made_up_batch(config: TextConfig, count: int, vocabulary: int) -> dict[str, Any]:
    """A batch of random words for ``SimCSE``, to measure how long a step takes."""
    ids = torch.randint(vocabulary, (2 * count, config.length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "sentences": count, "seed": 0}
