from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import oas

from sepnorm import SepNormError
from sepnorm.geometry.linear_maps import (
    Moments,
    all_but_the_top,
    centring,
    nothing,
    shrinkage,
    standardising,
    whitening,
)


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(500, 8, dtype=torch.float64) @ torch.randn(8, 8, dtype=torch.float64) + 100


def moments_of(rows: torch.Tensor, parts: int = 3) -> Moments:
    found = Moments(rows.shape[1])
    for part in rows.chunk(parts):
        found.add(part)
    return found


def test_moments_are_those_of_all_rows_and_of_those_that_are_left(rows):
    for found, kept in ((moments_of(rows), rows), (moments_of(rows).without(rows[:200]), rows[200:])):
        assert found.count == len(kept)
        assert torch.allclose(found.mean, kept.mean(0), atol=1e-10)
        assert torch.allclose(found.covariance, torch.cov(kept.T, correction=0), rtol=1e-9, atol=1e-9)


def test_shrinkage_is_that_of_scikit_learn(rows):
    for some in (rows, rows[:20], rows[:9]):
        assert shrinkage(moments_of(some, 1)) == pytest.approx(oas(some.numpy())[1], rel=1e-9)


def test_each_map_does_what_its_name_says(rows):
    moments = moments_of(rows)
    assert torch.equal(nothing(moments)(rows), rows)
    assert centring(moments)(rows).mean(0).abs().max() < 1e-10
    scaled = standardising(moments)(rows)
    assert torch.allclose(scaled.std(0, correction=0), torch.ones(8, dtype=torch.float64))
    _, vectors = np.linalg.eigh(np.cov(rows.numpy().T))
    cut = all_but_the_top(moments, 2)(rows)
    assert np.abs(cut.numpy() @ vectors[:, -2:]).max() < 1e-6
    assert np.allclose(cut.numpy() @ vectors[:, 0], (rows - rows.mean(0)).numpy() @ vectors[:, 0])


def test_whitening_divides_directions_by_their_shrunk_deviation(rows):
    moments = moments_of(rows)
    values = torch.linalg.eigvalsh(torch.cov(rows.T, correction=0))
    share = shrinkage(moments)
    shrunk = (1 - share) * values + share * values.mean()
    for power in (0.5, 1.0):
        found = torch.linalg.eigvalsh(torch.cov(whitening(moments, power)(rows).T, correction=0))
        expected = values / shrunk**power * values.mean() ** power
        assert torch.allclose(found, expected.sort().values, rtol=1e-6)
    narrow = whitening(moments, 1.0, 3)(rows)
    full = whitening(moments, 1.0)(rows)
    assert narrow.shape == (500, 3)
    assert torch.cov(narrow.T)[0, 1].abs() < 1e-9
    back = torch.linalg.lstsq(full, narrow)  # the strongest directions of the same map, in other axes
    assert torch.allclose(full @ back.solution, narrow, atol=1e-8)


def test_a_dimension_that_is_constant_is_not_enlarged():
    rows = torch.randn(100, 5)
    rows[:, 2] = 3
    for make in (standardising, whitening):
        found = make(moments_of(rows))(rows + 1e-6)
        assert found.isfinite().all() and found[:, 2].abs().max() < 0.1


def test_single_precision_is_as_good_as_double_far_from_the_origin(rows):
    far = (rows + 1000).float()
    for make in (centring, standardising, whitening, lambda moments: whitening(moments, 1.0, 3)):
        found = make(moments_of(far))
        assert torch.allclose(found.in_single_precision()(far), found(far.double()).float(), rtol=1e-4, atol=1e-4)


def test_transform_takes_one_vector_or_many_of_either_kind(rows):
    found = whitening(moments_of(rows))
    many = found.transform(rows)
    assert torch.equal(many, found(rows)) and torch.allclose(found.transform(rows[3]), many[3])
    as_array = found.transform(rows.numpy())
    assert isinstance(as_array, np.ndarray) and np.allclose(as_array, many.numpy())
    assert found.transform(rows[:0]).shape == (0, 8)
    assert found.transform(rows.float()).dtype == torch.float32
    with pytest.raises(SepNormError, match="takes vectors of 8 dimensions"):
        found.transform(rows[:, :5])
