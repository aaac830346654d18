"""Token ids of sentences: computed once, kept in one flat tensor, batched by similar length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_PART = 10_000  # sentences tokenised at a time
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Tokens:
    """Token ids of many sentences in one tensor, truncated to ``length``; ``lengths`` (sentences,) counts them."""

    def __init__(self, tokenizer: Any, texts: Sequence[str], length: int) -> None:
        import numpy

        parts, counts = [], []
        for start in range(0, len(texts), _PART):
            found = tokenizer(list(texts[start : start + _PART]), truncation=True, max_length=length)["input_ids"]
            counts += [len(ids) for ids in found]
            parts.append(numpy.fromiter((i for ids in found for i in ids), dtype=numpy.int32))
        self.padding = int(tokenizer.pad_token_id)
        self.lengths = torch.tensor(counts)
        self._starts = self.lengths.cumsum(0) - self.lengths
        self._ids = torch.from_numpy(numpy.concatenate(parts))

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Tensor) -> dict[str, Tensor]:
        """``input_ids`` and ``attention_mask`` (rows, longest of them) of the sentences with indices ``rows``."""
        lengths = self.lengths[rows]
        places = torch.arange(int(lengths.max()))
        mask = places < lengths[:, None]
        ids = self._ids[(self._starts[rows][:, None] + places).clamp(max=len(self._ids) - 1)].long()
        return {"input_ids": ids.masked_fill(~mask, self.padding), "attention_mask": mask.long()}

    def batches(self, rows: Tensor, size: int) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """Batches of the sentences ``rows``, sorted by length, with their indices."""
        order = rows[self.lengths[rows].argsort(stable=True)]
        return [(part, self.batch(part)) for part in order.split(size) if len(part)]


def train_wordpiece(texts: Sequence[str], vocabulary: int, longest: int) -> Any:
    """Trains a WordPiece tokeniser on ``texts``, as BERT's: lower case, [CLS] first, [SEP] last."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    learner: Any = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer, learner.pre_tokenizer = normalizer, splitter
    letters = sorted({letter for text in texts for letter in normalizer.normalize_str(text) if not letter.isspace()})
    # Ties between pairs are broken by the ids of their parts, and ids of letters inside words are random in each
    # process. Naming these letters beforehand gives the same tokeniser everywhere.
    known = [*SPECIAL, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=known, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    tokenizer: Any = Tokenizer(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")]
    )
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=longest, **names)
