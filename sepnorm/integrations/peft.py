"""Adapters of peft on converted models."""

from __future__ import annotations

from typing import Any

from torch import nn

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError
from sepnorm.layer import TokenNorm


def keep_norms(model: nn.Module, config: Any) -> Any:
    """Makes a peft adapter train and save the separate norms of a converted model, with their batch statistics.

    An adapter is saved without its base model. Batch statistics of [CLS] move while the adapter is trained, so they
    belong to the adapter. peft copies the modules in ``modules_to_save``, trains the copies and saves them.
    ``disable_adapter()`` then restores the base model.

    Args:
        model: a converted model, before ``get_peft_model``. Save it first: an adapter names the folder of its base.
        config: a peft config, such as ``LoraConfig``. Changed in place.

    Returns:
        ``config``, for ``get_peft_model(model, keep_norms(model, LoraConfig(...)))``.

    Raises:
        SepNormError: if the model is not converted, or the config has no ``modules_to_save`` or adds prompt tokens.
    """
    require_module(model)
    paths = [path for path, layer in model.named_modules() if isinstance(layer, TokenNorm)]
    if not paths:
        raise SepNormError(f"{type(model).__name__} has no separate norms: convert it before it gets an adapter.")
    if getattr(config, "is_prompt_learning", False):
        raise SepNormError(
            f"{type(config).__name__} puts learnt tokens in front of [CLS], and separate norms take the first token for [CLS]: use "
            "an adapter that leaves positions alone, such as LoRA."
        )
    if not hasattr(config, "modules_to_save"):
        raise SepNormError(
            f"a {type(config).__name__} keeps no further modules: use one with modules_to_save, as LoRA."
        )
    config.modules_to_save = [*(config.modules_to_save or []), *paths]
    return config
