"""Masked language modelling, optionally beside SimCSE's loss: the prediction head, and masks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.errors import SepNormError, one_line
from sepnorm.surgery.opening.models import open_for_masked_words

_HEADS = ("cls", "lm_head", "predictions")  # names of the head in transformers' models
# share of tokens to predict; of these, share shown as [MASK] and as random words (BERT)
_SHARE, _AS_MASK, _AS_RANDOM = 0.15, 0.8, 0.1


class Predictor(nn.Module):
    """Prediction head: hidden states (count, dim) to logits (count, words).

    The last layer uses the weight of the word embeddings, which is registered there only, since a checkpoint stores it
    once.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        name = next((name for name in _HEADS if hasattr(model, name)), None)
        decoder = model.get_output_embeddings()
        if name is None or not isinstance(decoder, nn.Linear):
            raise SepNormError(
                f"{type(model).__name__} has no head for masked words that is known here: masked_weight needs a model such as "
                "BERT or RoBERTa."
            )
        self.head = getattr(model, name)
        embeddings = model.get_input_embeddings()
        for module in self.head.modules():
            for key, child in list(module.named_children()):
                if child is decoder:
                    delattr(module, key)
                    setattr(module, key, _Tied(embeddings, decoder.bias, self.head))

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden)
        return logits


class _Tied(nn.Module):
    def __init__(self, embeddings: nn.Module, bias: nn.Parameter, head: nn.Module) -> None:
        super().__init__()
        if not any(bias is known for known in head.parameters()):
            self.bias = bias
        self._shared: list[Any] = [embeddings, bias]  # in a list, so that nothing is registered twice

    def forward(self, hidden: Tensor) -> Tensor:
        embeddings, bias = self._shared
        return F.linear(hidden, embeddings.weight, bias)


def pretrained_predictor(target: str, name: str, tokenizer: Any) -> tuple[Any, Predictor]:
    """Encoder and head of a pretrained model. One without weights for the head is refused."""
    try:
        model, missing = open_for_masked_words(target)
    except (ValueError, OSError) as error:
        raise SepNormError(
            f"{name} cannot be opened for masked words, which masked_weight asks for: {one_line(error)}."
        ) from error
    if missing:
        raise SepNormError(
            f"{name} comes without weights for predicting masked words ({missing[0]} is missing): leave masked_weight at 0, or "
            "name a model that was pretrained so, such as BERT."
        )
    if tokenizer.mask_token_id is None:
        raise SepNormError(f"{name} has no token for what is masked: leave masked_weight at 0.")
    return model.base_model, Predictor(model)


def scratch_predictor(settings: Any, wanted: bool) -> tuple[Any, Predictor | None]:
    """A new BERT, and its head if ``wanted``."""
    import transformers

    if not wanted:
        return transformers.BertModel(settings, add_pooling_layer=False), None
    model = transformers.BertForMaskedLM(settings)
    return model.base_model, Predictor(model)


def mask_tokens(ids: Tensor, tokenizer: Any, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Masks tokens (sentences, tokens); returns them with the targets, which are -100 where nothing is masked.

    ``draws`` (3, sentences, tokens) are random numbers from 0 to 1.
    """
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    chosen = (draws[0] < _SHARE) & ~special
    kind, words = draws[1], (draws[2] * len(tokenizer)).long()
    shown = torch.where(chosen & (kind < _AS_MASK), tokenizer.mask_token_id, ids)
    shown = torch.where(chosen & (kind >= 1 - _AS_RANDOM), words, shown)
    return shown, torch.where(chosen, ids, -100)
