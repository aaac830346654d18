from __future__ import annotations

import gzip
import json
import lzma
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sepnorm import SepNormError
from sepnorm.data.records import rows_of
from sepnorm.domains.text import lee
from sepnorm.domains.text.data import load_sentences, load_triples
from sepnorm.domains.text.lee import lee_pairs, lee_sentences, split_sentences

PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture
def put(tmp_path):
    def write(name: str, content: str | bytes | dict) -> str:
        if isinstance(content, dict):
            pq.write_table(pa.table(content), tmp_path / name)
        else:
            (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return str(tmp_path / name)

    return write


# ---- sentences ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKED)
def test_lines_of_a_file_with_the_empty_ones_counted(put, packing):
    found = load_sentences(put(f"lines.txt{packing}", PACKED[packing](b"one  line\n\n two\n \nthree\n\n")))
    assert found.texts == ["one line", "two", "three"]
    assert found.skipped == 3 and len(found) == 3


def test_a_file_is_read_only_as_far_as_asked(put):
    source = put("long.txt", b"a line\n\n" * 50_000 + b"\xff\n")
    found = load_sentences(source, most=4)
    assert found.texts == ["a line"] * 4 and found.skipped == 3
    with pytest.raises(SepNormError, match="UTF-8"):
        load_sentences(source)
    with pytest.raises(SepNormError, match="most=1 was asked for"):
        load_sentences(source, most=1)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.csv.gz", "x.jsonl", "x.json", "x.parquet"])
def test_tables_with_a_column_of_sentences(put, name):
    texts = ["the first, he said", "", "the second"]
    if name == "x.parquet":
        source = put(name, {"n": [1, 2, 3], "remark": texts})
    elif ".json" in name:
        source = put(name, "\n".join(json.dumps({"n": i, "remark": text}) for i, text in enumerate(texts)))
    else:
        mark, quote = ("\t", "") if ".tsv" in name else (",", '"')
        lines = [f"n{mark}remark", *(f"{i}{mark}{quote}{text}{quote}" for i, text in enumerate(texts))]
        source = put(name, PACKED[".gz" if name.endswith(".gz") else ""]("\n".join(lines).encode()))
    found = load_sentences(source, column="remark")
    assert found.texts == ["the first, he said", "the second"] and found.skipped == 1
    with pytest.raises(SepNormError, match=r"no column 'remarks': it has n, remark\. Did you mean 'remark'"):
        load_sentences(source, column="remarks")


def test_the_usual_column_is_found(put):
    assert load_sentences(put("x.csv", "title,sentence\na,b\nc,d\n")).texts == ["b", "d"]
    with pytest.raises(SepNormError, match=r"which column of .* holds the text is not clear"):
        load_sentences(put("y.csv", "title,abstract\na,b\nc,d\n"))


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_words_that_look_like_missing_values_are_sentences(put, name):
    assert load_sentences(put(name, "text\nNone\nNA\nnull\n1999\n")).texts == ["None", "NA", "null", "1999"]


def test_quotes_are_text_in_tsv_and_marks_of_a_cell_in_csv(put):
    assert load_sentences(put("x.tsv", 'text\tn\nan "open quote\t1\n"Who" is it\t2\n')).texts == [
        'an "open quote',
        '"Who" is it',
    ]
    assert load_sentences(put("x.csv", 'text,n\n"one, ""two""",1\n"on two\nlines",2\n')).texts == [
        'one, "two"',
        "on two lines",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", b"", r"none.txt holds no sentence \(0 empty"),
        ("blank.txt", b"\n \n\t\n", r"blank.txt holds no sentence \(3 empty"),
        ("one.txt", b"only this\n\n", r"one.txt holds one sentence \(1 empty.*two sentences or more"),
        ("one.csv", b"text\nonly this\n", "one.csv holds one sentence"),
        ("head.csv", b"text\n", "head.csv holds no rows"),
        ("none.csv", b"", "none.csv is empty"),
        ("none.jsonl", b"", "none.jsonl is empty"),
        ("latin.txt", "café\nthé\n".encode("latin-1"), "latin.txt cannot be read as text in UTF-8"),
        ("latin.csv", "text\ncafé\nthé\n".encode("latin-1"), "latin.csv cannot be read as text in UTF-8"),
        ("wide.txt", "one\ntwo\n".encode("utf-16"), "wide.txt cannot be read as text in UTF-8"),
        ("wide.txt", "one\ntwo\n".encode("utf-16-le"), "no text in UTF-8: line 1 holds a zero byte"),
        ("cut.txt.gz", gzip.compress(b"one\ntwo\n" * 999, mtime=0)[:40], "cut.txt.gz cannot be read"),
        ("essay.docx", b"text", r"essay.docx is no text file or table: give one of .txt"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(put, name, content, message):
    with pytest.raises(SepNormError, match=message) as caught:
        load_sentences(put(name, content))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_refused(tmp_path):
    for name in ("none.txt", "none.csv", "none.tsv.gz", "none.parquet"):
        with pytest.raises(SepNormError, match=rf"there is no file .*{name}"):
            load_sentences(str(tmp_path / name))
    with pytest.raises(SepNormError, match="It was looked up on the Hugging Face Hub"):
        load_sentences("nobody/no-such-name")


# ---- triples ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns", ["sent0,sent1,hard_neg", "premise,entailment,contradiction", "anchor,positive,negative"]
)
def test_triples_under_their_usual_names_in_any_order(put, columns):
    first, second, third = columns.split(",")
    found = load_triples(put("x.csv", f"{third},n,{first},{second}\nc1,1,a1,b1\nc2,2,a2,b2\n"))
    assert (found.anchors, found.positives, found.negatives) == (["a1", "a2"], ["b1", "b2"], ["c1", "c2"])
    assert len(found) == 2 and found.skipped == 0


@pytest.mark.parametrize("name", ["x.tsv", "x.jsonl", "x.parquet"])
def test_triples_by_named_columns(put, name):
    rows = [{"x": f"x {i}", "y": f"y {i}", "z": f"z {i}"} for i in range(5)]
    if name == "x.parquet":
        source = put(name, {key: [row[key] for row in rows] for key in "xyz"})
    elif name == "x.jsonl":
        source = put(name, "\n".join(map(json.dumps, rows)))
    else:
        source = put(name, "\n".join(["x\ty\tz", *("\t".join(row.values()) for row in rows)]))
    found = load_triples(source, columns=["z", "x", "y"], most=3)
    assert found.anchors == ["z 0", "z 1", "z 2"] and found.negatives == ["y 0", "y 1", "y 2"]
    with pytest.raises(SepNormError, match=r"has no column 'w': it has x, y, z"):
        load_triples(source, columns=["x", "y", "w"])
    with pytest.raises(SepNormError, match="has three columns, found x, y"):
        load_triples(source, columns=["x", "y"])
    with pytest.raises(SepNormError, match=r"has the columns x, y, z: name the three of a triple, or use sent0, sent1"):
        load_triples(source)


def test_a_few_broken_triples_are_left_out_and_many_refused(put):
    head, whole = "sent0,sent1,hard_neg\n", "a,b,c\n"
    for broken in ("a,b,\n", "a,,c\n", "a,b\n", ",,\n"):
        found = load_triples(put("few.csv", head + broken * 10 + whole * 5))
        assert len(found) == 5 and found.skipped == 10
        with pytest.raises(SepNormError, match=r"11 of the first 11 rows of .* lack a part .* row 11"):
            load_triples(put("many.csv", head + broken * 11 + whole * 5))
    assert load_triples(put("share.csv", head + whole * 500 + "a,b,\n" * 50)).skipped == 50
    with pytest.raises(SepNormError, match=r"such as row \d+ its hard_neg"):
        load_triples(put("share.csv", head + whole * 500 + "a,b,\n" * 60))


def test_triples_that_cannot_be_trained_on_are_refused(put):
    with pytest.raises(SepNormError, match=r"x.txt is a text file, which has no columns: triples need a table"):
        load_triples(put("x.txt", "a\nb\n"))
    with pytest.raises(SepNormError, match="holds 1 whole triples"):
        load_triples(put("x.csv", "sent0,sent1,hard_neg\na,b,c\na,b,\n"))
    with pytest.raises(SepNormError, match="holds no rows"):
        load_triples(put("x.csv", "sent0,sent1,hard_neg\n"))


def test_a_table_that_is_no_csv_is_one_plain_message(put):
    with pytest.raises(SepNormError, match=r"cannot be read: field larger than field limit .* after row 1\."):
        list(rows_of(put("x.csv", 'text\nfine\n"' + "long " * 50_000)))


# ---- the Lee corpus -----------------------------------------------------------------------------------------------------


def test_lee_is_the_default_and_has_whole_sentences():
    pytest.importorskip("gensim")
    found = load_sentences()
    assert found.texts == lee_sentences() and len(set(found.texts)) == len(found) > 2500
    assert found.texts[0].startswith("Hundreds of people have been forced") and found.texts[0].endswith("Hill Top.")
    assert load_sentences(most=7).texts == found.texts[:7]
    assert sum(text[-1] in ".?!\"')" for text in found.texts) > 0.99 * len(found)


def test_lee_has_every_pair_of_fifty_items():
    pytest.importorskip("gensim")
    pairs = lee_pairs()
    assert len(pairs) == 1225 and len({*pairs.first, *pairs.second}) == 50
    assert pairs.scores[:5] == [0.3, 0.24, 0.2, 0.3, 0.5] and max(pairs.scores) == 1
    assert pairs.first[0].startswith("The national executive") and pairs.second[0].startswith("Cash-strapped")
    assert len({frozenset(pair) for pair in zip(pairs.first, pairs.second, strict=True)}) == 1225


def test_gensim_itself_is_not_imported():
    pytest.importorskip("gensim")
    code = "import sys; from sepnorm.domains.text.lee import lee_pairs; lee_pairs(); sys.exit('gensim' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_gensim_or_its_files_the_reason_is_said(monkeypatch, tmp_path):
    from importlib.machinery import ModuleSpec

    monkeypatch.setattr(lee, "find_spec", lambda name: None)
    with pytest.raises(SepNormError, match=r"comes with gensim, which is not installed: pip install"):
        load_sentences()
    empty = ModuleSpec("gensim", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(lee, "find_spec", lambda name: empty)
    with pytest.raises(SepNormError, match="comes without its test data"):
        lee_pairs()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One is here. Two is there.", ["One is here.", "Two is there."]),
        ('"Is it?" he asked. "It is." So it was.', ['"Is it?" he asked.', '"It is."', "So it was."]),
        (
            "Mr. Smith of the U.S. Senate paid $1.5 million. He did!",
            ["Mr. Smith of the U.S. Senate paid $1.5 million.", "He did!"],
        ),
        ("By J. R. Hartley at 4.00pm. no capital follows", ["By J. R. Hartley at 4.00pm. no capital follows"]),
        ("It ended (at last.) 300 came.", ["It ended (at last.)", "300 came."]),
        ("  ", []),
    ],
)
def test_sentences_end_at_stops_but_not_at_abbreviations(text, sentences):
    assert split_sentences(text) == sentences
