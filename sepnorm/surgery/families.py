"""Known model families: which put [CLS] first, which have none, and how they name it."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from sepnorm.errors import SepNormError
from sepnorm.surgery.opening.own_models import is_own

#: Text encoders of transformers whose tokeniser puts [CLS] (or <s>) first. Others need an ``example``.
TEXT_WITH_CLS = frozenset(
    "albert bert camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm esmc eurobert gte "
    "jina_embeddings_v3 megatron-bert modernbert mpnet nomic_bert rembert roberta roberta-prelayernorm roformer xlm-roberta "
    "xlm-roberta-xl xmod".split()
)
WITHOUT_CLS = {
    "t5": "T5 has no [CLS] token",
    "mt5": "mT5 has no [CLS] token",
    "umt5": "UMT5 has no [CLS] token",
    "xlnet": "XLNet puts [CLS] last, behind the other tokens",
    "siglip2_vision_model": "SigLIP 2 pools its patches by attention and has no [CLS] token",
    "videomae": "VideoMAE averages its patches and has no [CLS] token",
    "vjepa2": "V-JEPA 2 pools its patches by attention and has no [CLS] token",
}
#: Names of the parameter that a learnt [CLS] starts from. Registers have other names.
CLS_PARAMETERS = frozenset(("cls_token", "class_embedding"))


def is_transformers(module: nn.Module) -> bool:
    """Whether the module is a model of transformers."""
    return any(cls.__name__ == "PreTrainedModel" for cls in type(module).__mro__)


def is_timm(module: nn.Module) -> bool:
    """Whether the module is a model of timm."""
    return type(module).__module__.startswith("timm.") and hasattr(module, "forward_features")


def is_sentence_transformers(module: nn.Module) -> bool:
    """Whether the module is a model of sentence-transformers, or a part of one that the library wrote."""
    return type(module).__module__.startswith("sentence_transformers.")


def is_sentence_module(module: nn.Module) -> bool:
    """Whether sentence-transformers runs an encoder in it by ``forward``, which skips hooks on the encoder."""
    return is_sentence_transformers(module) and any(map(is_transformers, module.children()))


def is_torch_encoder(module: nn.Module) -> bool:
    """Whether the module is torch's own transformer encoder or a layer of it."""
    return isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer)


def encoder_of(model: Any) -> Any:
    """The encoder of a transformers model, if it takes the same input; other models unchanged.

    ``base_model`` is not always it: in DINOv3 that is the stack of blocks, without embeddings and last norm.
    """
    base = model.base_model if is_transformers(model) else model
    return base if base is model or model.main_input_name in inspect.signature(base.forward).parameters else model


def learns_cls(module: Any) -> bool:
    """Whether [CLS] must be a learnt vector in this family, because the input has no words."""
    return is_timm(module) or (is_transformers(module) and module.main_input_name != "input_ids" and not is_own(module))


def refuse_without_cls(module: Any) -> None:
    """Raises for models known to have no [CLS] at the first position, whatever the example."""
    if not is_transformers(module):
        return
    config, name = module.config, type(module).__name__
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        raise SepNormError(
            f"{name} has two towers, one for images and one for text: convert the one with a [CLS], "
            "as in convert(model.vision_model, ...)."
        )
    kind = getattr(config, "model_type", "")
    if kind in WITHOUT_CLS:
        raise SepNormError(
            f"{name} cannot be converted: {WITHOUT_CLS[kind]}, and [CLS] is what gets a norm of its own."
        )
    if getattr(config, "is_encoder_decoder", False) and module.get_encoder() is not module:
        raise SepNormError(
            f"{name} is an encoder-decoder model: convert its encoder, as in convert(model.get_encoder(), ...)."
        )


def doubt_of(module: Any) -> str:
    """Why a text encoder needs an example; empty if its tokeniser is known to put [CLS] first."""
    kind = getattr(module.config, "model_type", "")
    if kind in TEXT_WITH_CLS:
        return ""
    return (
        f"whether {type(module).__name__} (model type {kind!r}) puts a [CLS] first is not known: pass example=, a batch of at "
        "least two different samples, for instance tokenizer([...], padding=True, return_tensors='pt')."
    )
