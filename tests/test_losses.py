from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

from sepnorm import SepNormError
from sepnorm.distributed import part
from sepnorm.losses import info_nce, uniformity_loss


def cosines_of_pairs(x: torch.Tensor) -> torch.Tensor:
    unit = F.normalize(x, dim=-1)
    first, second = torch.triu_indices(len(x), len(x), 1)
    return (unit[first] * unit[second]).sum(-1)


def test_uniformity_loss_equals_the_mean_over_pairs():
    x = torch.randn(9, 5)
    assert torch.allclose(uniformity_loss(x), cosines_of_pairs(x).square().mean(), atol=1e-6)
    assert torch.allclose(uniformity_loss(x, "inner"), cosines_of_pairs(x).mean(), atol=1e-6)
    tokens = torch.randn(4, 6, 5)
    assert torch.allclose(uniformity_loss(tokens), cosines_of_pairs(tokens.reshape(24, 5)).square().mean(), atol=1e-6)
    per_sample = torch.stack([cosines_of_pairs(sample).square().mean() for sample in tokens]).mean()
    assert torch.allclose(uniformity_loss(tokens, within="sample"), per_sample, atol=1e-6)
    per_sample = torch.stack([cosines_of_pairs(sample).mean() for sample in tokens]).mean()
    assert torch.allclose(uniformity_loss(tokens, "inner", within="sample"), per_sample, atol=1e-6)


def test_mixed_precision_does_not_round_cosines():
    x = 1 + 0.01 * torch.randn(16, 8)  # cosines near 1 differ by less than half precision can tell
    terms = {
        "info_nce": lambda x: info_nce(x, x.flip(1), x[:3]),
        "squared": uniformity_loss,
        "within": lambda x: uniformity_loss(x.view(4, 4, 8), within="sample"),
    }
    for term in terms.values():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = term(x)
        assert mixed.dtype == torch.float32 and torch.equal(mixed, term(x))
        half = x.bfloat16()
        assert torch.equal(term(half), term(half.float()))
        assert term(x.double()).dtype == torch.float64


def test_uniformity_loss_in_closed_form():
    assert uniformity_loss(torch.eye(4)).item() == pytest.approx(0, abs=1e-7)
    assert uniformity_loss(torch.ones(7, 3)).item() == pytest.approx(1, abs=1e-6)
    assert uniformity_loss(torch.tensor([[1.0, 0.0], [-2.0, 0.0]]), "inner").item() == pytest.approx(-1)
    assert uniformity_loss(torch.ones(1, 3)).item() == pytest.approx(0, abs=1e-6)  # no pair


def test_info_nce_equals_the_formula():
    x, y, hard = torch.randn(6, 5), torch.randn(6, 5), torch.randn(4, 5)
    for negatives in (None, hard):
        others = y if negatives is None else torch.cat([y, negatives])
        scores = (F.normalize(x, dim=1) @ F.normalize(others, dim=1).T / 0.1).exp()
        expected = -(scores.diagonal() / scores.sum(1)).log().mean()
        assert torch.allclose(info_nce(x, y, negatives, temperature=0.1), expected, atol=1e-5)


def test_bad_arguments_are_refused():
    x = torch.randn(4, 3)
    with pytest.raises(SepNormError, match="Did you mean 'squared'"):
        uniformity_loss(x, "square")
    with pytest.raises(SepNormError, match="Did you mean 'sample'"):
        uniformity_loss(x, within="samples")
    with pytest.raises(SepNormError, match=r"within='sample' needs, found \(4, 3\)"):
        uniformity_loss(x, within="sample")
    with pytest.raises(SepNormError, match="two tensors"):
        info_nce(x, x[:2])
    with pytest.raises(SepNormError, match="above 0"):
        info_nce(x, x, temperature=0)


def objective(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = model(x), model(y)
    tokens = a.view(-1, 2, 2)
    return (
        info_nce(a, b, b.flip(1))
        + uniformity_loss(a)
        + uniformity_loss(a, "inner")
        + uniformity_loss(tokens)
        + uniformity_loss(tokens, within="sample")
    )


def work(rank: int, port: int, model: nn.Module, x: torch.Tensor, y: torch.Tensor, expected: list) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    mine = slice(0, 5) if rank == 0 else slice(5, 8)  # uneven parts
    loss = objective(model, x[mine], y[mine])
    loss.backward()
    assert abs(loss.item() - expected[0]) < 1e-5
    for parameter, gradient in zip(model.parameters(), expected[1], strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-5)
    part()


def test_two_processes_compute_what_one_does(free_port):
    model = nn.Linear(6, 4)
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    loss = objective(model, x, y)
    loss.backward()
    expected = [loss.item(), [parameter.grad.clone() for parameter in model.parameters()]]
    model.zero_grad()
    mp.spawn(work, args=(free_port, model, x, y, expected), nprocs=2)
