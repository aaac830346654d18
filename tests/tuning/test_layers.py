"""Which layers an encoder has, and which parameters belong to a head."""

from __future__ import annotations

import pytest
import torch
import transformers as T
from models import BERT, bert
from torch import nn

import sepnorm


class Logits(T.PreTrainedModel):
    """A user's model of transformers whose encoder is a part of torch."""

    config_class = T.BertConfig

    def __init__(self, config: T.BertConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(60, 16)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2)
        self.norm, self.classifier = nn.LayerNorm(16), nn.Linear(16, 16)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(self.encoder(self.embed(input_ids)))[:, 0])


def ids() -> dict[str, torch.Tensor]:
    found = torch.randint(5, 60, (4, 9), generator=torch.Generator().manual_seed(0))
    found[:, 0] = 2
    return {"input_ids": found}


def test_the_head_of_a_model_that_is_itself_the_model_of_transformers_is_trained():
    model = Logits(T.BertConfig(**BERT)).eval()
    report = sepnorm.tune_special(model, "cls", example=ids())
    assert set(report.head) == {"classifier.weight", "classifier.bias"}
    assert all(parameter.requires_grad for parameter in model.classifier.parameters())


def test_the_head_of_a_published_graphormer_is_trained():
    published = pytest.importorskip("sepnorm.domains.molecules.published.config")
    sizes = dict(embedding_dim=16, ffn_embedding_dim=16, num_attention_heads=2, num_hidden_layers=2)
    model = sepnorm.Graphormer(published.PublishedConfig(**sizes)).eval()
    head = set(sepnorm.tune_special(model, "cls").head)
    assert {name for name, _ in model.named_parameters() if name.startswith("classifier.")} <= head
    behind = ("classifier.", "encoder.lm_head_transform_weight.")  # the latter comes after the last block
    assert all(name.startswith(behind) for name in head)
    headless = sepnorm.Graphormer(published.PublishedConfig(num_classes=0, **sizes)).eval()
    assert not sepnorm.tune_special(headless, "cls").head


def test_the_pooler_of_a_bare_encoder_belongs_to_it():
    model = bert()
    assert not sepnorm.tune_special(model, "cls").head
    assert not any(parameter.requires_grad for parameter in model.pooler.parameters())
