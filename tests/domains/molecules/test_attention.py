from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sepnorm.domains.molecules.attention import GELU, ColumnLinear, Dropout, attend, keep_mask


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


def masks(biases, dropout):
    """What is kept of each part: numbers are drawn for all parts together, heads outermost."""
    kept = keep_mask(torch.empty(sum(bias.numel() for bias in biases), dtype=torch.float64), dropout)
    parts = kept.split([bias.numel() for bias in biases])
    return [part.view(bias.transpose(0, 1).shape).transpose(0, 1) for part, bias in zip(parts, biases, strict=True)]


def same_gradients(found, wanted, inputs):
    assert torch.allclose(found, wanted, atol=1e-12)
    weight = torch.randn_like(found)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), inputs) for x in (found, wanted)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("heads_outermost", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_and_its_gradients_are_those_of_the_formula(dropout, heads_outermost):
    rows, bias = inputs()
    if heads_outermost:
        bias = bias.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    torch.manual_seed(5)
    found = attend(rows, bias, dropout)
    torch.manual_seed(5)
    kept = masks([bias], dropout)[0] if dropout else None
    same_gradients(found, plain(rows, bias, kept, 1 - dropout), (rows, bias))


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_by_parts_is_that_of_each_part(dropout, column_major):
    parts = [inputs(2, 5), inputs(3, 7), inputs(1, 1)]
    joined = torch.cat(
        [rows.detach().flatten(0, 1) for rows, _ in parts[:2]] + [torch.randn(1, 36, dtype=torch.float64)]
    )
    if column_major:
        joined = joined.t().contiguous().t()
    joined.requires_grad_()
    biases = [bias for _, bias in parts[:2]] + [torch.zeros(1, 4, 1, 1, dtype=torch.float64, requires_grad=True)]
    torch.manual_seed(5)
    found = attend(joined, biases, dropout)
    torch.manual_seed(5)
    kept = masks(biases, dropout) if dropout else [None] * 3
    wanted = torch.cat(
        [
            plain(some.reshape(len(bias), bias.shape[2], -1), bias, mask, 1 - dropout).flatten(0, 1)
            for some, bias, mask in zip(joined.split([10, 21, 1]), biases, kept, strict=True)
        ]
    )
    same_gradients(found, wanted, (joined, *biases))


def test_without_gradients_attention_is_the_same():
    rows, bias = inputs()
    with torch.no_grad():
        assert torch.allclose(attend(rows, bias, 0.0), plain(rows, bias), atol=1e-12)
        parts = attend(torch.cat([rows, rows]).flatten(0, 1), [bias, bias], 0.0)
        assert torch.allclose(parts, plain(rows, bias).flatten(0, 1).repeat(2, 1), atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6)])
@pytest.mark.parametrize(("quick", "usual"), [(ColumnLinear(6, 9), nn.Linear(6, 9)), (GELU(), nn.GELU())])
def test_forms_in_other_memory_layouts_are_the_usual_ones(shape, quick, usual):
    quick, usual = quick.double(), usual.double()
    usual.load_state_dict(quick.state_dict())
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found, wanted = quick(x), usual(x)
    assert torch.allclose(found, wanted, atol=1e-14)
    weight = torch.randn_like(wanted)
    grads = [
        torch.autograd.grad((out * weight).sum(), [x, *module.parameters()])
        for out, module in ((found, quick), (wanted, usual))
    ]
    assert all(torch.allclose(a, b, atol=1e-13) for a, b in zip(*grads, strict=True))
    with torch.no_grad():
        assert torch.allclose(quick(x), wanted, atol=1e-14)


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
