from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from sepnorm import SepNormError
from sepnorm.domains.text import transfer
from sepnorm.domains.text.classification import (
    Classification,
    Part,
    read_mrpc,
    read_polarity,
    read_sst,
    read_trec,
    task_of,
)
from sepnorm.domains.text.transfer import transfer_scores


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{i}" for i in range(start, start + count)]


def noise(sentences: list[str], dim: int = 6) -> torch.Tensor:
    """For each number its own random vector (dim,)."""
    return torch.stack([torch.randn(dim, generator=torch.Generator().manual_seed(int(s))) for s in sentences])


def by_sign(texts: list[str]) -> list[str]:
    return [str(int(value > 0)) for value in noise(texts)[:, 0]]


def one_part(count: int) -> Part:
    texts = numbered(count)
    return Part(texts, [], by_sign(texts))


def test_what_a_line_separates_is_found_by_ten_folds():
    assert transfer_scores(Classification({"all": one_part(300)}), noise)["accuracy"] > 0.95


def test_labels_that_have_nothing_to_do_with_the_sentences_are_guessed_at_chance():
    texts = numbered(600)
    labels = [str(int(value > 0)) for value in noise([str(int(text) + 10_000) for text in texts])[:, 0]]
    scores = transfer_scores(Classification({"all": Part(texts, [], labels)}), noise)
    assert 0.4 < scores["accuracy"] < 0.6 and set(scores) == {"accuracy"}


def test_three_classes_with_a_split_of_their_own():
    def parts(start: int, count: int) -> Part:
        texts = numbered(count, start)
        return Part(texts, [], ["abc"[int(row[:3].argmax())] for row in noise(texts)])

    task = Classification({"train": parts(0, 300), "validation": parts(300, 60), "test": parts(400, 100)})
    assert transfer_scores(task, noise)["accuracy"] > 0.9
    del task.parts["validation"]
    assert transfer_scores(task, noise)["accuracy"] > 0.9


@pytest.mark.parametrize("validation", [True, False])
def test_guesses_do_not_depend_on_the_labels_that_are_tested(validation):
    """Labels of half the training samples are noise, so that the penalty matters; test labels turned over give 1 - accuracy."""
    train, test = one_part(200), Part(numbered(101, 500), [], by_sign(numbered(101, 500)))
    train.labels[::2] = ["0", "1"] * 50
    parts = {"train": train, "test": test} | ({"validation": one_part(40)} if validation else {})
    accuracy = transfer_scores(Classification(parts), noise)["accuracy"]
    turned = Part(test.first, [], ["1" if label == "0" else "0" for label in test.labels])
    assert transfer_scores(Classification(parts | {"test": turned}), noise)["accuracy"] == pytest.approx(1 - accuracy)


def test_the_penalty_is_the_best_one_on_the_validation_part(monkeypatch):
    tried: list[list[float]] = []

    def guess(train, labels, strengths, test):
        tried.append(list(strengths))
        return torch.tensor([[int(strength in (0.01, 1.0)) for strength in strengths]] * len(test))

    monkeypatch.setattr(transfer, "_guesses", guess)
    parts = {"train": one_part(30), "validation": Part(["1", "2", "3"], [], ["1"] * 3), "test": Part(["4"], [], ["0"])}
    assert transfer_scores(Classification(parts), noise) == {"accuracy": 0.0}  # chosen on validation, wrong on the test
    assert tried == [list(transfer.STRENGTHS), [0.01]]  # of two that are as good the stronger penalty


def test_the_regression_is_that_of_scikit_learn_on_features_of_mean_square_one(monkeypatch):
    monkeypatch.setattr(transfer, "STRENGTHS", (0.1,))
    train, test = one_part(150), Part(numbered(80, 500), [], by_sign(numbered(80, 500)))
    rows, tested = 7 * noise(train.first), 7 * noise(test.first)
    scale = rows.square().mean().sqrt()
    reference = LogisticRegression(C=0.1, max_iter=300).fit((rows / scale).numpy(), train.labels)
    expected = reference.score((tested / scale).numpy(), test.labels)
    found = transfer_scores(Classification({"train": train, "test": test}), lambda texts: 7 * noise(texts))
    assert found["accuracy"] == pytest.approx(expected)


def test_a_class_that_a_fold_lacks_is_no_obstacle():
    texts = numbered(60)
    labels = by_sign(texts)
    labels[7] = "rare"
    assert transfer_scores(Classification({"all": Part(texts, [], labels)}), noise)["accuracy"] > 0.7


def pairs(count: int, start: int) -> Part:
    """Pairs that are of class 1 where both are the same sentence, and twice as often are not."""
    first = numbered(count, start)
    second = [text if i % 3 == 0 else str(int(text) + 5000) for i, text in enumerate(first)]
    return Part(first, second, [str(int(a == b)) for a, b in zip(first, second, strict=True)])


def test_pairs_are_told_apart_by_difference_and_product():
    scores = transfer_scores(Classification({"train": pairs(200, 0), "test": pairs(90, 300)}), noise)
    assert scores == {"accuracy": 1.0, "f1": 1.0}


def test_f1_is_that_of_scikit_learn(monkeypatch):
    guesses = torch.tensor([1, 0, 1, 1, 0, 1, 0])
    monkeypatch.setattr(
        transfer,
        "_guesses",
        lambda train, labels, strengths, test: guesses[: len(test), None].expand(-1, len(strengths)),
    )
    test = Part(numbered(7), numbered(7, 9), ["1", "0", "0", "1", "1", "0", "0"])
    scores = transfer_scores(Classification({"train": pairs(60, 0), "test": test}), noise)
    assert scores["f1"] == pytest.approx(f1_score([int(label) for label in test.labels], guesses.numpy()))
    assert scores["accuracy"] == pytest.approx(4 / 7)


def test_sets_that_cannot_be_evaluated_are_refused():
    part = one_part(10)
    with pytest.raises(SepNormError, match="parts train and test and perhaps validation, found train"):
        Classification({"train": part})
    with pytest.raises(SepNormError, match="needs two classes or more, found 1"):
        Classification({"all": Part(["a", "b"], [], ["1", "1"])})
    with pytest.raises(SepNormError, match="the test part has a class that the training part does not have: 'x'"):
        Classification({"train": part, "test": Part(["a"], [], ["x"])})
    with pytest.raises(SepNormError, match="some parts of this set hold sentences and some pairs"):
        Classification({"train": part, "test": Part(["a"], ["b"], ["1"])})
    with pytest.raises(SepNormError, match="10 samples are too few to be split in 10"):
        transfer_scores(Classification({"all": part}), noise)


# ---- readers ------------------------------------------------------------------------------------------------------------


def test_rows_of_a_table_by_their_split():
    rows = [
        {"text": f"s {i}", "label": i % 2, "split": split} for i, split in enumerate(["train"] * 4 + ["dev", "test"])
    ]
    task = task_of(rows, "x.tsv", ("text",), "label")
    assert {name: len(part.labels) for name, part in task.parts.items()} == {"train": 4, "validation": 1, "test": 1}
    assert task.parts["train"].labels == ["0", "1", "0", "1"] and task.parts["test"].first == ["s 5"]
    whole = task_of([{key: row[key] for key in ("text", "label")} for row in rows], "x.tsv", ("text",), "label")
    assert list(whole.parts) == ["all"] and len(whole.parts["all"].first) == 6
    for change, message in (
        ({"label": None}, "row 6 of x.tsv has no label in 'label', found None"),
        ({"label": " "}, "has no label in 'label', found ' '"),
        ({"label": -1}, "the test part has a class that the training part does not have: '-1'"),
        ({"text": ""}, "row 6 of x.tsv has no text in 'text'"),
        ({"split": "trial"}, "row 6 of x.tsv is of the split 'trial'"),
    ):
        with pytest.raises(SepNormError, match=message):
            task_of([*rows[:5], rows[5] | change], "x.tsv", ("text",), "label")


def test_two_files_of_sentences_in_latin_1(tmp_path):
    (tmp_path / "pos").write_bytes("a café .\nit \x85 is\n\n".encode("latin-1"))
    (tmp_path / "neg").write_bytes("naïve  . \n".encode())
    part = read_polarity(tmp_path / "pos", tmp_path / "neg").parts["all"]
    assert part.first == ["a café .", "it is", "naïve ."] and part.labels == ["1", "1", "0"]


def test_sst_trec_and_mrpc_as_distributed(tmp_path):
    for name in ("train", "dev", "test"):
        (tmp_path / f"sentiment-{name}").write_text(f"{name} good\t1\n{name} bad\t0\n")
    sst = read_sst(tmp_path)
    assert list(sst.parts) == ["train", "validation", "test"]
    assert sst.parts["validation"].first == ["dev good", "dev bad"] and sst.parts["test"].labels == ["1", "0"]

    (tmp_path / "train_5500.label").write_bytes(b"DESC:manner How did it : begin ?\nLOC:city Where ?\n")
    (tmp_path / "TREC_10.label").write_bytes(b"LOC:other What caf\xe9 ?\n")
    trec = read_trec(tmp_path)
    assert trec.parts["train"].first == ["How did it : begin ?", "Where ?"]
    assert trec.parts["train"].labels == ["DESC", "LOC"] and trec.parts["test"].first == ["What café ?"]

    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    (tmp_path / "msr_paraphrase_train.txt").write_text(head + '1\t7\t8\ta "b\tc\n0\t9\t10\td\te\n', encoding="utf-8")
    (tmp_path / "msr_paraphrase_test.txt").write_text(head + "0\t7\t8\tf\tg\n", encoding="utf-8")
    mrpc = read_mrpc(tmp_path)
    assert mrpc.in_pairs and mrpc.parts["train"].labels == ["1", "0"]
    assert (mrpc.parts["train"].first[0], mrpc.parts["test"].second[0]) == ('a "b', "g")


def test_lines_that_are_broken_are_named(tmp_path):
    (tmp_path / "train_5500.label").write_text("DESC:manner How ?\nno label here\n")
    with pytest.raises(
        SepNormError, match=r"line 2 of .*train_5500.label does not begin with COARSE:fine, found 'no label"
    ):
        read_trec(tmp_path)
    (tmp_path / "sentiment-train").write_text("good\t1\nbad 0\n")
    with pytest.raises(SepNormError, match=r"line 2 of .*sentiment-train has 1 tab-separated cells"):
        read_sst(tmp_path)


def test_an_empty_part_is_refused_and_a_class_that_a_fold_lacks_is_no_error():
    whole = Part([f"text {n}" for n in range(40)], [], ["a"] * 39 + ["b"])
    with pytest.raises(SepNormError, match="the test part of this set is empty"):
        Classification({"train": whole, "test": Part()})
    rows = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    scores = transfer_scores(Classification({"all": whole}), lambda texts: rows[[int(t.split()[1]) for t in texts]])
    assert 0.9 < scores["accuracy"] <= 1
