from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sepnorm.domains.molecules.attention import Dropout, attend, keep_mask


def inputs(batch=3, tokens=7, heads=4, width=12):
    rows = torch.randn(batch, tokens, 3 * width, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(batch, heads, tokens, tokens, dtype=torch.float64)
    bias[0, :, :, -2:] = float("-inf")  # padding
    return rows, bias.requires_grad_()


def plain(rows, bias, kept=None, share=1.0):
    batch, heads, tokens, _ = bias.shape
    q, k, v = rows.view(batch, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
    weights = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + bias).softmax(-1)
    weights = weights if kept is None else weights * kept / share
    return (weights @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_and_its_gradients_are_those_of_the_formula(dropout):
    rows, bias = inputs()
    torch.manual_seed(5)
    found = attend(rows, bias, dropout)
    torch.manual_seed(5)
    kept = keep_mask(bias.detach().flatten(0, 1), dropout).view(bias.shape) if dropout else None
    wanted = plain(rows, bias, kept, 1 - dropout)
    assert torch.allclose(found, wanted, atol=1e-12)
    weight = torch.randn_like(found)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), (rows, bias)) for x in (found, wanted)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_without_gradients_attention_is_the_same():
    rows, bias = inputs()
    with torch.no_grad():
        assert torch.allclose(attend(rows, bias, 0.0), plain(rows, bias), atol=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_the_share_asked_for_is_dropped_independently(share):
    kept = keep_mask(torch.empty(1000, 1001), share)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    spread = (share * (1 - share)) ** 0.5
    assert float(1 - kept.mean()) == pytest.approx(share, abs=5 * spread / 1e3)
    flat = kept.flatten() - kept.mean()
    for lag in (1, 2, 3, 4, 8):  # four elements share a draw
        assert abs(float((flat[lag:] * flat[:-lag]).mean())) < 5 * spread**2 / 1e3


def test_dropout_keeps_the_mean_and_follows_the_global_generator():
    layer, x = Dropout(0.25), torch.ones(200, 500)
    torch.manual_seed(1)
    first, second = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first) and not torch.equal(first, second)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.01)
    assert first.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(F.dropout(x, 0.0), Dropout(0.0)(x))
