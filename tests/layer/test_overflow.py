"""A channel too large to square: statistics stay finite, and evaluation goes on."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from reference import randomise
from torch import Tensor, nn
from two_paths import PATHS, is_fused, step

import sepnorm
from sepnorm import SepNorm
from sepnorm.layer import statistics

SPECS = ["bn+ln", "bn+bn", "ln+bn", "bn"]
SIZES = {"1e20": (torch.float32, 1e20), "1e37": (torch.float32, 1e37), "1e200": (torch.float64, 1e200)}
paths = pytest.mark.parametrize("path", PATHS)
sizes = pytest.mark.parametrize("size", SIZES)


#: Where the batch norms of each are: torch's layer norm itself gives NaN for numbers of that size.
PLACES = {"bn+ln": slice(0, 1), "ln+bn": slice(1, None), "bn+bn": slice(None), "bn": slice(None)}


def large(spec: str, size: str = "1e20") -> Tensor:
    """(8, 5, 6) with a channel of numbers of that size."""
    dtype, value = SIZES[size]
    x = torch.randn(8, 5, 6, dtype=dtype)
    huge = value * (1 + torch.randn(8, 5, dtype=dtype).clamp(-2, 2))
    x[:, PLACES[spec], 3] = huge[:, PLACES[spec]]
    assert x.isfinite().all()
    return x


def batch_norms(layer: nn.Module) -> list[nn.BatchNorm1d]:
    return [child for child in layer.children() if isinstance(child, nn.BatchNorm1d)]


@paths
@sizes
@pytest.mark.parametrize("momentum", [0.1, 0.9, 1.0, None])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_a_training_step_on_a_huge_channel_leaves_finite_statistics(spec, masked, momentum, size, path):
    x = large(spec, size)
    layer = PATHS[path](SepNorm.from_spec(spec, 6, dtype=x.dtype, momentum=momentum))
    mask = torch.zeros(8, 5, dtype=torch.bool)
    mask[:3, 4] = True
    for _ in range(3):
        found = step(layer, x, mask if masked else None, torch.randn_like(x))
        assert found.out.isfinite().all()
        assert all(grad.isfinite().all() for grad in found.grads.values())
        for name, buffer in found.buffers.items():
            assert buffer.isfinite().all(), name
    assert is_fused(layer(x.requires_grad_())) == (path == "fused")
    assert layer.eval()(x).isfinite().all()


@paths
@pytest.mark.parametrize("spec", SPECS)
def test_other_channels_are_tracked_as_if_the_huge_one_were_not_there(spec, path):
    layer = randomise(SepNorm.from_spec(spec, 6))
    wild = large(spec)
    tame = wild.clone()
    tame[..., 3] = torch.randn(8, 5)
    found, expected = (PATHS[path](layer) for _ in range(2))
    found(wild)
    expected(tame)
    others = [0, 1, 2, 4, 5]
    for ours, theirs in zip(batch_norms(found), batch_norms(expected), strict=True):
        torch.testing.assert_close(ours.running_var[others], theirs.running_var[others])
        torch.testing.assert_close(ours.running_mean[others], theirs.running_mean[others])
        assert ours.running_var[3] == torch.finfo(torch.float32).max


@paths
@pytest.mark.parametrize("spec", SPECS)
def test_a_variance_that_still_fits_is_tracked_as_it_is(spec, path):
    layer = SepNorm.from_spec(spec, 6, momentum=1.0)
    x = large(spec) / 1e3  # a variance of about 1e34
    layer = PATHS[path](layer)
    layer(x)
    exact = {"cls_norm": x[:, 0], "token_norm": x[:, 1:].reshape(-1, 6), "norm": x.reshape(-1, 6)}
    for name, child in layer.named_children():
        if isinstance(child, nn.BatchNorm1d):
            torch.testing.assert_close(child.running_var.double(), exact[name].double().var(0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("spec", SPECS)
def test_a_model_that_saw_a_huge_channel_folds_and_is_calibrated_again(spec):
    layer = SepNorm.from_spec(spec, 6)
    layer(large(spec))
    folded = sepnorm.freeze(copy.deepcopy(layer).eval())
    assert folded(torch.randn(4, 5, 6)).isfinite().all()
    sepnorm.calibrate(layer, [torch.randn(8, 5, 6)])
    assert all((bn.running_var < 10).all() for bn in batch_norms(layer))


@paths
def test_numbers_that_are_none_are_not_hidden(path):
    """The mean still tells that a batch was broken."""
    layer = PATHS[path](SepNorm(6))
    x = torch.randn(4, 5, 6)
    x[1, 0, 2] = float("nan")
    layer(x)
    assert layer.cls_norm.running_mean[2].isnan()
    assert not layer.eval()(torch.randn(4, 5, 6))[:, 0, 2].isfinite().any()


def test_moments_of_all_processes_are_too_large_rather_than_none(monkeypatch):
    """With one process more that has the same rows, the sums are twice those of this one."""

    def doubled(packed, async_op):
        return SimpleNamespace(wait=lambda: packed.mul_(2))

    monkeypatch.setattr(torch.distributed, "all_reduce", doubled)
    x = large("bn", "1e200").reshape(-1, 6)
    mean, var, total = statistics.pooled_moments(statistics.exchange_moments(*statistics.moments(x), len(x)), x.dtype)
    assert total == 2 * len(x)
    assert var[3] == float("inf")
    others = [0, 1, 2, 4, 5]
    torch.testing.assert_close(var[others], x[:, others].var(0, correction=0))
    torch.testing.assert_close(mean[others], x[:, others].mean(0))
