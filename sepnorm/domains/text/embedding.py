"""From sentences to vectors, by any pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sepnorm.data.records import Record
from sepnorm.domains.encoders import Encoder
from sepnorm.domains.requests import POOLINGS
from sepnorm.errors import SepNormError, require_known

#: From n sentences to their vectors (n, dim), in the same order.
Embed = Callable[[list[str]], Tensor]


def sentence_embedder(encoder: Encoder, pooling: str = "cls", batch_size: int = 64) -> Embed:
    """Returns a function from sentences to vectors (n, size) in float32 on the CPU; padding never counts.

    ``mean`` and ``moments`` are over all tokens, including [CLS] and [SEP], as in sentence-transformers.
    """
    require_known("pooling", pooling, POOLINGS)
    if encoder.kind != "text":
        raise SepNormError(f"{encoder.name} takes {encoder.kind}, not text: sentences need a text encoder.")

    def embed(sentences: list[str]) -> Tensor:
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # for little padding
        records = (Record(sentences[i], None, str(i)) for i in order)
        places: list[int] = []
        rows: list[Tensor] = []
        with encoder.evaluating():
            for part, batch in encoder.batches(records, batch_size):
                rows.append(encoder.encode(batch).pooled(pooling))
                places += [int(record.name) for record in part]
        if not rows:
            raise SepNormError("there are no sentences to embed.")
        found = torch.cat(rows)
        return torch.empty_like(found).index_copy_(0, torch.tensor(places), found)

    return embed


def embed_distinct(embed: Embed, *lists: Sequence[str]) -> list[Tensor]:
    """The vectors of several lists of sentences; each distinct sentence is embedded once."""
    number = {text: i for i, text in enumerate(dict.fromkeys(text for texts in lists for text in texts))}
    rows = embed(list(number))
    if rows.dim() != 2 or len(rows) != len(number):
        raise SepNormError(
            f"embed gave a tensor of shape {tuple(rows.shape)} for {len(number)} sentences: (sentences, dimensions) is needed."
        )
    if not bool(rows.isfinite().all()):
        raise SepNormError("the embeddings hold NaN or infinity: the encoder is broken, nothing can be evaluated.")
    rows = rows.detach().float().cpu()
    return [rows[[number[text] for text in texts]] for texts in lists]
