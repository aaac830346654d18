from __future__ import annotations

import math

import pytest
import torch

from sepnorm import SepNormError
from sepnorm.geometry import epps_pulley, high_norm_share, koleo


def closed_form(z: torch.Tensor) -> float:
    """The statistic of Epps and Pulley over the number of samples (count,), by its sums over pairs."""
    n = len(z)
    pairs = (-(z[:, None] - z).square() / 2).exp().sum() / n**2
    return float(pairs - math.sqrt(2) / n * (-z.square() / 4).exp().sum() + 1 / math.sqrt(3))


@pytest.mark.parametrize("shape", ["normal", "offset", "two points", "uniform"])
def test_epps_pulley_is_its_closed_form_in_one_dimension(shape):
    x = {
        "normal": torch.randn(300, 1),
        "offset": torch.randn(300, 1) + 2,
        "two points": torch.tensor([[-1.0], [1.0]] * 40),
        "uniform": torch.rand(300, 1),
    }[shape].double()
    z = (x / x.square().mean().sqrt())[:, 0]
    assert epps_pulley(x, directions=5) == pytest.approx(min(closed_form(z), closed_form(-z)), rel=1e-4)
    assert epps_pulley(7 * x, directions=5) == pytest.approx(epps_pulley(x, directions=5), rel=1e-9)


def test_epps_pulley_is_the_mean_over_directions():
    x = torch.randn(200, 3, dtype=torch.float64)
    x = x / x.square().mean().sqrt()
    generator = torch.Generator().manual_seed(4)
    to = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    expected = sum(closed_form(x @ direction / direction.norm()) for direction in to.T) / 8
    assert epps_pulley(x, directions=8, seed=4) == pytest.approx(expected, rel=1e-3)


def test_epps_pulley_sees_every_illness():
    x = torch.randn(2000, 16)
    loud = x.clone()
    loud[:, 3] *= 30
    healthy = epps_pulley(x)
    assert healthy < 1e-3
    for ill in (x + 2, torch.randn(2000, 2) @ torch.randn(2, 16), loud, torch.ones(300, 16)):
        assert epps_pulley(ill) > 20 * healthy
    assert math.isnan(epps_pulley(torch.zeros(5, 3)))


def test_koleo_is_the_log_distance_of_neighbours():
    angles = torch.arange(12) * 2 * math.pi / 12
    circle = torch.stack([angles.cos(), angles.sin()], 1).double()
    assert koleo(circle * torch.rand(12, 1)) == pytest.approx(math.log(2 * math.sin(math.pi / 12)), abs=1e-6)
    assert koleo(torch.eye(7)) == pytest.approx(math.log(2) / 2)
    assert koleo(torch.ones(4, 3)) == pytest.approx(math.log(1e-8))
    x = torch.randn(100, 5, dtype=torch.float64)
    unit = x / x.norm(dim=1, keepdim=True)
    gaps = torch.cdist(unit, unit) + 9 * torch.eye(100)
    assert koleo(x) == pytest.approx(float(gaps.amin(1).log().mean()), rel=1e-6)
    assert koleo(x).stderr == pytest.approx(float(gaps.amin(1).log().std()) / 10, rel=1e-6)


def test_high_norm_share_counts_what_is_three_times_the_median():
    x = torch.nn.functional.normalize(torch.randn(100, 8), dim=1)
    x[:4] *= 3.1
    x[4:9] *= 2.9
    assert high_norm_share(x) == 0.04
    assert high_norm_share(x, 2) == pytest.approx(0.09)
    with pytest.raises(SepNormError, match="at least 1"):
        high_norm_share(x, 0.5)
