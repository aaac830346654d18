"""Which tokens count, beside plain loops over samples and tokens."""

from __future__ import annotations

import pytest
import torch
from models import bert, sentences
from torch import Tensor, nn

import sepnorm
from sepnorm import SepNorm, SepNormError
from sepnorm.layer.padding import check_padding, masked_mean, rows_that_count, zero_padding

NAN = float("nan")


def padded(batch: int = 4, tokens: int = 6, width: int = 3) -> tuple[Tensor, Tensor]:
    """Tokens (batch, tokens, width) and a mask with padding in some samples, none in the first."""
    mask = torch.arange(tokens) >= torch.tensor([tokens, 3, 1, 4])[:batch, None]
    return torch.randn(batch, tokens, width, dtype=torch.float64), mask


@pytest.mark.parametrize("token_dim", [1, 0])
@pytest.mark.parametrize("num_cls", [0, 1, 2])
@pytest.mark.parametrize("part", ["cls", "tokens", "all"])
@pytest.mark.parametrize("with_mask", [True, False])
def test_rows_that_count_are_those_of_a_loop(part, num_cls, token_dim, with_mask):
    x, mask = padded()
    expected = []
    for sample in range(4):
        for token in range(6):
            is_cls = token < num_cls
            real = not (with_mask and mask[sample, token])
            if {"cls": is_cls, "tokens": not is_cls and real, "all": real}[part]:
                expected.append(tuple(x[sample, token].tolist()))
    laid_out = x if token_dim == 1 else x.transpose(0, 1).contiguous()
    rows = rows_that_count(laid_out, part, num_cls, token_dim, mask if with_mask else None)
    assert rows.shape == (len(expected), 3)
    assert sorted(map(tuple, rows.tolist())) == sorted(expected)


def test_rows_that_count_leave_the_mask_as_it_was():
    x, mask = padded()
    before = mask.clone()
    rows_that_count(x, "tokens", 2, 1, mask)
    zero_padding(x, mask, 2, 1, whole=True)
    assert torch.equal(mask, before)


def test_a_masked_mean_is_that_of_a_loop_whatever_lies_in_padding():
    x, mask = padded()
    expected = torch.stack([sample[: int((~row).sum())].mean(0) for sample, row in zip(x, mask, strict=True)])
    for poison in (0.0, NAN, float("inf")):
        wild = x.masked_fill(mask[..., None], poison)
        torch.testing.assert_close(masked_mean(wild, ~mask), expected)
        torch.testing.assert_close(masked_mean(wild[..., 0], ~mask), expected[:, 0])  # also of numbers, not vectors


def test_a_masked_mean_of_nothing_is_zero_and_has_a_gradient():
    x = torch.randn(2, 3, 4, requires_grad=True)
    out = masked_mean(x, torch.tensor([[True, True, False], [False, False, False]]))
    assert not out[1].any()
    out.sum().backward()
    assert torch.equal(x.grad[0, :2], torch.full((2, 4), 0.5))
    assert not x.grad[0, 2].any() and not x.grad[1].any()


@pytest.mark.parametrize("token_dim", [1, 0])
def test_padding_becomes_zero_but_never_cls(token_dim):
    x, mask = padded()
    mask[:, 0] = True
    x = x.masked_fill(mask[..., None], NAN)
    x[1, 4, 2] = 5.0  # finite, in padding
    laid_out = x if token_dim == 1 else x.transpose(0, 1)
    whole, only_bad = (
        out if token_dim == 1 else out.transpose(0, 1)
        for out in (zero_padding(laid_out, mask, 1, token_dim, whole=flag) for flag in (True, False))
    )
    assert whole[:, 0].isnan().all() and only_bad[:, 0].isnan().all()
    assert not whole[:, 1:][mask[:, 1:]].any()
    assert only_bad[1, 4].tolist() == [0.0, 0.0, 5.0]
    assert torch.equal(whole[~mask], x[~mask]) and torch.equal(only_bad[~mask], x[~mask])


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(3, 5), "mask of mine is boolean, True where padded, found torch.float32"),
        ("mask", "mask of mine is boolean, True where padded, found str"),
        (
            torch.zeros(5, 3, dtype=torch.bool),
            r"mask of mine has the shape \(batch, tokens\) = \(3, 5\).*found \(5, 3\)",
        ),
    ],
)
def test_what_is_no_mask_is_refused_by_its_name(mask, message):
    with pytest.raises(SepNormError, match=message):
        check_padding(mask, 3, 5, "mask of mine")


# ---- masks of running models ------------------------------------------------------------------------------------------------


class Lengthens(nn.Module):
    """An encoder that puts its [CLS] before the tokens that it is given, so that a mask of these does not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(8))
        self.first, self.norm = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = self.first(torch.cat([self.cls.expand(len(x), 1, 8), x], 1))
        return self.norm(x + x.mean(1, keepdim=True))


def short_mask(batch: int) -> tuple[Tensor, Tensor]:
    mask = torch.zeros(batch, 5, dtype=torch.bool)
    mask[0, 4] = True
    return torch.randn(batch, 5, 8), mask


SENTENCE = r"the padding mask of the running model has the shape \(batch, tokens\) = \(4, 6\).*found \(4, 5\)"


@pytest.mark.parametrize("spec", ["bn+bn", "bn"])
def test_a_mask_of_a_running_model_that_does_not_fit_is_refused(spec):
    model = Lengthens()
    sepnorm.convert(model, spec, sites=["norm"], example=(torch.randn(4, 5, 8),))
    model.train()(torch.randn(4, 5, 8))
    with pytest.raises(SepNormError, match=SENTENCE):
        model(*short_mask(4))


def test_a_mask_that_does_not_fit_is_refused_where_tokens_are_measured():
    example = (torch.randn(4, 5, 8),)
    with pytest.raises(SepNormError, match=SENTENCE):
        sepnorm.convert(Lengthens(), "bn+bn", sites=["norm"], example=example, calibrate=[short_mask(4)])
    with pytest.raises(SepNormError, match=SENTENCE):
        sepnorm.inspect(Lengthens(), [short_mask(4)], example=example)


def test_a_mask_of_a_running_model_that_fits_leaves_padding_out():
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()])
    layer = next(m for m in model.modules() if isinstance(m, SepNorm))
    layer.token_norm.momentum = 1.0
    seen: list[Tensor] = []
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    batch = sentences()
    model.train()(**batch)
    rows = seen[0][:, 1:][batch["attention_mask"][:, 1:].bool()].double()
    torch.testing.assert_close(layer.token_norm.running_mean.double(), rows.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.token_norm.running_var.double(), rows.var(0), rtol=1e-4, atol=1e-5)
