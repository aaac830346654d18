"""Models with the linear map after their pooling, in forms that other libraries open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.domains.encoders import Encoder
from sepnorm.errors import SepNormError
from sepnorm.geometry.linear_maps import LinearMap
from sepnorm.surgery.families import is_sentence_transformers, is_transformers
from sepnorm.surgery.opening.models import open_model


def own_pooling(encoder: Encoder) -> str:
    """The pooling of a model: that of its Pooling module, else [CLS] if it has one, else the mean."""
    parts = sentence_parts(encoder.model)
    if parts is None:
        return "cls" if encoder.has_cls else "mean"
    mode = parts[1].pooling_mode
    if mode not in ("cls", "mean"):
        raise SepNormError(f"{encoder.name} pools by {mode!r}: heal knows cls and mean.")
    return str(mode)


def sentence_parts(model: Any) -> list[Any] | None:
    """Transformer, Pooling and optionally Normalize of a ``SentenceTransformer``; None for any other model."""
    if not is_sentence_transformers(model):
        return None
    parts = list(model)
    names = [type(part).__name__ for part in parts]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        raise SepNormError(
            f"this model has the modules {', '.join(names)}: heal knows a Transformer and a Pooling, with Normalize or without."
        )
    return parts


def healed_parts(parts: list[Any], found: LinearMap, pooling: str) -> list[Any]:
    """The modules of a sentence encoder with a ``Dense`` after the pooling, which for the sum takes both vectors."""
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    transformer, _, *rest = parts
    dim = found.weight.shape[1]
    weight = torch.cat([found.weight, found.weight], dim=1) if pooling == "sum" else found.weight
    pool = Pooling(dim, ("cls", "mean") if pooling == "sum" else pooling)
    dense = Dense(
        weight.shape[1],
        weight.shape[0],
        activation_function=nn.Identity(),
        init_weight=weight.float(),
        init_bias=found.bias.float(),
    )
    return [transformer, pool, dense, *rest]


def write_sentence_encoder(target: str, folder: Path, found: LinearMap, pooling: str) -> bool:
    """Writes a folder that ``SentenceTransformer(folder)`` opens; returns False for a model that does not fit."""
    if target.startswith("timm:") or (Path(target) / "sepnorm.json").is_file():
        return False
    model = open_model(target).model
    parts = sentence_parts(model)
    if parts is None:
        if not is_transformers(model) or model.main_input_name != "input_ids":
            return False
        from sentence_transformers.base.modules.transformer import Transformer

        parts = [Transformer(target), None]
    save_parts(healed_parts(parts, found, pooling), folder)
    return True


def save_parts(parts: list[Any], folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(folder), create_model_card=False)


class HealedBody(nn.Module):
    """An exported body with a third output: the healed embedding (batch, out)."""

    def __init__(self, body: nn.Module, found: LinearMap, pooling: str, cls_in_mean: bool, leading: int) -> None:
        super().__init__()
        self.body, self.pooling, self.cls_in_mean, self.leading = body, pooling, cls_in_mean, leading
        self.dense = nn.Linear(found.weight.shape[1], found.weight.shape[0])
        with torch.no_grad():
            self.dense.weight.copy_(found.weight)
            self.dense.bias.copy_(found.bias)

    def pooled(self, cls: Tensor, hidden: Tensor, mask: Tensor | None) -> Tensor:
        if self.pooling == "cls":
            return cls
        tokens = hidden if self.cls_in_mean else hidden[:, self.leading :]
        if mask is None:
            mean = tokens.mean(1)
        else:
            weight = (mask if self.cls_in_mean else mask[:, self.leading :]).to(tokens.dtype)[..., None]
            mean = (tokens * weight).sum(1) / weight.sum(1).clamp(min=1)
        return mean if self.pooling == "mean" else cls + mean


class HealedTextBody(HealedBody):
    """Takes the tokeniser's outputs, each (batch, tokens)."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        cls, hidden = self.body(input_ids, attention_mask, **kinds)
        return cls, hidden, self.dense(self.pooled(cls, hidden, attention_mask))


class HealedImageBody(HealedBody):
    """Takes ``pixel_values`` (batch, channels, height, width)."""

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cls, hidden = self.body(pixel_values)
        return cls, hidden, self.dense(self.pooled(cls, hidden, None))
