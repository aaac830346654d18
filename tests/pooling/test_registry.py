"""Poolings by name, and what they give."""

from __future__ import annotations

import pytest
import torch

from sepnorm import SepNormError
from sepnorm.domains import requests
from sepnorm.pooling import MomentPool, cls_mean, mean, pool
from sepnorm.pooling.registry import POOLINGS, SKETCH

CLS = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(1))
MASK = torch.arange(7).expand(3, -1) < torch.tensor([[7], [2], [4]])


def test_commands_know_the_names_without_torch():
    assert tuple(POOLINGS) == requests.POOLINGS
    for name in POOLINGS:
        if name in requests.NEED_CLS:
            with pytest.raises(SepNormError, match=r"no \[CLS\] to pool"):
                pool(name, None, TOKENS)
        else:
            assert torch.equal(pool(name, None, TOKENS), pool(name, CLS, TOKENS))


def test_each_is_what_its_name_says():
    means = torch.stack([own[keep].mean(0) for own, keep in zip(TOKENS, MASK, strict=True)])
    assert torch.equal(pool("cls", CLS, TOKENS, MASK), CLS)
    torch.testing.assert_close(pool("mean", CLS, TOKENS, MASK), means)
    torch.testing.assert_close(pool("cls+mean", CLS, TOKENS, MASK), torch.cat([CLS, means], dim=1))
    torch.testing.assert_close(pool("moments", CLS, TOKENS, MASK), MomentPool(5)(TOKENS, MASK))


def test_moments_of_wide_tokens_are_sketched():
    wide = torch.randn(2, 4, 48, generator=torch.Generator().manual_seed(0))
    found = pool("moments", None, wide)
    assert found.shape == (2, SKETCH)
    assert torch.equal(found, MomentPool(48, sketch=SKETCH)(wide))


def test_what_is_wrong_is_refused():
    with pytest.raises(SepNormError, match=r"unknown pooling 'moment'.*Did you mean 'moments'"):
        pool("moment", CLS, TOKENS)
    with pytest.raises(SepNormError, match=r"cls must be \(3, 5\) to match the tokens, found \(3, 4\)"):
        cls_mean(CLS[:, 1:], TOKENS)
    with pytest.raises(SepNormError, match=r"tokens are \(batch, tokens, dim\)"):
        mean(CLS)


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("", ()),
        ("both", ("cls", "mean")),
        ("all", tuple(POOLINGS)),
        ("moments, cls,moments", ("moments", "cls")),
        ("mean,both", ("mean", "cls")),
    ],
)
def test_several_are_named_by_commas_or_a_word(said, names):
    assert requests.poolings_of(said) == names
