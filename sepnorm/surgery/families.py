"""What is known beforehand of model families: how to try one out without data, and which have no [CLS] first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sepnorm.errors import SepNormError

#: Text encoders of transformers whose tokeniser puts [CLS] (or <s>) first. Others need an ``example``.
TEXT_WITH_CLS = frozenset(
    "albert bert camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm megatron-bert modernbert "
    "mpnet nomic_bert rembert roberta roberta-prelayernorm roformer xlm-roberta xlm-roberta-xl xmod".split()
)
WITHOUT_CLS = {
    "t5": "T5 has no [CLS] token",
    "mt5": "mT5 has no [CLS] token",
    "umt5": "UMT5 has no [CLS] token",
    "xlnet": "XLNet puts [CLS] last, behind the other tokens",
}


@dataclass(eq=False)
class Trial:
    """A part of a model that can be run by itself, and a synthetic batch to run it with."""

    prefix: str  # dotted path of the part, empty for the whole model
    module: nn.Module
    inputs: Any
    samples: int = 3
    token_dim: int | None = None  # where it is known
    core: str = ""  # path of the encoder proper inside the part: what is outside is a head or a decoder
    fallback: list[str] = field(default_factory=list)  # parts to try instead, should the part not run
    doubt: str = ""  # why the part is refused if the run itself brings up no better reason


def is_transformers(module: nn.Module) -> bool:
    return any(cls.__name__ == "PreTrainedModel" for cls in type(module).__mro__)


def is_timm(module: nn.Module) -> bool:
    return type(module).__module__.startswith("timm.") and hasattr(module, "forward_features")


def is_torch_encoder(module: nn.Module) -> bool:
    return isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer)


def find_trial(model: nn.Module) -> Trial:
    """The one encoder of a known family in ``model``, with a batch for it; refuses where there is none or several."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") or outer == "" for outer in found)
        if not inside and (is_transformers(module) or is_timm(module) or is_torch_encoder(module)):
            found[path] = module
    if not found:
        raise SepNormError(
            f"{type(model).__name__} is of no family that sepnorm knows (transformers, timm, nn.TransformerEncoder): pass "
            "example=, a batch of at least two different samples, so that its [CLS] can be found by running it."
        )
    if len(found) > 1:
        raise SepNormError(
            f"{type(model).__name__} holds {len(found)} encoders ({', '.join(found)}): convert them one at a time, "
            f"as in convert(model.{next(iter(found))}, ...)."
        )
    path, module = next(iter(found.items()))
    if is_torch_encoder(module):
        return _torch_trial(path, module)
    return _timm_trial(path, module) if is_timm(module) else _transformers_trial(path, module)


def _torch_trial(path: str, module: Any) -> Trial:
    layer = module.layers[0] if isinstance(module, nn.TransformerEncoder) else module
    batch_first = bool(layer.self_attn.batch_first)
    weight = layer.linear1.weight
    x = torch.randn(3, 5, layer.self_attn.embed_dim, device=weight.device, dtype=weight.dtype)
    x[:, 0] = x[0, 0]
    return Trial(path, module, (x if batch_first else x.transpose(0, 1),), token_dim=int(batch_first))


def _timm_trial(path: str, module: Any) -> Trial:
    config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    size = tuple(config.get("input_size", (3, 224, 224)))  # models built by their class have no config
    embed: Any = getattr(module, "patch_embed", None)
    if getattr(embed, "img_size", None) is not None:
        size = (embed.proj.in_channels, *embed.img_size)
    if getattr(module, "cls_token", module) is None:  # a register would look like one
        raise SepNormError(f"{type(module).__name__} cannot be converted: it was built without a [CLS] token.")
    weight = next(module.parameters())
    return Trial(path, module, (torch.randn(3, *size, device=weight.device, dtype=weight.dtype),), token_dim=1)


def _transformers_trial(path: str, module: Any) -> Trial:
    config, name = module.config, type(module).__name__
    kind = getattr(config, "model_type", "")
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        raise SepNormError(
            f"{name} has two towers, one for images and one for text: convert the one with a [CLS], "
            "as in convert(model.vision_model, ...)."
        )
    if kind in WITHOUT_CLS:
        raise SepNormError(
            f"{name} cannot be converted: {WITHOUT_CLS[kind]}, and [CLS] is what gets a norm of its own."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise SepNormError(
            f"{name} is an encoder with a decoder: convert its encoder, as in convert(model.get_encoder(), ...)."
        )
    base = getattr(module, "base_model_prefix", "")
    core = base if base and hasattr(module, base) else ""
    if kind == "sepnorm-graphormer":
        return Trial(path, module, module.dummy_inputs, token_dim=1, core=core, fallback=[core])
    weight = next(module.parameters())
    if module.main_input_name == "pixel_values":
        size = config.image_size
        size = tuple(size) if isinstance(size, list | tuple) else (size, size)
        pixels = torch.randn(3, getattr(config, "num_channels", 3), *size, device=weight.device, dtype=weight.dtype)
        return Trial(path, module, {"pixel_values": pixels}, token_dim=1, core=core, fallback=[core])
    doubt = (
        f"whether {name} (model type {kind!r}) puts a [CLS] first is not known: pass example=, a batch of at least two "
        "different samples, for instance tokenizer([...], padding=True, return_tensors='pt')."
    )
    if module.main_input_name != "input_ids":
        raise SepNormError(doubt)
    tokens = {"input_ids": _tokens(config, weight.device)}
    return Trial(
        path, module, tokens, token_dim=1, core=core, fallback=[core], doubt="" if kind in TEXT_WITH_CLS else doubt
    )


def _tokens(config: Any, device: torch.device) -> torch.Tensor:
    """Three sequences of eight tokens with the same first one, which stands for [CLS], and no padding."""
    first = getattr(config, "cls_token_id", None) or getattr(config, "bos_token_id", None) or 1
    barred = {first, getattr(config, "pad_token_id", None)}
    usable = torch.tensor(
        [token for token in range(min(config.vocab_size, 1000)) if token not in barred], device=device
    )
    tokens = usable[torch.randint(len(usable), (3, 8), device=device)]
    tokens[:, 0] = min(first, config.vocab_size - 1)
    return tokens
