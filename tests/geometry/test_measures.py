from __future__ import annotations

import copy
import math
import pickle
import warnings

import numpy
import pytest
import scipy.integrate
import scipy.special
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sepnorm import SepNormError, SepNormWarning
from sepnorm.geometry import (
    alignment,
    anisotropy,
    dominance,
    effective_rank,
    isoscore,
    participation_ratio,
    rankme,
    singular_values,
    uniform_uniformity,
    uniformity,
    variance,
)

RANKS = [effective_rank, rankme, participation_ratio, isoscore]
PAIRWISE = [uniformity, anisotropy, dominance]
ALL = [*RANKS, *PAIRWISE, singular_values, variance]

clouds = st.builds(
    lambda seed, count, dim, shift: cloud(seed, count, dim, shift),
    seed=st.integers(0, 2**16),
    count=st.integers(2, 60),
    dim=st.integers(1, 12),
    shift=st.sampled_from([0.0, 0.3, 5.0]),
)


def cloud(seed: int, count: int, dim: int, shift: float = 0.0) -> torch.Tensor:
    """Gaussian with a spread that differs between directions, off the origin by ``shift``."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) @ mix + shift


def rotation(dim: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q


def cosines(x: torch.Tensor) -> torch.Tensor:
    """Of all pairs of different rows."""
    first, second = torch.triu_indices(len(x), len(x), 1)
    unit = F.normalize(x.double(), dim=1, eps=0)
    return (unit[first] * unit[second]).sum(1)


def textbook_isoscore(x: torch.Tensor) -> float:
    """The steps of algorithm 1 of Rudman et al., from the covariance."""
    d = x.shape[1]
    eigenvalues = torch.linalg.eigvalsh(torch.cov(x.double().T)).clamp(min=0)
    normalised = math.sqrt(d) * eigenvalues / eigenvalues.norm()
    defect = (normalised - torch.ones(d)).norm().item() / math.sqrt(2 * (d - math.sqrt(d)))
    used = (d - defect**2 * (d - math.sqrt(d))) ** 2 / d
    return (used - 1) / (d - 1)


def ignoring_few(function, x, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="there are fewer samples")
        return function(x, **options)


@pytest.mark.parametrize("dim", [2, 3, 8, 64])
def test_points_uniform_on_the_sphere_reach_the_ideal(dim):
    x = torch.randn(4000, dim)
    found, cosine = uniformity(x), anisotropy(x)
    assert 0 < found.stderr < 0.02
    assert abs(found - uniform_uniformity(dim)) < 4 * found.stderr
    assert 0 < cosine.stderr < 0.001
    assert abs(cosine) < 4 * cosine.stderr


@pytest.mark.parametrize("t", [0.5, 2, 5])
@pytest.mark.parametrize("dim", [2, 3, 8, 64, 768])
def test_the_ideal_equals_an_integral_over_the_sphere(dim, t):
    def density(angle):
        return math.sin(angle) ** (dim - 2)

    def potential(angle):
        return math.exp(-2 * t * (1 - math.cos(angle))) * density(angle)

    above, below = (scipy.integrate.quad(f, 0, math.pi, points=[math.pi / 2])[0] for f in (potential, density))
    assert uniform_uniformity(dim, t) == pytest.approx(math.log(above / below), rel=1e-6)
    assert uniform_uniformity(dim, t) == pytest.approx(
        -2 * t + math.log(scipy.special.hyp0f1(dim / 2, t * t)), rel=1e-9
    )


def test_the_ideal_in_one_dimension_is_that_of_two_points_and_in_many_that_of_right_angles():
    assert uniform_uniformity(1) == pytest.approx(math.log((1 + math.exp(-8)) / 2), rel=1e-12)
    assert uniform_uniformity(10**7) == pytest.approx(-4, abs=1e-6)


def test_copies_of_one_point():
    x = torch.randn(1, 16).repeat(300, 1)
    assert uniformity(x) == pytest.approx(0, abs=1e-6)
    assert uniformity(x) <= 0
    assert uniformity(x).stderr == pytest.approx(0, abs=1e-6)
    assert anisotropy(x) == pytest.approx(1, abs=1e-6)
    assert anisotropy(x) <= 1
    assert anisotropy(x).quantiles[0.01] == pytest.approx(1, abs=1e-6)
    assert effective_rank(x) == pytest.approx(1, abs=1e-6)
    assert singular_values(x)[0].item() == pytest.approx(x.double().norm().item(), rel=1e-9)
    assert isoscore(x) == participation_ratio(x) == effective_rank(x, center=True) == 0
    assert variance(x).per_dimension.abs().max() < 1e-24
    assert variance(x).dead == 16


@pytest.mark.parametrize("half", [1, 2, 50])
def test_two_antipodes(half):
    point = torch.randn(1, 5)
    x = torch.cat([point, -point]).repeat(half, 1)
    same = (half - 1) / (2 * half - 1)  # of the partners of a point
    assert uniformity(x) == pytest.approx(math.log(same + (1 - same) * math.exp(-8)), abs=1e-6)
    assert uniformity(x, 3) == pytest.approx(math.log(same + (1 - same) * math.exp(-12)), abs=1e-6)
    assert anisotropy(x) == pytest.approx(2 * same - 1, abs=1e-6)
    assert anisotropy(x) >= -1
    assert ignoring_few(effective_rank, x) == pytest.approx(1, abs=1e-6)
    assert ignoring_few(participation_ratio, x) == pytest.approx(1, abs=1e-6)
    assert ignoring_few(isoscore, x) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("lengths", [1, 7], ids=["unit", "long"])
def test_an_orthonormal_set(lengths):
    x = lengths * rotation(12)
    assert uniformity(x) == pytest.approx(-4, abs=1e-6)
    assert anisotropy(x) == pytest.approx(0, abs=1e-6)
    assert effective_rank(x) == pytest.approx(12, abs=1e-6)
    assert participation_ratio(x, center=False) == pytest.approx(12, abs=1e-6)
    assert participation_ratio(x) == pytest.approx(11, abs=1e-6)  # centring takes one direction away


@pytest.mark.parametrize("rank", [1, 3, 10])
def test_gaussians_of_rank_k(rank):
    x = torch.randn(4000, rank, dtype=torch.float64) @ rotation(32)[:rank]
    assert effective_rank(x) == pytest.approx(rank, rel=0.01)
    assert participation_ratio(x) == pytest.approx(rank, rel=0.02)
    assert isoscore(x) == pytest.approx((rank - 1) / 31, abs=0.01)
    values = singular_values(x)
    assert values.shape == (32,)
    assert values[rank - 1] > 0.9 * values[0]
    assert values[rank:].max() < 1e-12 * values[0]


@pytest.mark.parametrize("shape", [(3, 40), (40, 40), (5000, 17), (20000, 3), (1, 4), (6, 1)])
@pytest.mark.parametrize("center", [False, True], ids=["raw", "centred"])
def test_singular_values_equal_a_direct_decomposition(shape, center):
    x = torch.randn(shape) * torch.rand(shape[1]) + 2 * torch.randn(shape[1])
    direct = x.double() - x.double().mean(0) if center else x.double()
    expected = torch.linalg.svdvals(direct)
    found = singular_values(x, center=center)
    assert found.shape == (min(shape),)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12 * float(expected.max() + x.abs().max()))


def test_small_singular_values_survive_where_a_gram_matrix_loses_them():
    expected = torch.logspace(0, -12, 13, dtype=torch.float64)
    left = torch.linalg.qr(torch.randn(30000, 13, dtype=torch.float64)).Q
    x = left @ torch.diag(expected) @ rotation(13)
    torch.testing.assert_close(singular_values(x), expected, rtol=1e-2, atol=0)
    gram = torch.linalg.eigvalsh(x.T @ x).clamp(min=0).sqrt().flip(0)
    assert (gram / expected - 1).abs().max() > 1


def test_centred_values_survive_a_mean_far_from_the_origin():
    x = torch.randn(9000, 6, dtype=torch.float64)
    torch.testing.assert_close(
        singular_values(x + 1e7, center=True), torch.linalg.svdvals(x - x.mean(0)), rtol=1e-7, atol=0
    )


@pytest.mark.parametrize("shape", [(50, 7), (9, 30), (4000, 12)])
def test_ranks_equal_their_formulas(shape):
    x = torch.randn(shape, dtype=torch.float64) * torch.rand(shape[1], dtype=torch.float64) + 0.5
    for center, rows in ((False, x), (True, x - x.mean(0))):
        s = torch.linalg.svdvals(rows)
        s = s[s > 1e-12 * s[0]]
        p, v = s / s.sum(), s**2
        assert ignoring_few(effective_rank, x, center=center) == pytest.approx((-(p * p.log()).sum()).exp().item())
        assert ignoring_few(participation_ratio, x, center=center) == pytest.approx(v.sum() ** 2 / (v**2).sum())
    s = torch.linalg.svdvals(x)
    for eps in (1e-7, 1e-2):
        p = s / s.sum() + eps
        assert ignoring_few(rankme, x, eps=eps) == pytest.approx((-(p * p.log()).sum()).exp().item(), rel=1e-9)
    assert ignoring_few(rankme, x) == pytest.approx(ignoring_few(effective_rank, x), rel=1e-3)


@pytest.mark.parametrize("shape", [(60, 2), (400, 9), (5, 20)])
def test_isoscore_equals_the_textbook(shape):
    x = torch.randn(shape) * torch.rand(shape[1]) + 3
    assert ignoring_few(isoscore, x) == pytest.approx(textbook_isoscore(x), abs=1e-6)


def test_isoscore_of_even_and_of_onefold_variance():
    cross = torch.cat([torch.eye(9), -torch.eye(9)])
    assert isoscore(cross + 4) == pytest.approx(1, abs=1e-6)
    assert isoscore(torch.outer(torch.randn(50), torch.randn(9)) + 4) == pytest.approx(0, abs=1e-6)
    assert isoscore(torch.tensor([[1.0], [2.0]])) == 1
    assert isoscore(torch.ones(4, 1)) == 0


def test_dominance_finds_planted_rogue_dimensions():
    x = torch.randn(500, 20) + 0.2
    x[:, 13] += 10
    x[:, 4] -= 5
    found = dominance(x)
    unit = F.normalize(x.double(), dim=1)
    first, second = torch.triu_indices(500, 500, 1)
    parts = (unit[first] * unit[second]).mean(0)
    assert found.dimensions[:2] == (13, 4)
    assert found.dimensions == tuple(parts.argsort(descending=True)[:3].tolist())
    assert found.one == pytest.approx((parts[13] / parts.sum()).item(), rel=1e-6)
    assert found.three == pytest.approx((parts.sort().values[-3:].sum() / parts.sum()).item(), rel=1e-6)
    assert found.one > 0.6


def test_there_is_nothing_to_dominate_where_the_mean_cosine_is_zero():
    x = torch.randn(50, 6)
    found = dominance(torch.cat([x, -x]))
    assert math.isnan(found.one) and math.isnan(found.three)
    assert len(found.dimensions) == 3


def test_variance_and_dead_dimensions():
    x = torch.randn(5000, 8) * 2 + 1
    x[:, 2], x[:, 5] = 3.0, 1e-4 * torch.randn(5000)
    x[:, 6] = 0.1 * torch.randn(5000)
    found = variance(x)
    torch.testing.assert_close(found.per_dimension, x.double().var(0), rtol=1e-9, atol=1e-15)
    assert found.dead == 2


@pytest.mark.parametrize("scale", [1e200, 1.0, 1e-200])
def test_dead_dimensions_do_not_depend_on_scale(scale):
    x = torch.randn(100, 5, dtype=torch.float64)
    x[:, 3] = 0
    assert variance(x * scale).dead == 1


@pytest.mark.parametrize("alpha", [1, 2, 3.5])
def test_alignment_equals_a_direct_computation(alpha):
    x = torch.randn(3000, 400)
    y = x + torch.randn(3000, 400)
    expected = (F.normalize(x.double()) - F.normalize(y.double())).norm(dim=1).pow(alpha).mean().item()
    assert alignment(x, y, alpha) == pytest.approx(expected, rel=1e-9)
    assert alignment(x, 3 * x, alpha) == pytest.approx(0, abs=1e-6)
    assert alignment(x, -x, alpha) == pytest.approx(2**alpha, abs=1e-6)


def test_alignment_leaves_out_pairs_without_a_direction():
    x, y = torch.randn(2, 50, 6)
    expected = alignment(x[3:], y[3:])
    x[0, 2], y[1, 3], y[2] = math.nan, math.inf, 0
    with pytest.warns(SepNormWarning, match=r"3 of 50 pairs hold NaN, infinity or a zero vector and were left out\."):
        assert alignment(x, y) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(SepNormError, match="no pair is left for alignment"):
        alignment(x[:3], y[:3])


@pytest.mark.parametrize("kind", [torch.tensor, list], ids=["tensors", "lists"])
def test_alignment_refuses_different_shapes(kind):
    with pytest.raises(SepNormError, match=r"shapes must be equal, found \(1, 2\) and \(2, 2\)\."):
        alignment(kind([[1.0, 0.0]]), kind([[1.0, 0.0], [0.0, 1.0]]))


@pytest.mark.parametrize("t", [0.5, 2])
def test_uniformity_and_mean_cosine_equal_a_direct_computation(t):
    x = torch.randn(1500, 10) + 0.4
    expected = cosines(x)
    potentials = (-t * (2 - 2 * expected)).exp()
    assert uniformity(x, t) == pytest.approx(potentials.mean().log().item(), rel=1e-9)
    found = anisotropy(x)
    assert found == pytest.approx(expected.mean().item(), rel=1e-9)
    for p, value in found.quantiles.items():
        assert value == pytest.approx(expected.quantile(p).item(), abs=0.01)
    assert list(found.quantiles) == [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]


def test_quantiles_of_few_pairs_are_exact():
    x = torch.randn(200, 10) + 0.4
    for p, value in anisotropy(x).quantiles.items():
        assert value == pytest.approx(cosines(x).quantile(p).item(), abs=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.7], ids=["isotropic", "anisotropic"])
@pytest.mark.parametrize("measure", [uniformity, anisotropy])
@pytest.mark.parametrize("most", [80, 40], ids=["all", "sampled"])
def test_standard_errors_are_as_large_as_the_spread_of_repetitions(measure, shift, most):
    found = [
        measure(torch.randn(80, 6) * torch.linspace(1, 1 + shift, 6) + shift, max_samples=most) for _ in range(250)
    ]
    spread = torch.tensor([float(value) for value in found], dtype=torch.float64).std().item()
    stated = sum(value.stderr for value in found) / len(found)
    assert 0.6 < stated / spread < 1.6


def test_standard_errors_equal_the_formula_of_hoeffding():
    n = 30
    x = torch.randn(n, 4, dtype=torch.float64) + 0.5
    unit = F.normalize(x)
    apart = ~torch.eye(n, dtype=torch.bool)
    for kernel, found, scale in (
        (unit @ unit.T, anisotropy(x), 1.0),
        ((-2 * torch.cdist(unit, unit).square()).exp(), uniformity(x), math.exp(uniformity(x))),
    ):
        values = kernel[apart].view(n, n - 1)
        one = values.mean(1).var() - values.var(correction=0) / (n - 1)
        both = values.var(correction=0)
        expected = ((4 * (n - 2) * one + 2 * both) / (n * (n - 1))).sqrt().item() / scale
        assert found.stderr == pytest.approx(expected, rel=1e-9)


def test_a_sample_is_near_the_whole_and_says_what_it_is():
    x = torch.randn(6000, 12) + 0.5
    whole, some, other = uniformity(x), uniformity(x, max_samples=800, seed=3), uniformity(x, max_samples=800, seed=4)
    assert whole.samples == whole.total == 6000
    assert (some.samples, some.total, some.seed, other.seed) == (800, 6000, 3, 4)
    assert some == uniformity(x, max_samples=800, seed=3) != other
    assert some.stderr == pytest.approx(whole.stderr * math.sqrt(6000 / 800), rel=0.3)
    for found in (some, other):
        assert 0 < abs(found - whole) < 4 * found.stderr
    cone, again = anisotropy(x, max_samples=800, seed=3), anisotropy(x, max_samples=800, seed=4)
    assert cone == again == anisotropy(x)
    assert (cone.samples, cone.total, cone.seed) == (800, 6000, 3)
    assert cone.stderr == pytest.approx(anisotropy(x).stderr, rel=0.3)
    assert cone.quantiles != again.quantiles
    assert cone.quantiles == anisotropy(x, max_samples=800, seed=3).quantiles
    assert cone.quantiles[0.05] == pytest.approx(anisotropy(x).quantiles[0.05], abs=0.05)


@pytest.mark.parametrize("seed", [-1, 2**40, 2**63 - 1])
def test_any_seed_will_do(seed):
    x = torch.randn(300, 4)
    found = uniformity(x, max_samples=100, seed=seed)
    assert found.seed == seed
    assert abs(found - uniformity(x)) < 5 * found.stderr


@pytest.mark.parametrize("most", [1, 0, -5])
@pytest.mark.parametrize("measure", [uniformity, anisotropy])
def test_a_sample_without_pairs_is_refused(measure, most):
    with pytest.raises(SepNormError, match=f"a sample has at least two embeddings, found max_samples={most}"):
        measure(torch.randn(10, 3), max_samples=most)


@settings(max_examples=40, deadline=None)
@given(x=clouds, seed=st.integers(0, 99), scale=st.floats(1e-6, 1e6))
def test_rotation_scaling_and_order_change_nothing(x, seed, scale):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    changed = (scale * x @ rotation(x.shape[1], seed))[order]
    centred = [(f, {"center": True}) for f in (effective_rank, participation_ratio)]
    plain = [(f, {}) for f in (uniformity, anisotropy, isoscore, effective_rank, rankme)]
    for measure, options in [*plain, *centred, (participation_ratio, {"center": False})]:
        expected = ignoring_few(measure, x, **options)
        assert ignoring_few(measure, changed, **options) == pytest.approx(expected, rel=1e-6, abs=1e-6), (
            measure.__name__
        )


@settings(max_examples=40, deadline=None)
@given(x=clouds, shift=st.floats(-100, 100))
def test_translation_leaves_what_is_centred_alone(x, shift):
    for measure, options in (
        (isoscore, {}),
        (participation_ratio, {}),
        (effective_rank, {"center": True}),
    ):
        expected = ignoring_few(measure, x, **options)
        assert ignoring_few(measure, x + shift, **options) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    torch.testing.assert_close(variance(x + shift).per_dimension, variance(x).per_dimension, rtol=1e-6, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(x=clouds)
def test_measures_stay_within_their_bounds(x):
    count, dim = x.shape
    close = 1e-9
    for center in (False, True):
        assert 1 - close <= ignoring_few(effective_rank, x, center=center) <= min(count - center, dim) + close
        assert 1 - close <= ignoring_few(participation_ratio, x, center=center) <= min(count - center, dim) + close
        assert (
            ignoring_few(participation_ratio, x, center=center)
            <= ignoring_few(effective_rank, x, center=center) + close
        )
    assert -8 - close <= uniformity(x) <= 0
    assert uniformity(x).stderr >= 0
    found = anisotropy(x)
    assert max(-1, -1 / (count - 1) - close) <= found <= 1
    assert list(found.quantiles.values()) == sorted(found.quantiles.values())
    assert -1 <= found.quantiles[0.01] <= found.quantiles[0.99] <= 1
    assert -close <= ignoring_few(isoscore, x) <= 1 + close
    assert (variance(x).per_dimension >= 0).all() and 0 <= variance(x).dead <= dim
    values = singular_values(x)
    assert len(values) == min(count, dim)
    assert (values >= 0).all() and (values.diff() <= 0).all()
    share = dominance(x).one
    assert math.isnan(share) or share >= 1 / dim - close


@pytest.mark.parametrize("measure", [*RANKS, uniformity, anisotropy])
def test_arrays_tensors_lists_files_and_any_precision_give_the_same(measure, tmp_path):
    x = torch.randint(-9, 9, (40, 6), dtype=torch.float64)
    expected = measure(x)
    numpy.save(tmp_path / "x.npy", x.float().numpy())
    inputs = [x.to(kind) for kind in (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int64)]
    inputs += [x.numpy().astype(kind) for kind in ("f2", "f4", "f8", ">f4", "i1", "i4", "i8")]
    inputs += [numpy.load(tmp_path / "x.npy", mmap_mode="r"), x.tolist(), x.int().tolist(), x.clone().requires_grad_()]
    inputs += [numpy.asfortranarray(x.numpy()), x.numpy()[::-1][::-1], x.T.contiguous().T]
    for other in inputs:
        assert measure(other) == pytest.approx(float(expected), rel=1e-12)


def test_lists_keep_double_precision():
    x = torch.randn(20, 3, dtype=torch.float64)
    assert uniformity(x.tolist()) == uniformity(x)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "u1", "i8"])
def test_tensors_come_back_for_tensors_and_arrays_for_arrays(kind, tmp_path):
    x = numpy.random.default_rng(0).integers(0, 9, (40, 6)).astype(kind)
    numpy.save(tmp_path / "x.npy", x)
    for rows in (x, numpy.load(tmp_path / "x.npy", mmap_mode="r")):
        assert type(singular_values(rows)) is type(variance(rows).per_dimension) is numpy.ndarray
        assert singular_values(rows).dtype == variance(rows).per_dimension.dtype == numpy.float64
        numpy.testing.assert_allclose(singular_values(rows), numpy.linalg.svd(x.astype("f8"), compute_uv=False))
        numpy.testing.assert_allclose(variance(rows).per_dimension, x.astype("f8").var(0, ddof=1))
    tensor = torch.from_numpy(x)
    assert isinstance(singular_values(tensor), torch.Tensor) and isinstance(
        variance(tensor).per_dimension, torch.Tensor
    )
    assert singular_values(tensor).dtype == variance(tensor).per_dimension.dtype == torch.float64


BAD = {
    "empty": (torch.zeros(0, 5), r"there is nothing to measure: the embeddings are empty, of shape \(0, 5\)"),
    "no dimensions": (numpy.zeros((5, 0)), r"empty, of shape \(5, 0\)"),
    "1-D": (torch.zeros(5), r"\(samples, dimensions\), found the shape \(5,\)"),
    "3-D": (numpy.zeros((2, 3, 4)), r"\(samples, dimensions\), found the shape \(2, 3, 4\)"),
    "nothing": (None, r"\(samples, dimensions\), found a NoneType"),
    "ragged": ([[1.0, 2.0], [3.0]], "numbers in rows of equal length: expected sequence of length 2"),
    "list with None": ([[None, 2.0], [3.0, 1.0]], "numbers in rows of equal length: Could not infer dtype of NoneType"),
    "complex tensor": (torch.ones(3, 2, dtype=torch.complex64), "real numbers, found complex64"),
    "complex array": (numpy.ones((3, 2), dtype=complex), "real numbers, found complex128"),
    "bool": (torch.ones(3, 2, dtype=torch.bool), "real numbers, found bool"),
    "bool array": (numpy.ones((3, 2), dtype=bool), "real numbers, found bool"),
    "objects": (numpy.array([["a", 1], ["b", 2]], dtype=object), "numbers, found an array of object"),
    "strings": (numpy.array([["a", "b"], ["c", "d"]]), "numbers, found an array of <U1"),
    "all NaN": (torch.full((4, 3), math.nan), "every one of the 4 embeddings holds NaN or infinity: nothing can be"),
    "all infinite": (numpy.full((4, 3), numpy.inf), "every one of the 4 embeddings holds NaN or infinity"),
}


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_refused_with_what_is_wrong(bad, measure):
    x, message = BAD[bad]
    with pytest.raises(SepNormError, match=message):
        measure(x)


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_left_out_with_a_warning(measure, wrong):
    x = torch.randn(30, 4) + 1
    expected = measure(x)
    with_wrong = torch.cat([x[:7], torch.tensor([[0.0, 1.0, wrong, 2.0]]), x[7:]])
    with pytest.warns(SepNormWarning, match=r"1 of 31 embeddings hold NaN or infinity and were left out\."):
        found = measure(with_wrong)
    if isinstance(expected, float):
        found, expected = float(found), float(expected)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("measure", PAIRWISE)
def test_zero_vectors_have_no_direction(measure):
    x = torch.randn(30, 4) + 1
    found, expected = measure(torch.cat([torch.zeros(2, 4), x, -torch.zeros(3, 4)])), measure(x)
    if measure is dominance:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    else:
        assert found == pytest.approx(float(expected), rel=1e-12)
        assert found.samples == found.total == 30
    with pytest.raises(SepNormError, match="at least two embeddings that are not zero are needed, found 0"):
        measure(torch.zeros(5, 3))
    with pytest.raises(SepNormError, match="at least two embeddings that are not zero are needed, found 1"):
        measure(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))


def test_nothing_but_zeros_has_rank_zero():
    x = torch.zeros(5, 3)
    assert effective_rank(x) == rankme(x) == participation_ratio(x) == isoscore(x) == 0
    assert variance(x).dead == 3


def test_a_single_row_has_a_line_but_no_pairs():
    x = torch.tensor([[3.0, 4.0]])
    for measure in PAIRWISE:
        with pytest.raises(SepNormError, match="at least two embeddings that are not zero are needed, found 1"):
            measure(x)
    assert ignoring_few(effective_rank, x) == pytest.approx(1)
    assert ignoring_few(participation_ratio, x) == ignoring_few(isoscore, x) == 0
    assert singular_values(x).tolist() == pytest.approx([5.0])
    assert singular_values(x, center=True).tolist() == [0.0]
    assert variance(x).per_dimension.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("measure", RANKS)
def test_fewer_samples_than_dimensions_are_warned_of(measure):
    with pytest.warns(SepNormWarning, match=r"fewer samples \(4\) than dimensions \(5\): a rank is then bounded"):
        measure(torch.randn(4, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure(torch.randn(5, 5))


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e-310])
def test_huge_and_tiny_values_keep_their_directions(scale):
    x = torch.randn(50, 4, dtype=torch.float64) + 0.5
    for measure in (uniformity, anisotropy, *RANKS):
        assert measure(x * scale) == pytest.approx(float(measure(x)), rel=1e-6), measure.__name__
    assert dominance(x * scale).dimensions == dominance(x).dimensions
    assert alignment(x * scale, x.flip(0)) == pytest.approx(alignment(x, x.flip(0)), rel=1e-6)
    mixed = x * torch.tensor([scale, 1.0], dtype=torch.float64).repeat(25)[:, None]
    assert uniformity(mixed) == pytest.approx(uniformity(x), rel=1e-6)


def test_tied_memory_is_not_written_to():
    x = torch.randn(100, 5, dtype=torch.float64)
    before = x.clone()
    for measure in ALL:
        measure(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("measure", [uniformity, anisotropy])
def test_estimates_survive_copying_and_pickling(measure, again):
    found = measure(torch.randn(300, 4), max_samples=100, seed=5)
    twin = again(found)
    assert type(twin) is type(found)
    assert twin == found and isinstance(twin, float)
    assert vars(twin) == vars(found)
    assert (twin.samples, twin.total, twin.seed) == (100, 300, 5)
    assert twin.stderr > 0
