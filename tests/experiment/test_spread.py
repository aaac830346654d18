from __future__ import annotations

import math

import pytest
import torch

from sepnorm.experiment.spread import spread_of, stacked


def test_models_and_test_set_are_told_apart():
    """Differences whose parts are known: of models 0.02, of a test set of 400 samples 0.5 / 20."""
    generator = torch.Generator().manual_seed(0)
    seeds, samples = 4000, 400
    models = 0.02 * torch.randn(seeds, 1, generator=generator, dtype=torch.float64)
    common = torch.randn(
        1, samples, generator=generator, dtype=torch.float64
    )  # hard and easy samples are so for all seeds
    noise = 0.5 * torch.randn(seeds, samples, generator=generator, dtype=torch.float64)
    found = spread_of(0.1 + models + common + noise)
    assert found.models == pytest.approx(0.02, rel=0.06)
    assert found.test == pytest.approx(0.5 / math.sqrt(samples), rel=0.02)
    assert found.total == pytest.approx(math.hypot(0.02, 0.025), rel=0.04)
    assert found.low < found.total < found.high


def test_the_interval_holds_the_true_spread_in_95_of_100():
    generator = torch.Generator().manual_seed(1)
    inside = 0
    for _ in range(2000):
        gaps = torch.randn(6, 1, generator=generator, dtype=torch.float64).expand(6, 3)
        found = spread_of(gaps)
        inside += found.low <= 1.0 <= found.high
        assert found.test == pytest.approx(0, abs=1e-9) and found.models == pytest.approx(found.total)
    assert 0.935 < inside / 2000 < 0.965


def test_one_seed_says_nothing():
    assert all(math.isnan(value) for value in vars(spread_of(torch.ones(1, 5))).values())


def test_seeds_of_both_are_paired():
    right = {2: torch.tensor([True, False]), 0: torch.tensor([True, True])}
    baseline = {0: torch.tensor([False, True]), 2: torch.tensor([True, True]), 5: torch.tensor([True, True])}
    assert stacked(right, baseline).tolist() == [[1.0, 0.0], [0.0, -1.0]]
