from __future__ import annotations

import gzip

import pytest
import torch
from models import text_model

from sepnorm import SepNormError
from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.text.classification import Classification, Part
from sepnorm.domains.text.embedding import sentence_embedder
from sepnorm.domains.text.evaluation import evaluate_text, score_sets
from sepnorm.domains.text.sets import GROUPS, SETS
from sepnorm.domains.text.sts import Pairs, sts_score

WORDS = "the cat dog sat on mat and number a b c d e".split()


def sentence(number: int) -> str:
    return " ".join(WORDS[(number * (i + 3) + i) % len(WORDS)] for i in range(2 + number % 6))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    text_model(folder)
    return str(folder)


@pytest.fixture
def table(tmp_path) -> str:
    rows = [f"test\t{number % 6}\t{sentence(number)}\t{sentence(number * 3 + 1)}" for number in range(30)]
    path = tmp_path / "stsb.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(["split\tscore\tsentence1\tsentence2", *rows]).encode()))
    return str(path)


@pytest.mark.parametrize("pooling", ["cls", "mean", "moments"])
def test_one_file_gives_a_score_for_its_set_and_nothing_is_printed(model, table, capfd, pooling):
    found = evaluate_text(model, ["sts"], table, pooling)
    pairs = Pairs(
        [sentence(i) for i in range(30)], [sentence(i * 3 + 1) for i in range(30)], [float(i % 6) for i in range(30)]
    )
    expected = sts_score(pairs, sentence_embedder(open_encoder(model), pooling))
    assert found == {"stsb": pytest.approx(expected)} and -1 < expected < 1
    assert capfd.readouterr() == ("", "")


def test_what_is_wrong_is_said_before_the_model_is_opened(table):
    with pytest.raises(SepNormError, match="unknown evaluation set 'stsx'"):
        evaluate_text("no/such-model", ["stsx"], table)
    with pytest.raises(SepNormError, match="cannot be opened as a model"):
        evaluate_text("no/such-model", ["stsb"], table)
    with pytest.raises(SepNormError, match=r"unknown pooling .max.: choose from cls, mean"):
        evaluate_text("no/such-model", ["stsb"], table, "max")


def by_number(sentences: list[str]) -> torch.Tensor:
    return torch.stack([torch.randn(4, generator=torch.Generator().manual_seed(int(s))) for s in sentences])


def some(name: str) -> Pairs | Classification:
    numbers = [str(i) for i in range(60)]
    if SETS[name].group == "sts":
        return Pairs(numbers, numbers[::-1], [float(i * 7 % 60) for i in range(60)])
    labels = [str(int(row[0] > 0)) for row in by_number(numbers)]
    part = Part(numbers, [], labels) if name != "mrpc" else Part(numbers, numbers[::-1], labels)
    return Classification({"train": part, "test": part})


def test_an_average_is_given_where_a_group_is_complete():
    sets = {name: some(name) for name in SETS}
    scores = score_sets(sets, by_number)
    assert list(scores) == [*SETS, "mrpc_f1", "sts_average", "transfer_average"]
    for group in GROUPS:
        members = [scores[name] for name in SETS if SETS[name].group == group]
        assert scores[f"{group}_average"] == pytest.approx(sum(members) / 7)
    del sets["cr"], sets["sts13"]
    assert set(scores) - set(score_sets(sets, by_number)) == {"cr", "sts13", "sts_average", "transfer_average"}


def test_a_classification_scores_its_accuracy():
    assert score_sets({"mr": some("mr")}, by_number) == {"mr": pytest.approx(1, abs=0.1)}
