"""Gives converted models their own name and revision for mteb, which files scores by both."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import nn

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError

_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def identify(model: Any, name: str) -> str:
    """Sets a name, and a digest of the weights as revision, where mteb reads them.

    Without this, mteb mistakes a converted model for the original and returns the original's scores from its cache.
    Call it again after training.

    Args:
        model: a model of sentence-transformers.
        name: the new name, such as ``"me/minilm-bn-ln"``.

    Returns:
        The revision, 40 hexadecimal digits.

    Raises:
        SepNormError: if the model has no card, or ``name`` is not of the form ``owner/model``.
    """
    require_module(model)
    card = getattr(model, "model_card_data", None)
    if card is None:
        raise SepNormError(f"mteb reads the card of a SentenceTransformer, and {type(model).__name__} has none.")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SepNormError(f"mteb wants a name such as 'me/my-model', found {name!r}.")
    card.model_name = name
    card.base_model_revision = digest(model)
    return str(card.base_model_revision)


def digest(model: nn.Module) -> str:
    """A hash of all weights and statistics, as 40 hexadecimal digits."""
    found = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        found.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:40]
