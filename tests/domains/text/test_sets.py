from __future__ import annotations

import gzip
import warnings

import pytest

from sepnorm import SepNormError
from sepnorm.domains.text.sets import GROUPS, SETS, load_sets
from sepnorm.domains.text.sts import YEARS, Pairs
from sepnorm.errors import GuessWarning

STSB = "split\tscore\tsentence1\tsentence2\ntrain\t1\ta\tb\ntest\t2\tc\td\ntest\t3\te\tf\ndev\t1\tg\th\n"
TASKS = (
    "task\tsplit\tlabel\ttext\nMR\tall\t1\tgood\nMR\tall\t0\tbad\n"
    "TREC\ttrain\tLOC\twhere\nTREC\ttrain\tNUM\thow many\nTREC\ttest\tNUM\thow much\n"
)


def senteval(folder):
    """All sets in the layout of SentEval, with as little in them as will do."""
    files = {
        "STS/STSBenchmark/sts-test.csv": "g\tf\ty\ti\t1\ta\tb\ng\tf\ty\ti\t2\tc\td\n",
        "SICK/SICK_test_annotated.txt": "head\n1\ta\tb\t1\tX\n2\tc\td\t2\tX\n3\te\tf\t3\tX\n",
        "TREC/train_5500.label": "DESC:x How ?\nLOC:x Where ?\n",
        "TREC/TREC_10.label": "LOC:x Where to ?\n",
        **{f"SST/binary/sentiment-{part}": "good\t1\nbad\t0\n" for part in ("train", "dev", "test")},
        **{f"MRPC/msr_paraphrase_{part}.txt": "head\n1\tx\ty\ta\tb\n0\tx\ty\tc\td\n" for part in ("train", "test")},
        "MR/rt-polarity.pos": "good\n",
        "MR/rt-polarity.neg": "bad\n",
        "CR/custrev.pos": "fine\n",
        "CR/custrev.neg": "poor\n",
        "SUBJ/subj.objective": "it is\n",
        "SUBJ/subj.subjective": "I think\n",
        "MPQA/mpqa.pos": "yes\n",
        "MPQA/mpqa.neg": "no\n",
    }
    for name, subsets in YEARS.items():
        for subset in subsets:
            files[f"STS/{name.upper()}-en-test/STS.input.{subset}.txt"] = f"{name}\tb\nc\td\n"
            files[f"STS/{name.upper()}-en-test/STS.gs.{subset}.txt"] = "1\n2\n"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def test_there_are_seven_sets_in_each_group():
    assert [sum(known.group == group for known in SETS.values()) for group in GROUPS] == [7, 7]


@pytest.mark.parametrize("below", ["data/downstream", "downstream", ""])
def test_all_sets_are_found_in_the_layout_of_senteval(tmp_path, below):
    senteval(tmp_path / below)
    found = load_sets(["transfer", "sts"], str(tmp_path))
    assert list(found) == list(SETS)
    assert {name for name, one in found.items() if isinstance(one, Pairs)} == {*YEARS, "stsb", "sick-r"}
    assert found["sts16"].first[0] == "sts16" and len(found["sts12"]) == 10 and len(found["sick-r"]) == 3
    assert found["subj"].parts["all"].first == ["it is", "I think"]
    assert list(found["sst2"].parts) == ["train", "validation", "test"] and found["mrpc"].in_pairs


@pytest.mark.parametrize("name", ["stsb", "STS-B", "STSBenchmark", "sts_b"])
def test_a_set_has_several_spellings(tmp_path, name):
    senteval(tmp_path)
    assert list(load_sets([name, "stsb"], str(tmp_path))) == ["stsb"]


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(
        SepNormError, match=r"unknown evaluation set 'transfr': choose from sts, .* Did you mean 'transfer'"
    ):
        load_sets(["sts", "transfr"])
    with pytest.raises(SepNormError, match=r"unknown evaluation set 'sst3'.* Did you mean 'sst2'"):
        load_sets(["sst3"])
    with pytest.raises(SepNormError, match="nothing to evaluate on was named"):
        load_sets([])


@pytest.mark.parametrize("on", ["sts", "stsb"])
@pytest.mark.parametrize("file", ["stsb.tsv", "stsb.tsv.gz", "STS-B_test.tsv", "stsbenchmark.tsv"])
def test_one_file_is_the_set_that_its_name_says_and_its_test_split_counts(tmp_path, file, on):
    (tmp_path / file).write_bytes(gzip.compress(STSB.encode()) if file.endswith(".gz") else STSB.encode())
    found = load_sets([on], str(tmp_path / file))
    assert list(found) == ["stsb"] and found["stsb"].scores == [2, 3] and found["stsb"].first == ["c", "e"]


def test_a_file_with_another_name_is_the_set_asked_for_or_a_set_of_its_own(tmp_path):
    path = tmp_path / "mine.v2.csv"
    path.write_text("sentence1,sentence2,score\na,b,1\nc,d,2\n")
    assert list(load_sets(["sts"], str(path))) == ["mine"]
    assert list(load_sets(["sick-r"], str(path))) == ["sick-r"]
    with pytest.raises(SepNormError, match=r"mine.v2.csv holds nothing for transfer"):
        load_sets(["transfer"], str(path))
    path.write_text("sentence,label\ngood,1\nbad,0\n")
    assert load_sets(["transfer"], str(path))["mine"].parts["all"].labels == ["1", "0"]
    path.write_text("sentence1,sentence2,label,split\na,b,1,train\nc,d,0,train\ne,f,0,test\n")
    assert load_sets(["transfer"], str(path))["mine"].parts["test"].second == ["f"]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(
        SepNormError, match=r"has the columns a, b: a set needs sentence1, sentence2 and score, or text"
    ):
        load_sets(["sts"], str(path))


def test_a_file_may_hold_several_tasks(tmp_path):
    path = tmp_path / "transfer_single.tsv"
    path.write_text(TASKS)
    found = load_sets(["transfer"], str(path))
    assert list(found) == ["mr", "trec"]
    assert list(found["mr"].parts) == ["all"] and found["trec"].parts["test"].first == ["how much"]
    assert list(load_sets(["trec"], str(path))) == ["trec"]
    with pytest.raises(SepNormError, match="holds nothing for cr:"):
        load_sets(["trec", "cr"], str(path))


def test_a_folder_of_tables_gives_what_it_holds(tmp_path):
    for name, content in (("stsb/stsb.tsv", STSB), ("transfer.tsv", TASKS), ("other.csv", "a,b\n1,2\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert list(load_sets(["sts", "transfer"], str(tmp_path))) == ["stsb", "mr", "trec"]
    assert list(load_sets(["mr", "stsb"], str(tmp_path))) == ["stsb", "mr"]
    (tmp_path / "sts-dev.csv").write_text("no\ttable\tof\ttasks\n1\t2\t3\t4\n")
    assert list(load_sets(["sts"], str(tmp_path))) == ["stsb"]
    with pytest.raises(SepNormError, match="holds nothing for sick-r, subj"):
        load_sets(["sick-r", "transfer", "subj"], str(tmp_path))


def test_a_place_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SepNormError, match="there is no file or folder"):
        load_sets(["sts"], str(tmp_path / "none"))
    with pytest.raises(SepNormError, match="holds nothing for sts, transfer"):
        load_sets(["sts", "transfer"], str(tmp_path))


def test_lee_needs_no_data_and_is_no_substitute_for_a_group(tmp_path):
    pytest.importorskip("gensim")
    assert len(load_sets(["lee"])["lee"]) == 1225
    with pytest.raises(SepNormError, match="holds nothing for sts"):
        load_sets(["lee", "sts"], str(tmp_path))


@pytest.mark.parametrize("name", SETS)
def test_without_data_the_hub_is_asked_and_said_to_be_out_of_reach(name):
    with pytest.raises(
        SepNormError,
        match=rf"^{SETS[name].hub.name} cannot be read: there is no file or folder .* here\. It was looked up on.*\.$",
    ):
        load_sets([name])


def test_copies_on_the_hub_are_put_together_from_their_splits(monkeypatch):
    """As the hub cannot be asked here, by rows that say which split was asked for."""
    from sepnorm.domains.text import sets

    def rows(name: str, split: str):
        for number in range(2):
            cells = dict.fromkeys(("text", "sentence", "sentence1", "sentence2"), f"{split} {number}")
            yield cells | {"score": number, "label": number, "label_coarse_original": number}

    monkeypatch.setattr(sets, "rows_of", rows)
    found = load_sets([*GROUPS])
    assert list(found) == list(SETS) and found["sts15"].first == ["test 0", "test 1"]
    assert found["mr"].parts["all"].first == [
        f"{split} {i}" for split in ("train", "validation", "test") for i in (0, 1)
    ]
    assert found["mrpc"].parts["train"].second == ["train 0", "train 1", "validation 0", "validation 1"]
    assert list(found["sst2"].parts) == ["train", "test", "validation"]


def _rated(path, column: str | None, names: list[str], each: int = 6) -> str:
    rows = [
        f"{name},a cat {i},a dog {i * k},{(i * (k + 1)) % 5}"
        if column
        else f"a cat {i},a dog {i * k},{(i * (k + 1)) % 5}"
        for k, name in enumerate(names, 1)
        for i in range(each)
    ]
    path.write_text(
        "\n".join([f"{column},sentence1,sentence2,score" if column else "sentence1,sentence2,score", *rows])
    )
    return str(path)


@pytest.mark.parametrize("column", ["dataset", "task", "set"])
def test_a_column_that_names_the_set_makes_sets(tmp_path, column):
    years = ["STS12", "STS13", "STS14", "STS15", "STS16"]
    path = _rated(tmp_path / "sts12to16.csv", column, years)
    found = load_sets(["sts"], path)
    assert list(found) == [year.lower() for year in years] and all(len(one) == 6 for one in found.values())
    assert list(load_sets(["sts"], str(tmp_path))) == list(found)  # as a file of a folder


def test_a_part_of_a_name_is_not_taken_for_a_set_without_a_word(tmp_path):
    with pytest.warns(
        GuessWarning, match=r"sts12-and-others.csv is taken for one set, sts12, by the beginning of its name"
    ):
        assert list(load_sets(["sts"], _rated(tmp_path / "sts12-and-others.csv", None, ["x"]))) == ["sts12"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(load_sets(["sts"], _rated(tmp_path / "stsb.csv", None, ["x"]))) == ["stsb"]
        assert list(load_sets(["sts"], _rated(tmp_path / "mine.csv", None, ["x"]))) == ["mine"]
