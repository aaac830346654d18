from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from sepnorm import SepNormError
from sepnorm.domains import linear_heads
from sepnorm.domains.linear_heads import Rows, few_threads, fit_ridge


def features(count: int, dim: int) -> torch.Tensor:
    return torch.randn(count, dim) * torch.logspace(0, -2, dim) + 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("resident", [True, False])
def test_statistics_are_those_of_numpy(dtype, resident, monkeypatch):
    monkeypatch.setattr(linear_heads, "_RESIDENT", 2**30 if resident else 0)
    monkeypatch.setattr(linear_heads, "_ROWS", (16, 37))
    x = features(200, 9).to(dtype)
    rows, plain = Rows(x), x.double().numpy()
    assert np.allclose(rows.mean, plain.mean(0), rtol=1e-9)
    assert np.allclose(rows.deviation, plain.std(0, ddof=1), rtol=1e-5)
    assert np.isclose(rows.size, np.sqrt((plain**2).mean()), rtol=1e-9)
    assert np.allclose(rows.products, (plain - plain.mean(0)).T @ (plain - plain.mean(0)), rtol=1e-4, atol=1e-4)
    assert np.allclose(rows.own_scale() * rows.deviation, 1) and np.allclose(rows.overall_scale() * rows.size, 1)


@pytest.mark.parametrize("resident", [True, False])
def test_chunks_are_the_rows_that_are_asked_for(resident, monkeypatch):
    monkeypatch.setattr(linear_heads, "_RESIDENT", 2**30 if resident else 0)
    monkeypatch.setattr(linear_heads, "_ROWS", (16, 16))
    x = features(100, 3).double()
    rows, kept = Rows(x), torch.tensor([0, 1, 5, 40, 41, 42, *range(50, 99)])
    parts = list(rows.chunks(kept))
    assert torch.allclose(torch.cat([part for part, _ in parts]), x[kept] - x.mean(0))
    assert torch.cat([kept[where] for _, where in parts]).equal(kept) and len(parts) == 4
    assert torch.allclose(torch.cat([part for part, _ in rows.chunks()]), x - x.mean(0))


def test_features_in_a_file_are_read_in_every_pass_and_never_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(linear_heads, "_RESIDENT", 0)
    file = np.memmap(tmp_path / "x", np.float16, "w+", shape=(5000, 4))
    file[:] = np.random.default_rng(0).standard_normal(file.shape)
    rows = Rows(torch.from_numpy(file))
    assert max(len(part) for part, _ in rows.chunks(columns=10_000)) == 512
    assert np.allclose(rows.mean, np.asarray(file, dtype=np.float64).mean(0))


def test_a_constant_dimension_has_the_scale_0():
    x = torch.cat([torch.randn(50, 2), torch.full((50, 1), 0.1), torch.zeros(50, 1)], dim=1)
    for scale in (Rows(x).own_scale(), Rows(x).overall_scale()):
        assert (scale == 0).tolist() == [False, False, True, True]


@pytest.mark.parametrize("size", [1e-11, 1e25])
def test_very_small_and_very_large_features_keep_their_scale(size):
    x = torch.randn(50, 3).double()
    assert torch.allclose(Rows((size * x).float()).overall_scale() * size, Rows(x).overall_scale(), rtol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(bad):
    x = torch.randn(30, 4)
    x[7, 2] = bad
    with pytest.raises(SepNormError, match="the training features hold NaN or infinity"):
        Rows(x)
    heads = fit_ridge(Rows(torch.randn(30, 4)), torch.randn(30, 1), torch.ones(4).double(), [1.0])
    with pytest.raises(SepNormError, match="features to be probed hold NaN or infinity"):
        heads.outputs(x)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (4,)])
def test_features_of_another_shape_are_refused(shape):
    with pytest.raises(SepNormError, match=r"a probe needs \(count, dim\)"):
        Rows(torch.zeros(shape))


@pytest.mark.parametrize("count", [200, 20])  # the latter has fewer samples than dimensions
def test_ridge_is_that_of_scikit_learn_with_missing_values(count, monkeypatch):
    monkeypatch.setattr(linear_heads, "_ROWS", (16, 16))
    x, y = features(count, 30).double(), torch.randn(count, 3).double()
    y[::3, 1] = float("nan")
    scale, penalties = torch.rand(30).double() + 0.5, [0.001, 1.0, 1000.0]
    heads = fit_ridge(Rows(x), y, scale, penalties)
    fresh = features(40, 30).double()
    found = heads.outputs(fresh)
    total = torch.zeros(3, dtype=torch.float64)
    for number, alpha in enumerate(penalties):
        for column in range(3):
            known = y[:, column].isfinite()
            reference = Ridge(alpha=alpha).fit((x * scale)[known].numpy(), y[known, column].numpy())
            guesses = torch.from_numpy(reference.predict((fresh * scale).numpy()))
            assert torch.allclose(found[:, number, column], guesses, atol=1e-6)
            errors = y[known, column].numpy() - reference.predict((x * scale)[known].numpy())
            total[number] += float((errors**2).sum() + alpha * (reference.coef_**2).sum())
    assert torch.allclose(heads.objective, total, rtol=1e-6, atol=1e-8)


def test_ridge_of_two_points_in_closed_form():
    """(y - w x)^2 for x = y = 1 and x = y = -1: w = 2 / (2 + alpha)."""
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    heads = fit_ridge(Rows(x), x + 3, torch.ones(1).double(), [0.0001, 2.0, 1e9])
    assert heads.weight.flatten().tolist() == pytest.approx([2 / 2.0001, 0.5, 0.0], abs=1e-8)
    assert heads.bias.flatten().tolist() == pytest.approx([3, 3, 3])


def test_a_target_of_which_nothing_is_known_is_refused():
    with pytest.raises(SepNormError, match="a known value of every target"):
        fit_ridge(Rows(torch.randn(9, 2)), torch.full((9, 1), float("nan")), torch.ones(2).double(), [1.0])


def test_small_passes_have_one_thread_and_large_ones_all():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with few_threads(1000):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with few_threads(2**40):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
