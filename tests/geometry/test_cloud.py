from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepnorm import SepNormError
from sepnorm.geometry import summarise
from sepnorm.geometry.cloud import Cloud, Directions, Sample, Triangle, chunks

DIVISIONS = [[1] * 700, [700], [699, 1], [1, 699], [350, 350], [256, 256, 188], [13] * 53 + [11]]


def fed(part, rows, sizes):
    for piece in rows.split(sizes):
        part.add(piece)
    return part


@pytest.mark.parametrize("sizes", DIVISIONS, ids=lambda sizes: f"{len(sizes)} parts")
def test_a_sample_does_not_depend_on_how_rows_arrive(sizes):
    x = torch.randn(700, 3)
    whole, parts = fed(Sample(50, seed=2), x, [700]), fed(Sample(50, seed=2), x, sizes)
    assert torch.equal(parts.numbers, whole.numbers)
    assert torch.equal(parts.rows, x[whole.numbers])
    assert len(whole.numbers.unique()) == 50
    assert parts.seen == 700


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 400),
    size=st.integers(2, 100),
    seed=st.integers(-(2**70), 2**70),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_any_division_gives_the_same_sample(count, size, seed, cuts):
    x = torch.arange(count, dtype=torch.float64)[:, None]
    edges = sorted({0, count, *(cut for cut in cuts if cut < count)})
    sizes = [b - a for a, b in itertools.pairwise(edges)]
    whole, parts = fed(Sample(size, seed), x, count), fed(Sample(size, seed), x, sizes)
    assert torch.equal(parts.numbers, whole.numbers)
    assert len(parts.numbers) == min(size, count)
    assert torch.equal(parts.rows[:, 0].long(), parts.numbers)


def test_looking_at_a_sample_early_does_not_change_it():
    x = torch.randn(700, 3)
    looked = Sample(50)
    for piece in x.split(31):
        looked.add(piece)
        assert len(looked.rows) == min(50, looked.seen)
    assert torch.equal(looked.numbers, fed(Sample(50), x, 700).numbers)


def test_every_row_has_the_same_chance_to_be_sampled():
    hits = torch.zeros(100)
    for seed in range(2000):
        hits[fed(Sample(10, seed), torch.zeros(100, 1), 100).numbers] += 1
    # 200 expected, with a deviation of 13.4
    assert hits.min() > 140 and hits.max() < 260
    assert 9 < hits.std() < 18


@pytest.mark.parametrize("sizes", DIVISIONS, ids=lambda sizes: f"{len(sizes)} parts")
def test_figures_do_not_depend_on_how_rows_arrive(sizes):
    x = torch.randn(700, 12) * torch.linspace(0.1, 3, 12) + 0.5
    x[40], x[41, 3], x[42] = 0, torch.nan, x[43]
    whole = summarise(fed(Cloud(100, seed=1), x, [700]))
    parts = summarise(fed(Cloud(100, seed=1), x, sizes))
    assert (parts.count, parts.nonfinite, parts.zeros, parts.duplicates) == (699, 1, 1, 1)
    for field in dataclasses.fields(whole):
        expected, found = (getattr(summary, field.name) for summary in (whole, parts))
        if isinstance(expected, list | dict | str) and field.name not in ("singular_values", "variances"):
            assert found == expected, field.name
        else:
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), field.name


def test_numbers_of_the_sample_are_row_numbers_also_after_rows_that_are_not_finite():
    x = torch.randn(300, 4)
    x[::3] = torch.inf
    cloud = fed(Cloud(60), x, 50)
    rows, numbers = cloud.sampled()
    assert torch.equal(rows, x[numbers])
    assert (numbers % 3 > 0).all()
    assert len(cloud.sample.numbers) == 60 > len(numbers) > 20


@pytest.mark.parametrize("sizes", [[1] * 90, [90], [4, 86], [45, 45], [7] * 12 + [6]], ids=lambda s: f"{len(s)} parts")
@pytest.mark.parametrize("dim", [1, 20, 200])
def test_the_triangle_holds_mean_variance_and_singular_values(dim, sizes):
    x = torch.randn(90, dim, dtype=torch.float64) + 3
    triangle = fed(Triangle(), x, sizes)
    torch.testing.assert_close(triangle.mean, x.mean(0))
    torch.testing.assert_close(triangle.variance, x.var(0))
    torch.testing.assert_close(triangle.singular_values(), torch.linalg.svdvals(x), rtol=1e-10, atol=1e-10)
    centred = torch.linalg.svdvals(x - x.mean(0))
    torch.testing.assert_close(triangle.singular_values(center=True), centred, rtol=1e-10, atol=1e-10)
    assert triangle.count == 90
    before = triangle.mean
    triangle.add(x + 1)  # more may come after looking
    torch.testing.assert_close(triangle.mean, before + 0.5)


def test_equal_rows_do_not_vary_until_another_comes():
    triangle = fed(Triangle(), torch.randn(1, 64).repeat(5000, 1), 999)
    assert not triangle.varies
    assert triangle.singular_values(center=True).tolist() == [0.0] * 64
    triangle.add(torch.zeros(1, 64))
    assert triangle.varies
    assert triangle.singular_values(center=True)[0] > 1


def test_directions_hold_what_each_dimension_adds_to_the_mean_cosine():
    x = torch.randn(40, 5, dtype=torch.float64) + 1
    directions = fed(Directions(5), torch.cat([x, torch.zeros(3, 5)]), 9)
    unit = x / x.norm(dim=1, keepdim=True)
    first, second = torch.triu_indices(40, 40, 1)
    torch.testing.assert_close(directions.contributions(), (unit[first] * unit[second]).mean(0))
    assert directions.mean_cosine == pytest.approx((unit[first] * unit[second]).sum(1).mean().item())
    assert (directions.count, directions.zeros) == (40, 3)
    assert directions.lengths[0].item() == pytest.approx(x.norm(dim=1).sum().item())
    assert directions.lengths[1].item() == pytest.approx(x.square().sum().item())


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_duplicates_are_counted_across_parts(kind):
    x = torch.randn(500, 8).to(kind)
    x[:, 0] = 0
    twins = x[:20].clone()
    twins[:, 0] = -0.0
    cloud = fed(Cloud(), torch.cat([x, twins, x[:5]]), 77)
    assert cloud.duplicates == 25


@pytest.mark.parametrize(
    "rows",
    [
        torch.randint(-100, 100, (20000, 32), generator=torch.Generator().manual_seed(1)),
        torch.randint(0, 2, (20000, 64), generator=torch.Generator().manual_seed(1)) * 2 - 1,
        torch.randn(20000, 16, generator=torch.Generator().manual_seed(1)).half(),
    ],
    ids=["whole numbers", "signs", "halves"],
)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_rows_that_differ_in_high_bits_alone_are_not_duplicates(rows, kind):
    assert len(rows.unique(dim=0)) == len(rows)
    assert fed(Cloud(), rows.to(kind), 5000).duplicates == 0


@pytest.mark.parametrize("size", [1, 50, 100, 300])
def test_duplicates_are_looked_for_among_the_first_alone(size, monkeypatch):
    monkeypatch.setattr("sepnorm.geometry.cloud._HASHED", 250)
    x = torch.randn(300, 4)
    x[200:240], x[260:] = x[:40], x[:40]
    assert fed(Cloud(), x, size).duplicates == 40


def test_rows_in_another_order_are_not_duplicates():
    cloud = Cloud()
    cloud.add(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 3.0, 2.0]]))
    assert cloud.duplicates == 0


def test_parts_of_different_dimensions_are_refused():
    cloud = Cloud()
    cloud.add(torch.randn(5, 4))
    with pytest.raises(SepNormError, match="vectors of 3 dimensions came after vectors of 4: all must have the same"):
        cloud.add(torch.randn(5, 3))


def test_nothing_finite_is_refused():
    cloud = Cloud()
    cloud.add(torch.full((5, 4), torch.nan))
    assert cloud.duplicates == 0
    with pytest.raises(SepNormError, match="every one of the 5 embeddings holds NaN or infinity"):
        summarise(cloud)


def test_what_was_fed_may_be_overwritten():
    x = torch.randn(300, 5, dtype=torch.float64)
    cloud, buffer = Cloud(), torch.empty(10, 5, dtype=torch.float64)
    for piece in x.split(10):
        cloud.add(buffer.copy_(piece))
    buffer.fill_(torch.nan)
    assert summarise(cloud).as_dict() == summarise(fed(Cloud(), x, 10)).as_dict()


@pytest.mark.parametrize("shape", [(1, 1), (5000, 1), (5000, 7), (300, 5000)])
def test_chunks_are_all_rows_in_order(shape):
    x = torch.randn(shape)
    parts = list(chunks(x))
    assert torch.equal(torch.cat(parts), x)
    assert all(len(part) >= 256 for part in parts[:-1])
    assert torch.equal(torch.cat(list(chunks(x.numpy()))), x)
