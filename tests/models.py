"""Small models and data that several tests use."""

from __future__ import annotations

import torch
import transformers as T
from torch import nn

BERT = dict(
    vocab_size=60,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=32,
)


def bert(trained: bool = True, **changes) -> T.BertModel:
    """A BERT in evaluation mode, with norms that are not at their defaults if ``trained``."""
    model = T.BertModel(T.BertConfig(**(BERT | changes))).eval()
    if trained:
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.LayerNorm):
                    module.weight.add_(torch.randn_like(module.weight) * 0.2)
                    module.bias.add_(torch.randn_like(module.bias) * 0.2)
    return model


def sentences(batch: int = 6, tokens: int = 9, padded: bool = True) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 60, (batch, tokens))
    ids[:, 0] = 2
    mask = torch.ones_like(ids)
    if padded:
        for row in range(batch):
            mask[row, tokens - row % (tokens - 2) :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def embeddings(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """[CLS] vectors (batch, channels) of a model in evaluation mode."""
    with torch.no_grad():
        return model.eval()(**batch).last_hidden_state[:, 0]


def text_model(folder, **changes) -> None:
    """A small BERT, with these changes of its config, and a tokeniser of words, saved as transformers does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on mat and number a b c d e".split() + list("0123456789")
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    T.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    bert(**changes).save_pretrained(folder)
