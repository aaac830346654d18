"""Text encoders: sentence-transformers and transformers models, from sentences to [CLS] and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.records import LeftOut, Record, read_texts
from sepnorm.domains.encoders import Body, Encoded, Encoder, Exportable
from sepnorm.errors import SepNormError
from sepnorm.surgery import model_call
from sepnorm.surgery.families import encoder_of, is_sentence_transformers, is_transformers
from sepnorm.surgery.opening.models import open_tokeniser

_LONGEST = 256  # largest number of tokens of a text
_SHOWN = 200  # characters of a text shown in reports
_TEXTS = [
    "A text.",
    "Another, which is a little longer than the first.",
    "A third, so that the batch has another size.",
]


def wrap(target: str, model: Any, source: Path) -> TextEncoder | None:
    """Wraps a text encoder with its tokeniser; None if the model takes no text."""
    if is_sentence_transformers(model):
        prepare = model.preprocess if hasattr(model, "preprocess") else model.tokenize
        model.max_seq_length = min(model.max_seq_length or _LONGEST, _LONGEST)
        return TextEncoder(target, model, prepare)
    if is_transformers(model) and model.main_input_name == "input_ids":
        return TextEncoder(target, model, _tokeniser(target, model, source))
    return None


def _tokeniser(target: str, model: Any, folder: Path) -> Tokenised:
    missing = f"{target} has no tokeniser: put one beside the model, by tokenizer.save_pretrained({target!r})."
    try:
        tokenizer = open_tokeniser(folder)
    except SepNormError:
        raise
    except Exception as error:
        raise SepNormError(missing) from error
    # without files, transformers makes up a tokeniser to which every word is unknown
    if len(tokenizer) < len(tokenizer.all_special_tokens) + 3:
        raise SepNormError(missing)
    longest = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", _LONGEST), _LONGEST)
    if longest < 1:
        raise SepNormError(
            f"{target} is damaged: its tokeniser or config says that a text has at most {longest} tokens."
        )
    return Tokenised(tokenizer, longest)


class Tokenised:
    """From texts to the batch of a transformers text encoder."""

    def __init__(self, tokenizer: Any, longest: int) -> None:
        self.tokenizer, self.longest = tokenizer, longest

    def __call__(self, texts: list[str]) -> dict[str, Tensor]:
        return dict(self.tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt"))

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


class TextEncoder(Encoder):
    """Encodes texts. The mean of tokens includes [CLS] and [SEP], as in sentence-transformers."""

    kind = "text"
    window = 64
    cls_in_mean = True

    def read(
        self, data: str, column: str | None = None, split: str = "train", left_out: LeftOut | None = None
    ) -> Iterator[Record]:
        return read_texts(data, column, split, left_out)

    @cached_property
    def has_cls(self) -> bool:  # type: ignore[override]
        """Whether the tokeniser puts a [CLS] before a text."""
        tokenizer = getattr(self.prepare, "tokenizer", None) or getattr(self.model, "tokenizer", None)
        if tokenizer is None:
            return True
        with self.working():
            first = tokenizer("word")["input_ids"][:1]
        return tokenizer.cls_token_id is not None and first == [tokenizer.cls_token_id]

    def hidden(self, batch: Any) -> Encoded:
        output = model_call.call(encoder_of(self.model), batch)
        hidden = output["token_embeddings"] if "token_embeddings" in output else output["last_hidden_state"]
        mask = batch.get("attention_mask")
        keep = torch.ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask.bool().cpu()
        if not self.has_cls:
            return Encoded(None, hidden, keep)
        return Encoded(hidden[:, 0], hidden[:, 1:], keep[:, 1:], self.cls_in_mean)

    def shown(self, record: Record) -> str:
        return str(record.content)[:_SHOWN]

    def views(self, content: Any) -> tuple[str, str]:
        """The first and the second half of a text's words."""
        words = str(content).split()
        middle = max((len(words) + 1) // 2, 1)
        return " ".join(words[:middle]), " ".join(words[middle:]) or " ".join(words)

    def exportable(self) -> Exportable:
        return Exportable(TextBody(self.model), self._inputs(2), self._inputs(3), {0: "batch", 1: "tokens"})

    def _inputs(self, count: int) -> dict[str, Tensor]:
        batch = self.prepare(_TEXTS[-count:])
        names = ("input_ids", "attention_mask", "token_type_ids")
        return {name: batch[name] for name in names if isinstance(batch.get(name), Tensor)}


class TextBody(Body):
    """Takes the tokeniser's outputs, each (batch, tokens)."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.inner(input_ids=input_ids, attention_mask=attention_mask, **kinds).last_hidden_state
        return hidden[:, 0], hidden
