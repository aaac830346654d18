from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sepnorm import SepNormError
from sepnorm.geometry import alpha_req, lidar


def with_spectrum(values: list[float]) -> torch.Tensor:
    """Rows (2 n, n) around 0 whose covariance has these eigenvalues, up to one factor, along rotated axes."""
    roots = torch.tensor(values, dtype=torch.float64).sqrt().diag()
    turn = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64)).Q
    return torch.cat([roots, -roots]) @ turn


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.5])
def test_alpha_is_the_exponent_of_a_power_law_whatever_its_scale_and_mean(alpha):
    x = with_spectrum([i**-alpha for i in range(1, 33)])
    for changed in (x, 1e-3 * x, x + 5):
        assert alpha_req(changed) == pytest.approx(alpha, abs=1e-6)
    assert alpha_req(x.numpy()) == pytest.approx(alpha, abs=1e-6)


def test_alpha_is_the_slope_that_numpy_fits_with_equal_weight_for_each_octave():
    x = torch.randn(400, 20, dtype=torch.float64) * torch.linspace(1, 5, 20)
    values = np.linalg.eigvalsh(np.cov(x.numpy().T))[::-1]
    index = np.arange(1, 21)
    slope = np.polyfit(np.log(index), np.log(values), 1, w=index**-0.5)[0]  # its weights are squared
    assert alpha_req(x) == pytest.approx(-slope, rel=1e-6)


def test_alpha_leaves_out_what_is_rounding_and_is_nan_where_nothing_can_be_fitted():
    x = with_spectrum([1, 1 / 2, 1 / 3, 1 / 4, *[1e-14] * 20])
    assert alpha_req(x) == pytest.approx(1, abs=1e-6)
    assert math.isnan(alpha_req(torch.randn(50, 1) * torch.randn(1, 8)))
    assert math.isnan(alpha_req(torch.ones(20, 8)))


def test_lidar_counts_the_dimensions_that_tell_groups_apart():
    means = torch.eye(16, dtype=torch.float64)[:4] * 3
    means = torch.cat([means, -means])  # 8 groups, in 4 dimensions
    noise = torch.randn(50, 16, dtype=torch.float64)
    noise = torch.linalg.qr(noise - noise.mean(0)).Q  # of covariance c times one, exactly
    x = torch.cat([mean + noise for mean in means])
    groups = [i for i in range(8) for _ in range(50)]
    assert lidar(x, groups) == pytest.approx(4, abs=1e-6)
    assert lidar(x, torch.tensor(groups)) == lidar(x.numpy(), [str(g) for g in groups])


def test_lidar_is_that_of_its_definition():
    x = torch.randn(120, 6, dtype=torch.float64)
    groups = np.arange(120) % 5
    x += torch.randn(5, 6, dtype=torch.float64)[groups]
    rows = x.numpy()
    means = np.stack([rows[groups == g].mean(0) for g in range(5)])
    within = sum((rows[groups == g] - means[g]).T @ (rows[groups == g] - means[g]) for g in range(5)) / 115
    between = np.cov(means.T, bias=True)
    values = np.linalg.eigvals(np.linalg.inv(within + 1e-4 * np.eye(6)) @ between).real.clip(0)
    p = values / values.sum()
    expected = np.exp(-sum(q * np.log(q) for q in p if q > 1e-12))
    assert lidar(x, groups.tolist()) == pytest.approx(expected, rel=1e-5)


def test_lidar_refuses_groups_that_say_nothing():
    x = torch.randn(6, 3)
    with pytest.raises(SepNormError, match="found 5 for 6"):
        lidar(x, [1] * 5)
    for groups in ([1] * 6, range(6)):
        with pytest.raises(SepNormError, match="groups of several embeddings"):
            lidar(x, groups)
