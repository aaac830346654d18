from __future__ import annotations

import json
import math
import warnings

import numpy
import pytest
import torch

from sepnorm import SepNormError, SepNormWarning
from sepnorm.geometry import (
    anisotropy,
    dominance,
    effective_rank,
    isoscore,
    participation_ratio,
    rankme,
    singular_values,
    summary,
    uniform_uniformity,
    uniformity,
    variance,
)


def cone(count: int = 900, dim: int = 10) -> torch.Tensor:
    return torch.randn(count, dim) * torch.linspace(0.2, 2, dim) + 0.4


@pytest.mark.parametrize("most", [8192, 200], ids=["all", "sampled"])
def test_a_summary_equals_the_single_functions(most):
    x = torch.cat([cone(), torch.zeros(2, 10)])
    found = summary(x, max_samples=most, seed=6)
    spread, narrow, strongest = (
        uniformity(x, max_samples=most, seed=6),
        anisotropy(x, max_samples=most, seed=6),
        dominance(x),
    )
    assert (found.count, found.dim, found.sample, found.seed) == (902, 10, spread.samples, 6)
    assert (found.nonfinite, found.zeros, found.duplicates) == (0, 2, 1)
    assert (found.uniformity, found.uniformity_stderr) == (spread, spread.stderr)
    assert found.uniformity_ideal == uniform_uniformity(10)
    assert (found.mean_cosine, found.mean_cosine_stderr) == (narrow, narrow.stderr)
    assert found.cosine_quantiles == {str(p): value for p, value in narrow.quantiles.items()}
    assert (found.dominance_one, found.dominance_three) == (strongest.one, strongest.three)
    assert tuple(found.dominant_dimensions) == strongest.dimensions
    assert found.effective_rank == effective_rank(x)
    assert found.effective_rank_centered == effective_rank(x, center=True)
    assert found.rankme == rankme(x)
    assert found.participation_ratio == participation_ratio(x)
    assert found.isoscore == isoscore(x)
    assert found.singular_values == singular_values(x).tolist()
    assert found.variances == variance(x).per_dimension.tolist()
    assert found.dead_dimensions == variance(x).dead == 0
    lengths = x.double().norm(dim=1)
    assert found.mean_length == pytest.approx(lengths.mean().item(), rel=1e-9)
    assert found.std_length == pytest.approx(lengths.std(correction=0).item(), rel=1e-9)
    assert found.mean_variance == pytest.approx(x.double().var(0).mean().item(), rel=1e-9)


def test_a_file_gives_what_the_array_gives(tmp_path):
    x = cone(20000, 16).numpy()
    numpy.save(tmp_path / "x.npy", x)
    found = summary(numpy.load(tmp_path / "x.npy", mmap_mode="r"), max_samples=500)
    assert (
        found.as_dict()
        == summary(x, max_samples=500).as_dict()
        == summary(torch.from_numpy(x), max_samples=500).as_dict()
    )


def test_a_sample_is_deterministic_for_a_seed_and_said_to_be_one():
    x = cone()
    found, again, other = (summary(x, max_samples=200, seed=seed) for seed in (1, 1, 2))
    assert found.as_dict() == again.as_dict()
    assert found.uniformity != other.uniformity
    assert found.effective_rank == other.effective_rank
    assert abs(found.uniformity - summary(x).uniformity) < 4 * found.uniformity_stderr
    assert found.notes == ["Uniformity and quantiles are over all pairs of 200 embeddings, chosen by the seed 1."]
    assert summary(x).notes == []


def test_a_dict_of_it_survives_json():
    found = summary(cone())
    again = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert again == found.as_dict()
    assert again["effective_rank"] == found.effective_rank
    assert len(again["singular_values"]) == len(again["variances"]) == 10
    assert list(again["cosine_quantiles"]) == ["0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99"]


def test_print_shows_the_figures():
    found = summary(cone(1200))
    shown = str(found)
    for figure in (
        "embeddings           1,200 x 10",
        f"uniformity           {found.uniformity:.3f} ± {found.uniformity_stderr:.3f} (best -3.25)",
        f"mean cosine          {found.mean_cosine:.3f} ± {found.mean_cosine_stderr:.3f} (1 % of pairs below "
        f"{found.cosine_quantiles['0.01']:.2f})",
        f"effective rank       {found.effective_rank:.1f} of 10",
        f"centred, RankMe      {found.effective_rank_centered:.1f}, {found.rankme:.1f}",
        f"participation ratio  {found.participation_ratio:.1f}",
        f"IsoScore             {found.isoscore:.3f}",
        f"dominance, 1 and 3   {found.dominance_one:.2f}, {found.dominance_three:.2f} of the mean cosine",
        "dead dimensions      0 of 10",
        f"length               {found.mean_length:.3g} ± {found.std_length:.2g}",
    ):
        assert figure in shown.splitlines()
    assert "singular_values" not in repr(found)


def test_what_is_unusual_is_noted():
    x = cone(50)
    x[3, 2], x[5], x[6], x[8] = math.nan, 0, 0, x[7]
    with pytest.warns(SepNormWarning, match=r"1 of 50 embeddings hold NaN or infinity and were left out\."):
        found = summary(x)
    assert (found.count, found.nonfinite, found.zeros, found.duplicates) == (49, 1, 2, 2)
    assert found.notes == [
        "1 of 50 embeddings hold NaN or infinity and were left out.",
        "2 embeddings are zero: they have no direction and were left out of cosines and uniformity.",
        "2 embeddings are equal to an earlier one.",
    ]
    assert str(found).endswith("\n".join(found.notes))
    finite = torch.cat([x[:3], x[4:]])
    same = summary(finite)
    assert found.as_dict() | {"nonfinite": 0, "notes": same.notes} == same.as_dict()


def test_constant_embeddings_are_noted():
    found = summary(torch.randn(1, 30).repeat(60, 1))
    assert "The embeddings are constant: no dimension varies between samples." in found.notes
    assert found.uniformity == pytest.approx(0, abs=1e-6)
    assert found.mean_cosine == pytest.approx(1, abs=1e-6)
    assert found.effective_rank == pytest.approx(1, abs=1e-6)
    assert found.participation_ratio == found.isoscore == found.effective_rank_centered == 0
    assert (found.dead_dimensions, found.duplicates) == (30, 59)


def test_embeddings_that_vary_little_are_not_called_constant():
    found = summary(cone() + 1e5)
    assert found.dead_dimensions == 10
    assert found.notes == []


def test_few_embeddings_are_warned_of_and_noted():
    with pytest.warns(SepNormWarning, match=r"fewer samples \(9\) than dimensions \(10\)"):
        found = summary(cone(9))
    assert found.available == 9
    assert found.notes == [
        "There are fewer embeddings (9) than dimensions (10): ranks are bounded by the number of embeddings, compare them "
        "only with ranks from as many."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert summary(cone(10)).available == 10


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e-310])
def test_huge_and_tiny_embeddings_keep_their_shape(scale):
    x = cone().double()
    plain, scaled = summary(x), summary(x * scale)
    for name in ("uniformity", "mean_cosine", "effective_rank", "rankme", "participation_ratio", "isoscore"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name), rel=1e-6), name
    assert scaled.dead_dimensions == 0
    assert scaled.mean_length == pytest.approx(plain.mean_length * scale, rel=1e-9, abs=0)
    assert scaled.notes == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(0, 5), "there is nothing to measure"),
        (torch.zeros(5), r"found the shape \(5,\)"),
        (numpy.zeros((2, 3, 4)), r"found the shape \(2, 3, 4\)"),
        ([[1.0, 2.0], [3.0]], "numbers in rows of equal length"),
        (numpy.ones((3, 2), dtype=complex), "real numbers, found complex128"),
        (torch.ones(3, 2, dtype=torch.bool), "real numbers, found bool"),
        (numpy.array([["a", "b"]], dtype=object), "numbers, found an array of object"),
        (torch.full((4, 3), math.nan), "every one of the 4 embeddings holds NaN or infinity"),
        (torch.zeros(4, 3), "at least two embeddings that are not zero are needed, found 0"),
        (torch.ones(1, 3), "at least two embeddings that are not zero are needed, found 1"),
    ],
)
def test_bad_input_is_refused(bad, message):
    with pytest.raises(SepNormError, match=message):
        summary(bad)


def test_a_sample_without_pairs_is_refused():
    with pytest.raises(SepNormError, match="a sample has at least two embeddings, found max_samples=1"):
        summary(cone(), max_samples=1)
