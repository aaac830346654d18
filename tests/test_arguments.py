from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from sepnorm import SepNormError
from sepnorm.arguments import flag, number, require_floats, require_module, whole


def test_what_is_right_comes_through():
    assert whole(np.int64(3), "count", 1, 3) == 3 and whole(torch.tensor(2), "count") == 2
    assert number(np.float32(0.5), "t") == 0.5 and number(7, "t", 7) == 7.0 and number(torch.tensor(1.5), "t") == 1.5
    assert flag(np.bool_(True), "center") is True and flag(0, "center") is False
    require_module(nn.Identity())
    require_floats(torch.zeros(2, dtype=torch.bfloat16), "x")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: whole(2.5, "count"), "count is a whole number, found 2.5."),
        (lambda: whole(0, "count", 1), "count is a whole number, at least 1, found 0."),
        (lambda: whole(9, "count", 1, 8), "count is a whole number, at least 1 and at most 8, found 9."),
        (lambda: whole(torch.zeros(2), "count"), "found a tensor of float32 and shape (2,)."),
        (lambda: number("1", "t"), "t is a finite number, found '1'."),
        (lambda: number(math.nan, "t"), "found nan."),
        (lambda: number(-1, "eps", 0), "eps is a finite number of at least 0, found -1."),
        (lambda: number(torch.zeros(2), "t"), "found a tensor"),
        (lambda: flag("yes", "center"), "center is True or False, found 'yes'."),
        (lambda: flag(torch.ones(2), "center"), "found a tensor"),
        (lambda: require_module("bert"), "a model is a torch module, found 'bert': give the model itself."),
        (
            lambda: require_floats(torch.ones(2, dtype=torch.long), "x"),
            "x is a tensor of floating-point numbers, found a tensor",
        ),
        (lambda: whole(list(range(1000)), "count"), "found a list."),
    ],
)
def test_what_is_wrong_is_named(call, said):
    with pytest.raises(SepNormError) as error:
        call()
    assert said in str(error.value)
