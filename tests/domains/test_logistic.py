from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from sepnorm import SepNormError
from sepnorm.domains import linear_heads, logistic
from sepnorm.domains.linear_heads import Rows
from sepnorm.domains.logistic import fit_binary, fit_classes
from sepnorm.domains.probes import STRENGTHS


def objective(weight: Tensor, bias: Tensor, rows: Tensor, labels: Tensor, strength: float) -> float:
    """Of weights (dim, classes), or (dim, 1) for two classes, by its definition, in float64."""
    outputs = rows.double() @ weight + bias
    if outputs.shape[1] == 1:
        losses = torch.nn.functional.softplus(-outputs[:, 0] * (2 * labels - 1))
    else:
        losses = -outputs.log_softmax(1).gather(1, labels[:, None])
    return float(losses.sum() + weight.square().sum() / (2 * strength))


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(found.data)[order], torch.tensor(found.target)[order]


def flowers() -> tuple[Tensor, Tensor]:
    """As many features and about as many classes as the [CLS] of flowers has, and as uneven."""
    x, y = make_classification(
        7500,
        128,
        n_informative=40,
        n_redundant=60,
        n_classes=100,
        n_clusters_per_class=1,
        class_sep=1.5,
        random_state=0,
    )
    return torch.tensor(x) * torch.logspace(0, -1, 128) + 2, torch.tensor(y)


def sentences() -> tuple[Tensor, list[str]]:
    """Sentences of news and what a singular value decomposition of their words makes of them."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    from sepnorm.domains.text.lee import lee_sentences

    texts = lee_sentences()
    words = TfidfVectorizer(min_df=2).fit_transform(texts)
    return 5 * torch.tensor(TruncatedSVD(60, random_state=0).fit_transform(words)), texts


def polarity() -> tuple[Tensor, Tensor]:
    """Two classes, as reviews have."""
    rows, texts = sentences()
    return rows, torch.tensor([int(any(sign.isdigit() for sign in text)) for text in texts])


def questions() -> tuple[Tensor, Tensor]:
    """Six classes of different size, as questions have."""
    rows, texts = sentences()
    words = ["police", "government", "australia", "palestinian", "people"]
    return rows, torch.tensor([next((i for i, w in enumerate(words) if w in text.lower()), 5) for text in texts])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("make", "strengths"),
    [
        (digits, STRENGTHS),
        pytest.param(flowers, (0.01, 0.1), marks=pytest.mark.slow),
        (polarity, STRENGTHS),
        (questions, STRENGTHS),
    ],
)
def test_the_solution_is_that_of_scikit_learn(make, strengths, dtype):
    """By its objective, by its outputs, and by what it guesses for samples it has not seen."""
    rows, labels = make()
    rows = rows.to(dtype)
    count = 4 * len(rows) // 5
    train, scale = Rows(rows[:count]), rows[:count].double().square().mean().sqrt()
    heads = fit_classes(train, labels[:count], train.overall_scale().expand(len(strengths), -1), strengths)
    tested = heads.outputs(rows[count:])
    scaled = rows.double() / scale
    for number, strength in enumerate(strengths):
        reference = LogisticRegression(C=strength, tol=1e-8, max_iter=20_000)
        reference.fit(scaled[:count].numpy(), labels[:count].numpy())
        weight, bias = torch.from_numpy(reference.coef_.T), torch.from_numpy(reference.intercept_)
        wanted = objective(weight, bias, scaled[:count], labels[:count], strength)
        rounded = 1e-6 if dtype == torch.float64 else 1e-5  # losses near 0 have the rounding of 1
        assert float(heads.objective[number]) == pytest.approx(wanted, rel=rounded)
        own, own_bias = heads.weight[number] * scale, heads.bias[number] - heads.mean @ heads.weight[number]
        if len(reference.classes_) == 2:
            own, own_bias = 2 * own[:, 1:], 2 * own_bias[1:]
        found = objective(own, own_bias, scaled[:count], labels[:count], strength)
        assert found == pytest.approx(wanted, rel=1e-6)
        guesses = torch.from_numpy(reference.predict(scaled[count:].numpy()))
        accuracy, ours = ((g == labels[count:]).double().mean() for g in (guesses, tested[:, number].argmax(1)))
        assert float(ours) == pytest.approx(float(accuracy), abs=0.002 + 1e-9)


def standardised(count: int = 60, dim: int = 5, classes: int = 3) -> tuple[Rows, Tensor, Tensor]:
    rows = torch.randn(count, dim, dtype=torch.float64)
    labels = (torch.arange(count) % classes)[torch.randperm(count)]
    rows[:, 0] += labels
    found = Rows(rows)
    return found, labels, found.own_scale()


def test_two_points_in_closed_form():
    """x = -1 of class 0 and x = 1 of class 1: of 2 log(1 + e^-w) + w^2 / (2 C), w = 2 C / (1 + e^w)."""
    rows = Rows(torch.tensor([[-1.0], [1.0]], dtype=torch.float64))
    strengths = (0.01, 1.0, 100.0)
    heads = fit_classes(rows, torch.tensor([0, 1]), torch.ones(3, 1, dtype=torch.float64), strengths)
    for number, strength in enumerate(strengths):
        low, high = 0.0, 2 * strength
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if middle < 2 * strength / (1 + math.exp(middle)) else (low, middle)
        assert heads.weight[number].flatten().tolist() == pytest.approx([-low / 2, low / 2], abs=1e-4)
        assert heads.bias[number].tolist() == pytest.approx([0, 0], abs=1e-6)


def test_an_endless_penalty_leaves_the_shares_of_the_classes():
    rows = Rows(torch.randn(60, 4, dtype=torch.float64))
    labels = torch.tensor([0] * 30 + [1] * 20 + [2] * 10)
    heads = fit_classes(rows, labels, rows.own_scale()[None], [1e-12])
    assert float(heads.weight.abs().max()) < 1e-9
    assert heads.bias[0].softmax(0).tolist() == pytest.approx([3 / 6, 2 / 6, 1 / 6], abs=1e-5)
    assert float(heads.objective) == pytest.approx(-sum(n * math.log(n / 60) for n in (30, 20, 10)))
    two = fit_binary(rows, (labels > 0).double()[:, None], rows.own_scale()[None], [1e-12])
    assert float(two.bias.sigmoid()) == pytest.approx(0.5)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_slope_vanishes_at_the_minimum(classes):
    rows, labels, scale = standardised(classes=classes)
    heads = fit_classes(rows, labels, scale.expand(2, -1), [0.1, 100.0])
    x = torch.cat([part for part, _ in rows.chunks()]) * scale
    for number, strength in enumerate([0.1, 100.0]):
        weight = heads.weight[number] / scale[:, None]
        errors = (x @ weight + heads.bias[number]).softmax(1) - torch.nn.functional.one_hot(labels)
        penalty = (2 if classes == 2 else 1) * weight / strength  # of two classes that of one output, shared by both
        assert float((x.T @ errors + penalty).abs().max()) < 5e-3
        assert float(errors.sum(0).abs().max()) < 5e-3


@pytest.mark.parametrize("classes", [2, 4])
def test_chunks_give_what_the_whole_gives(classes, monkeypatch):
    rows, labels, _ = standardised(400, 7, classes)
    x, kept = rows.features, torch.arange(400)[torch.arange(400) % 5 != 1]

    def solve() -> linear_heads.Heads:
        some = Rows(x)
        return fit_classes(some, labels[kept], some.own_scale().expand(3, -1), [0.01, 1.0, 100.0], kept)

    whole = solve()
    monkeypatch.setattr(linear_heads, "_ROWS", (16, 23))
    for resident in (2**30, 0):
        monkeypatch.setattr(linear_heads, "_RESIDENT", resident)
        parts = solve()
        assert torch.allclose(parts.weight, whole.weight, atol=1e-6)
        assert torch.allclose(parts.bias, whole.bias, atol=1e-6)
        assert torch.allclose(parts.objective, whole.objective, rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 5])
def test_several_strengths_and_scales_at_once_are_as_one_at_a_time(classes):
    rows, labels, own = standardised(150, 6, classes)
    scales = torch.stack([own, own, rows.overall_scale(), rows.overall_scale()])
    strengths = [0.01, 100.0, 0.1, 10.0]
    together = fit_classes(rows, labels, scales, strengths)
    for number, strength in enumerate(strengths):
        alone = fit_classes(rows, labels, scales[number : number + 1], [strength])
        assert torch.allclose(alone.weight[0], together.weight[number], atol=1e-6)
        assert float(alone.objective) == pytest.approx(float(together.objective[number]), rel=1e-9)
        again = together[[number]]
        assert torch.equal(again.weight[0], together.weight[number]) and len(again.objective) == 1


def test_heads_that_do_not_fit_in_memory_together_are_fitted_in_turn(monkeypatch):
    rows, labels, scale = standardised(200, 6, 4)
    strengths = [1.0, 10.0, 100.0]
    monkeypatch.setattr(logistic, "_FIRST", 3)
    whole = fit_classes(rows, labels, scale.expand(3, -1), strengths)
    for name in ("_BLOCK_BYTES", "_MOST_BYTES"):  # for one at a time, and for none: then the axes have to do
        monkeypatch.setattr(logistic, name, 0)
        found = fit_classes(rows, labels, scale.expand(3, -1), strengths)
        assert torch.allclose(found.weight, whole.weight, atol=2e-3)
        assert torch.allclose(found.objective, whole.objective, rtol=1e-7)


def test_curvature_measured_on_some_of_the_rows_finds_the_same_minimum(monkeypatch):
    rows, labels, scale = standardised(500, 6, 4)
    kept = torch.arange(0, 500, 2)
    monkeypatch.setattr(logistic, "_FIRST", 3)
    whole = fit_classes(rows, labels[kept], scale[None], [100.0], kept)
    for name in ("_LOOKED_AT", "_A_DIMENSION", "_A_CLASS"):
        monkeypatch.setattr(logistic, name, 10)
    found = fit_classes(rows, labels[kept], scale[None], [100.0], kept)
    assert torch.allclose(found.weight, whole.weight, atol=1e-4)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_start_at_the_minimum_takes_no_steps_and_another_ends_there(classes):
    rows, labels, scale = standardised(200, 6, classes)
    heads = fit_classes(rows, labels, scale[None], [10.0])
    again = fit_classes(rows, labels, scale[None], [10.0], start=heads)
    assert int(again.steps) <= 1 and torch.allclose(again.weight, heads.weight, atol=1e-4)
    moved = fit_classes(Rows(rows.features + 3), labels, scale[None], [10.0], start=heads)
    assert torch.allclose(moved.weight, heads.weight, atol=1e-4)
    wanted = fit_classes(rows, labels, scale[None], [1.0])
    assert torch.allclose(fit_classes(rows, labels, scale[None], [1.0], start=heads).weight, wanted.weight, atol=1e-4)
    if classes > 2:
        heads.weight += torch.randn(1, 6, 1)  # the same for every class, which changes no probability
        assert torch.allclose(
            fit_classes(rows, labels, scale[None], [1.0], start=heads).weight, wanted.weight, atol=1e-4
        )


def test_targets_with_missing_values_are_each_a_regression_on_what_is_known():
    rows, labels, scale = standardised(200, 6, 3)
    targets = torch.stack([(labels == 0).double(), (labels == 2).double()], dim=1)
    targets[::3, 0] = math.nan
    heads = fit_binary(rows, targets, scale.expand(2, -1), [0.1, 10.0])
    x = rows.features * scale
    outputs = heads.outputs(rows.features)
    for column in range(2):
        known = targets[:, column].isfinite()
        for number, strength in enumerate([0.1, 10.0]):
            reference = LogisticRegression(C=strength, tol=1e-8, max_iter=5000)
            reference.fit(x[known].numpy(), targets[known, column].numpy())
            wanted = torch.from_numpy(reference.decision_function(x.numpy()))
            assert torch.allclose(outputs[:, number, column], wanted, atol=2e-3)


@pytest.mark.parametrize("classes", [2, 3])
def test_constant_features_change_nothing(classes):
    rows, labels, scale = standardised(80, 5, classes)
    more = Rows(torch.cat([rows.features, torch.full((80, 2), 7.3, dtype=torch.float64)], dim=1))
    heads = fit_classes(more, labels, more.own_scale()[None], [1.0])
    wanted = fit_classes(rows, labels, scale[None], [1.0])
    assert torch.allclose(heads.weight[:, :5], wanted.weight, atol=1e-5)
    assert not bool(heads.weight[:, 5:].any())


def test_features_that_are_all_constant_leave_the_shares_of_the_classes():
    rows = Rows(torch.ones(9, 3))
    heads = fit_classes(rows, torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2]), rows.own_scale()[None], [1.0])
    assert heads.bias[0].softmax(0).tolist() == pytest.approx([4 / 9, 3 / 9, 2 / 9], abs=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_fewer_samples_than_dimensions(classes):
    rows, labels, scale = standardised(12, 40, classes)
    heads = fit_classes(rows, labels, scale.expand(2, -1), [0.01, 100.0])
    x = (rows.features - rows.mean) * scale
    for number, strength in enumerate([0.01, 100.0]):
        reference = LogisticRegression(C=strength, tol=1e-10, max_iter=20_000).fit(x.numpy(), labels.numpy())
        weight, bias = torch.from_numpy(reference.coef_.T), torch.from_numpy(reference.intercept_)
        wanted = objective(weight, bias, x, labels, strength)
        assert float(heads.objective[number]) == pytest.approx(wanted, rel=1e-6)
    assert bool((heads.outputs(rows.features)[:, 1].argmax(1) == labels).all())


def test_what_cannot_be_fitted_is_refused():
    rows = Rows(torch.randn(6, 2))
    scale = rows.own_scale()[None]
    with pytest.raises(SepNormError, match="two or more classes with a training sample each, found 1 of 1"):
        fit_classes(rows, torch.zeros(6, dtype=torch.long), scale, [1.0])
    with pytest.raises(SepNormError, match="found 2 of 3"):
        fit_classes(rows, torch.tensor([0, 0, 0, 2, 2, 2]), scale, [1.0])
    with pytest.raises(SepNormError, match="samples of both classes"):
        fit_binary(rows, torch.ones(6, 1), scale, [1.0])
