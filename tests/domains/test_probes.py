from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sepnorm import SepNormError
from sepnorm.domains.probes import (
    STRENGTHS,
    Split,
    choosing,
    knn_probe,
    linear_probe,
    linear_probes,
    linear_scores,
    probe,
)


def clouds(classes: int, dim: int = 6, distance: float = 8.0, each: int = 20) -> Split:
    centres = torch.nn.functional.one_hot(torch.arange(classes), max(dim, classes)).float() * distance
    labels = torch.arange(classes).repeat(each)

    def draw() -> torch.Tensor:
        return centres[labels] + torch.randn(len(labels), centres.shape[1])

    return Split(draw(), labels, draw(), labels)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("standardise", [False, True])
def test_separable_clouds_are_told_apart(classes, standardise):
    split = clouds(classes, dim=classes)
    found = linear_probe(split, standardise=standardise)
    assert found["top1"] == 1.0
    assert found["penalty"] in [1 / c for c in STRENGTHS]
    assert knn_probe(split) == 1.0


@pytest.mark.parametrize("standardise", [False, True])
def test_random_labels_give_chance(standardise):
    train, test = torch.randn(400, 8), torch.randn(400, 8)
    split = Split(train, torch.randint(4, (400,)), test, torch.randint(4, (400,)))
    assert abs(linear_probe(split, standardise=standardise)["top1"] - 0.25) < 0.08
    assert abs(knn_probe(split) - 0.25) < 0.08


@pytest.mark.parametrize("standardise", [False, True])
def test_the_probe_is_that_of_scikit_learn_with_its_choice(standardise):
    """On digits: every strength on what is not held out, the best of them on all, then the test samples."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    digits = load_digits()
    order = torch.randperm(len(digits.target))
    x, labels = torch.tensor(digits.data, dtype=torch.float32)[order], torch.tensor(digits.target)[order]
    x[:, 5:20] *= 20
    split = Split(x[:1297], labels[:1297], x[1297:], labels[1297:])
    rows = split.train.double()
    mean = rows.mean(0) if standardise else torch.zeros(64)
    scale = rows.std(0).clamp(min=1e-8) if standardise else rows.square().mean().sqrt()
    train, test = ((part.double() - mean) / scale for part in (split.train, split.test))
    held_out = choosing(split.train_labels)

    def fit(which: torch.Tensor, strength: float) -> LogisticRegression:
        head = LogisticRegression(C=strength, tol=1e-7, max_iter=10_000)
        return head.fit(train[which].numpy(), split.train_labels[which].numpy())

    def score(strength: float) -> tuple[float, float]:
        reference = fit(~held_out, strength)
        return reference.score(train[held_out].numpy(), split.train_labels[held_out].numpy()), -strength

    best = max(STRENGTHS, key=score)
    found = linear_probe(split, standardise=standardise)
    wanted = fit(torch.ones(1297, dtype=torch.bool), best).score(test.numpy(), split.test_labels.numpy())
    assert found["penalty"] == 1 / best
    assert found["top1"] == pytest.approx(wanted, abs=0.002 + 1e-9)


def test_both_probes_together_are_each_by_itself():
    split = clouds(6, distance=1.5)
    split.train[:, 0] *= 30
    split.test[:, 0] *= 30
    together = [each.scores for each in linear_probes(split, [False, True])]
    assert together == [linear_probe(split, standardise=each) for each in (False, True)]
    assert together[0] != together[1]
    found = probe(split, ["linear"])
    assert set(found) == {"linear_top1", "linear_top5", "linear_bn_top1", "linear_bn_top5"}
    right = linear_scores(split)[1]
    assert right.shape == split.test_labels.shape and float(right.double().mean()) == found["linear_top1"]
    assert found["linear_bn_top1"] == together[1]["top1"] and found["linear_top5"] == together[0]["top5"]


def test_classes_that_only_the_test_has_are_missed():
    split = clouds(4, dim=4)
    few = split.train_labels < 3
    found = Split(split.train[few], split.train_labels[few], split.test, split.test_labels)
    assert linear_probe(found, standardise=True)["top1"] == knn_probe(found) == 0.75
    few = split.train_labels > 0
    found = Split(split.train[few], split.train_labels[few], split.test, split.test_labels)
    assert linear_probe(found, standardise=False)["top1"] == 0.75


@pytest.mark.parametrize("standardise", [False, True])
def test_constant_features_are_of_no_account(standardise):
    split = clouds(3, distance=2.0)
    more = torch.cat([split.train, torch.full((60, 1), 0.0)], dim=1)
    tested = torch.cat([split.test, torch.randn(60, 1)], dim=1)  # it has been 0 in training
    wide = Split(more, split.train_labels, tested, split.test_labels)
    found, plain = (linear_probe(each, standardise=standardise) for each in (wide, split))
    assert found["top1"] == pytest.approx(plain["top1"], abs=0.04)


def test_features_in_a_file_are_probed_as_those_in_memory(tmp_path, monkeypatch):
    from sepnorm.domains import linear_heads

    split = clouds(4, distance=1.5)
    file = np.memmap(tmp_path / "x", np.float32, "w+", shape=tuple(split.train.shape))
    file[:] = split.train.numpy()
    wanted = [each.scores for each in linear_probes(split, [False, True])]
    monkeypatch.setattr(linear_heads, "_RESIDENT", 0)
    monkeypatch.setattr(linear_heads, "_ROWS", (16, 16))
    found = Split(torch.from_numpy(file), split.train_labels, split.test, split.test_labels)
    assert [each.scores for each in linear_probes(found, [False, True])] == wanted


def test_top5_is_there_only_with_more_than_five_classes():
    assert "top5" not in linear_probe(clouds(5), standardise=True)
    found = linear_probe(clouds(8, distance=1.0), standardise=True)
    assert found["top1"] < found["top5"] <= 1.0


def test_labels_need_not_be_numbered_from_zero():
    split = clouds(3)
    names = torch.tensor([7, 40, 12])
    renamed = Split(split.train, names[split.train_labels], split.test, names[split.test_labels])
    assert linear_probe(renamed, standardise=False)["top1"] == knn_probe(renamed) == 1.0


def test_standardising_helps_where_one_dimension_dominates():
    labels = torch.arange(2).repeat(100)

    def draw() -> torch.Tensor:
        informative = (2 * labels - 1)[:, None] * 1e-3 + 2e-4 * torch.randn(200, 1)
        return torch.cat([1e3 * torch.randn(200, 1), informative], dim=1)

    split = Split(draw(), labels, draw(), labels)
    assert linear_probe(split, standardise=True)["top1"] > 0.95
    assert linear_probe(split, standardise=False)["top1"] < 0.7


@pytest.mark.parametrize("standardise", [False, True])
def test_one_scale_for_all_features_changes_nothing(standardise):
    split = clouds(4, distance=1.5)
    scaled = Split(1000 * split.train, split.train_labels, 1000 * split.test, split.test_labels)
    assert linear_probe(split, standardise=standardise) == linear_probe(scaled, standardise=standardise)
    assert knn_probe(split) == knn_probe(scaled)


def test_the_penalty_is_chosen_without_the_test_set():
    split = clouds(4, distance=2.0)
    shuffled = split.test_labels[torch.randperm(len(split.test_labels))]
    other = linear_probe(Split(split.train, split.train_labels, split.test, shuffled), standardise=True)
    found = linear_probe(split, standardise=True)
    assert found["penalty"] == other["penalty"]
    assert found["top1"] > other["top1"]
    elsewhere = Split(split.train, split.train_labels, torch.randn_like(split.test), split.test_labels)
    assert linear_probe(elsewhere, standardise=True)["penalty"] == found["penalty"]


def test_the_order_of_the_classes_does_not_matter_to_what_is_held_out():
    split = clouds(5, distance=2.0, each=40)  # 0, 1, 2, 3, 4, 0, 1, ...: every fifth is of one class
    by_class = split.train_labels.argsort(stable=True)
    ordered = Split(split.train[by_class], split.train_labels[by_class], split.test, split.test_labels)
    found, other = (linear_probe(part, standardise=True) for part in (split, ordered))
    assert found["penalty"] == other["penalty"]
    assert found["top1"] == pytest.approx(other["top1"], abs=0.01)
    assert found["penalty"] < 1 / min(STRENGTHS)


def test_a_class_with_one_sample_is_trained_on():
    rows = torch.randn(11, 3) + 10
    labels = torch.tensor([1] + [0] * 10)  # the first sample is the only one of its class
    assert linear_probe(Split(rows, labels, rows, labels), standardise=False)["top1"] >= 10 / 11
    with pytest.raises(SepNormError, match="at least two training samples of some class"):
        linear_probe(Split(rows[:2], labels[:2], rows, labels), standardise=False)


@pytest.mark.parametrize("k", [1, 5, 20, 500])
def test_nearest_neighbours_vote_as_in_a_plain_reference(k):
    train, test = torch.randn(60, 5) + 0.5, torch.randn(1100, 5) + 0.5  # more than are compared at a time
    train_labels, test_labels = torch.randint(4, (60,)) * 3, torch.randint(4, (1100,)) * 3
    right = 0
    rows = train.double().numpy()
    for row, label in zip(test.double().numpy(), test_labels.tolist(), strict=True):
        cosines = rows @ row / np.linalg.norm(rows, axis=1) / np.linalg.norm(row)
        votes: dict[int, float] = {}
        for i in np.argsort(-cosines)[:k]:
            votes[int(train_labels[i])] = votes.get(int(train_labels[i]), 0.0) + math.exp(cosines[i] / 0.07)
        right += max(votes, key=votes.__getitem__) == label
    assert knn_probe(Split(train, train_labels, test, test_labels), k) == right / 1100


def test_a_near_neighbour_outvotes_two_far_ones():
    train = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8]])
    split = Split(train, torch.tensor([0, 1, 1]), torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    assert knn_probe(split, 3) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_features_that_are_not_finite_are_refused(bad):
    split = clouds(2)
    broken = split.train.clone()
    broken[3, 1] = bad
    with pytest.raises(SepNormError, match="training features hold NaN or infinity"):
        Split(broken, split.train_labels, split.test, split.test_labels)
    with pytest.raises(SepNormError, match="test features hold NaN or infinity"):
        Split(split.train, split.train_labels, broken, split.test_labels)


def test_a_single_class_is_refused():
    split = clouds(2)
    with pytest.raises(SepNormError, match="at least two classes"):
        Split(split.train, torch.zeros_like(split.train_labels), split.test, split.test_labels)
