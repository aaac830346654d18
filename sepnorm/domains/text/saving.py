"""Saves a trained encoder as a sentence-transformers model with [CLS] as the sentence embedding."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from sepnorm.domains.text.model import SimCSE
from sepnorm.domains.text.starting import LONGEST, Start
from sepnorm.surgery.config_trace import without_trace
from sepnorm.surgery.saving import save


def save_sentence_transformer(model: SimCSE, start: Start, folder: Path) -> None:
    """Saves a folder for ``SentenceTransformer(folder)``, or with separate norms for ``sepnorm.load(folder)``."""
    found = sentence_transformer(model, start)
    folder.mkdir(parents=True, exist_ok=True)
    if model.settings.norm == "ln":
        found.save_pretrained(str(folder), create_model_card=False)
    else:
        save(found, folder)


def sentence_transformer(model: SimCSE, start: Start) -> Any:
    """Puts the encoder into a ``SentenceTransformer``, with its head if that is kept."""
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

    encoder = model.encoder.cpu()
    width = encoder.config.hidden_size
    with tempfile.TemporaryDirectory() as scratch:  # sentence-transformers opens only folders with weights
        transformers.AutoModel.from_config(without_trace(encoder.config)).save_pretrained(scratch)
        start.tokenizer.save_pretrained(scratch)
        first = Transformer(scratch, max_seq_length=min(start.longest, LONGEST))
    first.model = encoder
    modules = [first, Pooling(width, "cls")]
    if model.settings.head == "kept":
        linear: Any = model.head.get_submodule("0")
        modules.append(Dense(width, width, init_weight=linear.weight.data.cpu(), init_bias=linear.bias.data.cpu()))
    return SentenceTransformer(modules=modules, device="cpu").eval()
