"""Metrics are what their domain says of them, whatever users call their files."""

from __future__ import annotations

import pytest

from sepnorm.domains import domains
from sepnorm.domains.molecules.domain import METRICS as MOLECULES
from sepnorm.domains.text.domain import METRICS as TEXT
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.training.configs import RunConfig

SOME = Metrics(
    [
        Metric("average", "average", True, primary=True),
        Metric("set_*", "set {}", True),
        Metric("set_hidden", "hidden", False, shown=False),
        Metric("loss", "final loss", False, kind="training"),
    ]
)


def keys(metrics: list[Metric]) -> list[str]:
    return [metric.key for metric in metrics]


@pytest.mark.parametrize(
    ("key", "better"),
    [
        ("probe_weight_loss_roc_auc", True),  # a table weight_loss.csv
        ("probe_weight_loss_rmse", False),
        ("probe_mae_roc_auc", True),  # a table mae.csv
        ("probe_uniformity_average_precision", True),
        ("probe_roc_auc_mae", False),
        ("test_mae", False),
        ("cls_uniformity", False),
        ("cls_effective_rank", True),
    ],
)
def test_the_name_of_a_table_does_not_turn_a_verdict_round(key, better):
    assert MOLECULES.find(key).higher_is_better is better


def test_the_name_of_a_set_of_pairs_does_not_turn_a_verdict_round():
    assert TEXT.find("cls_loss").higher_is_better is True and TEXT.find("mean_mae").higher_is_better is True
    assert TEXT.find("cls_mean_cosine").higher_is_better is False


def test_a_verdict_follows_the_declaration():
    config = RunConfig(data="x", epochs=1, batch_size=2, learning_rate=0.1)
    key = "probe_weight_loss_roc_auc"
    low = {seed: {key: 0.5 + seed / 1000} for seed in range(3)}
    high = {seed: {key: 0.9 + seed / 900} for seed in range(3)}
    found = Comparison([Arm("ln", config, low), Arm("bn", config, high)], MOLECULES)
    assert found.primary.key == key and found.decisions()["bn"].verdict == "better"
    assert found.as_dict()["decisions"]["bn"]["verdict"] == "better"


def test_what_nobody_declared_gets_no_verdict():
    config = RunConfig(data="x", epochs=1, batch_size=2, learning_rate=0.1)
    low, high = ({seed: {"speed": value + seed / 1000} for seed in range(3)} for value in (0.5, 0.9))
    found = Comparison([Arm("ln", config, low), Arm("bn", config, high)], SOME)
    assert found.difference(found.arms[1], SOME.find("speed")).verdict is None


def test_a_key_of_its_own_comes_before_a_pattern_that_fits_too():
    assert SOME.find("set_hidden") == SOME.declared[2]
    assert SOME.find("set_of_mine").name == "set of mine"


def test_columns_are_in_the_order_of_the_declaration():
    assert keys(SOME.columns(["loss", "set_b", "set_a", "set_hidden", "average", "other"])) == [
        "average",
        "set_b",
        "set_a",
        "loss",
    ]


def test_single_sets_are_columns_where_they_are_few_or_have_no_average():
    many = [f"set_{number}" for number in range(9)]
    assert keys(SOME.columns(["average", *many])) == ["average"]
    assert keys(SOME.columns(many)) == many
    assert keys(SOME.columns(["average", "set_1"])) == ["average"]  # of one set, the average is the set
    assert keys(SOME.columns(["other"])) == ["other"]  # where nothing else is, it is shown


def test_every_domain_has_a_primary_metric_and_says_of_each_which_way_is_better():
    for domain in domains():
        declared = domain.metrics.declared
        assert any(metric.primary for metric in declared), domain.name
        assert all(metric.higher_is_better is not None for metric in declared), domain.name
        assert len({metric.key for metric in declared}) == len(declared), domain.name


def test_which_way_is_better_is_never_guessed():
    with pytest.raises(TypeError, match="higher_is_better"):
        Metric("loss", "loss")


def test_what_is_declared_and_not_reported_is_found():
    assert SOME.missing(["average", "set_a", "set_hidden", "loss", "other"]) is None
    assert SOME.missing(["average", "set_a", "set_hidden"]).key == "loss"
    assert SOME.missing(["average", "set_hidden", "loss"]) is None  # a pattern takes any key that fits
    two = Metrics([Metric("acc_*", "{}", True, primary=True), Metric("mae", "MAE", False, primary=True)])
    assert two.missing(["acc_a"]) is None and two.missing(["mae"]) is None  # one of several primary ones decides
    assert two.missing(["accuracy"]).key == "acc_*"
