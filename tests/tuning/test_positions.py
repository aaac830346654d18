"""Where special tokens are, by the masks that a call has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from models import bert
from torch import nn

from sepnorm import SepNormError

sys.path.insert(0, str(Path(__file__).parent))
from test_tuning import hidden, tuned, with_sep


def left_padded() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = {key: value.flip(1) for key, value in with_sep().items()}
    assert not inputs["attention_mask"][:, 0].all()
    return inputs["input_ids"], inputs["attention_mask"]


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("form", ["boolean", "lowest", "infinite"])
def test_cls_behind_padding_is_found_by_a_mask_of_rank_4(queries, form):
    model, (ids, mask) = bert(), left_padded()
    tuned(model)
    wide = mask.bool()[:, None, None].expand(-1, 1, queries, -1)
    if form != "boolean":
        hiding = torch.finfo(torch.float32).min if form == "lowest" else -torch.inf
        wide = torch.zeros(wide.shape).masked_fill(~wide, hiding)
    expected = hidden(model, dict(input_ids=ids, attention_mask=mask))
    found = hidden(model, dict(input_ids=ids, attention_mask=wide))
    where = mask.bool()
    torch.testing.assert_close(found[where], expected[where])
    one = hidden(model, dict(input_ids=ids[:1], attention_mask=mask[:1]))
    two = hidden(model, dict(input_ids=ids[[0, 0]], attention_mask=wide[:1]))  # one mask for all samples
    torch.testing.assert_close(two[1:][:, where[0]], one[:, where[0]])


def test_a_mask_that_differs_between_queries_needs_another_that_says_where_cls_is():
    model, (ids, mask) = bert(), left_padded()
    tuned(model, "cls")
    causal = mask.bool()[:, None, None] & torch.ones(9, 9, dtype=torch.bool).tril()
    with pytest.raises(SepNormError, match=r"differs between heads or queries: pass a mask .* or special_mask="):
        hidden(model, dict(input_ids=ids, attention_mask=causal))
    places = torch.arange(9) == mask.argmax(1, keepdim=True)
    hidden(model, dict(input_ids=ids, attention_mask=causal, special_mask=places.long()))


class Around(nn.Module):
    """A user's model, which has the mask as an argument of another name."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=hidden)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("additive", [True, False])
def test_cls_behind_padding_is_found_in_torchs_encoder(batch_first, wrapped, additive):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0, batch_first=batch_first)
    encoder = nn.TransformerEncoder(layer, 2)
    model = (Around(encoder) if wrapped else encoder).train()
    words = torch.randn(3, 6, 16)
    words[:, 0] = 1
    example = (words if batch_first else words.transpose(0, 1), torch.zeros(3, 6, dtype=torch.bool))
    tuned(model, "cls", example=example if wrapped else None)

    def run(x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        padding = torch.zeros(padding.shape).masked_fill(padding, -torch.inf) if additive else padding
        x = x if batch_first else x.transpose(0, 1)
        out = model(x, padding) if wrapped else model(x, src_key_padding_mask=padding)
        return out if batch_first else out.transpose(0, 1)

    x = torch.randn(3, 6, 16)
    padding = torch.arange(6) < torch.tensor([[2], [0], [1]])
    found = run(x, padding)
    for sample, count in enumerate((2, 0, 1)):
        alone = run(x[sample : sample + 1, count:], torch.zeros(1, 6 - count, dtype=torch.bool))
        torch.testing.assert_close(found[sample, count:], alone[0])
    found[0, 2].square().sum().backward()
    assert model.special_tokens.vectors("default").grad.any()
