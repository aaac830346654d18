from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sepnorm import SepNormError
from sepnorm.data.pictures import to_image
from sepnorm.data.records import Record, read_images, read_texts

LINES = b"one\n\n  two \n \nthree"
PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


@pytest.fixture
def put(tmp_path):
    """Writes a file and gives its path, as a command line would have it."""

    def write(name: str, content: str | bytes | dict) -> str:
        if isinstance(content, dict):
            pq.write_table(pa.table(content), tmp_path / name)
        else:
            (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return str(tmp_path / name)

    return write


def png(colour=(200, 0, 0), mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (4, 3), colour).save(file, "PNG")
    return file.getvalue()


def contents(records) -> list[str]:
    return [record.content for record in records]


# ---- texts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("suffix", [".txt", ".text", ".TXT"])
def test_lines_of_text_files_without_the_blank_ones(put, suffix, packing):
    found = list(read_texts(put(f"lines{suffix}{packing}", PACKED[packing](LINES))))
    assert found == [Record("one", None, "line 1"), Record("two", None, "line 3"), Record("three", None, "line 5")]


def test_the_mark_that_windows_puts_first_is_no_text(put):
    assert contents(read_texts(put("marked.txt", b"\xef\xbb\xbfone\ntwo"))) == ["one", "two"]
    assert contents(read_texts(put("marked.csv", b"\xef\xbb\xbftext,n\none,1"))) == ["one"]


def test_text_is_read_only_as_far_as_asked(put):
    texts = read_texts(put("long.txt", b"some line\n" * 200_000 + b"\xff\n"))
    assert contents(next(texts) for _ in range(3)) == ["some line"] * 3
    with pytest.raises(SepNormError, match="UTF-8"):
        list(texts)


def test_tables_are_read_only_as_far_as_asked(put):
    texts = read_texts(put("long.csv", "text,n\n" + "some line,1\n" * 30_000 + "too,many,cells\n"))
    assert contents(next(texts) for _ in range(3)) == ["some line"] * 3
    with pytest.raises(SepNormError, match="cannot be read"):
        list(texts)


def test_parquet_is_read_only_as_far_as_asked(put, tmp_path):
    lines = [f"{i} {os.urandom(20).hex()}" for i in range(20_000)]
    pq.write_table(pa.table({"text": lines}), tmp_path / "long.parquet", row_group_size=200)
    damaged = bytearray((tmp_path / "long.parquet").read_bytes())
    late = len(damaged) * 9 // 10
    damaged[late : late + 3000] = b"\xff" * 3000
    texts = read_texts(put("damaged.parquet", bytes(damaged)))
    assert contents(next(texts) for _ in range(3)) == lines[:3]
    with pytest.raises(SepNormError, match="cannot be read"):
        list(texts)


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".bz2"])
def test_csv_with_quotes_and_labels(put, packing):
    table = b'n,sentence,label\n1,"one, two",x\n2,three,y\n'
    found = list(read_texts(put(f"table.csv{packing}", PACKED[packing](table))))
    assert found == [Record("one, two", "x", "row 1"), Record("three", "y", "row 2")]


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_quotes_in_tsv_are_text(put, packing):
    table = b'text\tclass\n"Who" is it\t1\nan "open quote\t2\nlast\t1\n'
    found = list(read_texts(put(f"table.tsv{packing}", PACKED[packing](table))))
    assert contents(found) == ['"Who" is it', 'an "open quote', "last"]
    assert [record.label for record in found] == ["1", "2", "1"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "list.json", "rows.jsonl.gz"])
def test_json_as_lines_and_as_a_list(put, name):
    rows = [{"content": "one", "target": 3}, {"content": "two", "target": 4}]
    text = json.dumps(rows) if name.startswith("list") else "\n".join(map(json.dumps, rows))
    found = list(read_texts(put(name, PACKED[".gz" if name.endswith(".gz") else ""](text.encode()))))
    assert found == [Record("one", "3", "row 1"), Record("two", "4", "row 2")]


def test_parquet(put):
    found = list(read_texts(put("table.parquet", {"smiles": ["CCO", "C1CC1"], "labels": ["a", "b"]})))
    assert found == [Record("CCO", "a", "row 1"), Record("C1CC1", "b", "row 2")]


def test_the_column_is_the_named_one_or_the_usual_one_or_the_only_one_that_fits(put):
    both = put("both.csv", "title,text\nthe title,the text\n")
    assert contents(read_texts(both)) == ["the text"]
    assert contents(read_texts(both, "title")) == ["the title"]
    assert contents(read_texts(put("one.csv", "year,remark\n1999,only this\n"))) == ["only this"]
    assert contents(read_texts(put("two.csv", "sentence1,sentence2\nfirst,second\n"))) == ["first"]


def test_rows_without_text_are_left_out_also_as_the_first(put):
    table = put("gaps.csv", "text,label\n,x\nfirst,y\n   ,x\nsecond,x\n")
    assert list(read_texts(table)) == [Record("first", "y", "row 2"), Record("second", "x", "row 4")]
    assert contents(read_texts(put("null.jsonl", '{"remark": null}\n{"remark": "here"}'))) == ["here"]


def test_a_label_that_is_text_is_not_taken_for_the_text(put):
    assert list(read_texts(put("two.csv", "remark,label\nfine,good\n"))) == [Record("fine", "good", "row 1")]
    with pytest.raises(SepNormError, match=r"looks like text \(it has n, label\).*by --column"):
        list(read_texts(put("none.csv", "n,label\n1,good\n")))


def test_columns_that_are_not_clear_or_not_there(put):
    table = put("table.csv", "title,abstract\na,b\n")
    with pytest.raises(
        SepNormError, match=r"which column of .*table.csv holds the text is not clear .*title, abstract"
    ):
        list(read_texts(table))
    with pytest.raises(SepNormError, match=r"no column 'abstrct': it has title, abstract. Did you mean 'abstract'"):
        list(read_texts(table, "abstrct"))
    with pytest.raises(SepNormError, match=r"no column of .* looks like text \(it has a, b\)"):
        list(read_texts(put("numbers.csv", "a,b\n1,2\n")))


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    for name in ("none.txt", "none.txt.gz", "none.csv", "none.tsv.gz", "none.parquet"):
        with pytest.raises(SepNormError, match=rf"there is no file .*{name}"):
            list(read_texts(str(tmp_path / name)))
    with pytest.raises(SepNormError, match=r"there is no file .*none.parquet"):
        list(read_images(str(tmp_path / "none.parquet")))


@pytest.mark.parametrize("name", ["essay.docx", "README", "essay.gz"])
def test_an_unknown_kind_of_file_is_refused(put, name):
    with pytest.raises(SepNormError, match=rf"{name} is no text file or table: give one of .txt"):
        list(read_texts(put(name, b"text")))
    with pytest.raises(SepNormError, match=rf"{name} is no table of images: give a folder of images"):
        list(read_images(put(name, b"text")))


def test_tables_without_rows_are_refused(put):
    with pytest.raises(SepNormError, match=r"head.csv holds no rows"):
        list(read_texts(put("head.csv", "text,label\n")))
    with pytest.raises(SepNormError, match=r"none.parquet holds no rows"):
        list(read_texts(put("none.parquet", {"text": pa.array([], pa.string())})))
    for name in ("none.csv", "none.tsv", "none.json", "none.jsonl", "none.parquet"):
        with pytest.raises(SepNormError, match=rf"{name} is empty"):
            list(read_texts(put(name, b"")))


@pytest.mark.parametrize("name", ["old.txt", "old.csv", "old.tsv", "old.jsonl"])
def test_text_that_is_not_utf8_is_refused(put, name):
    text = '{"text": "café"}' if name.endswith("jsonl") else "text\ncafé and more\n"
    with pytest.raises(SepNormError, match=rf"{name} cannot be read.*utf-8"):
        list(read_texts(put(name, text.encode("latin-1"))))


@pytest.mark.parametrize("name", ["cut.txt.gz", "cut.txt.xz", "cut.txt.bz2", "cut.csv.gz", "cut.csv.xz", "cut.parquet"])
def test_files_that_are_cut_short_are_refused(put, tmp_path, name):
    lines = [os.urandom(30).hex() for _ in range(2000)]
    if name.endswith("parquet"):
        whole = (tmp_path / put("whole.parquet", {"text": lines})).read_bytes()
    else:
        whole = PACKED[os.path.splitext(name)[1]]("\n".join(["text", *lines]).encode())
    assert len(contents(read_texts(put(f"whole-{name}", whole)))) >= len(lines)
    with pytest.raises(SepNormError, match=rf"{name} cannot be read"):
        list(read_texts(put(name, whole[: len(whole) // 2])))


@pytest.mark.parametrize("packing", [".gz", ".xz", ".bz2"])
def test_damage_inside_and_a_wrong_suffix_are_refused(put, packing):
    whole = bytearray(PACKED[packing](os.urandom(50_000).hex().encode()))
    whole[10:110] = b"\xff" * 100
    for content in (bytes(whole), LINES):
        with pytest.raises(SepNormError, match="cannot be read"):
            list(read_texts(put(f"damaged.txt{packing}", content)))


@pytest.mark.parametrize("name", ["no-such-name", "nobody/no-such-name", "nobody/no-such-name:config"])
@pytest.mark.parametrize("read", [read_texts, read_images])
def test_a_name_that_cannot_be_reached_is_one_plain_message(read, name):
    with pytest.raises(
        SepNormError,
        match=rf"^{name} cannot be read: there is no file or folder .* here\. It was looked up on.*\.$",
    ) as caught:
        list(read(name))
    message = str(caught.value)
    assert "\n" not in message
    assert "Error:" not in message


# ---- images -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Two labels, one image beside the folders, capitals in a suffix, and a file that is none of them."""
    for number, name in enumerate(["cat/0.png", "cat/1.png", "cat/2.PNG", "dog/0.png", "dog/deep/1.png", "odd.png"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(png((number, 0, 0)))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_a_folder_of_images_has_its_subfolders_as_labels(folder):
    found = {record.name.replace(os.sep, "/"): record for record in read_images(str(folder))}
    assert {name: (record.label, record.content.getpixel((0, 0))[0]) for name, record in found.items()} == {
        "cat/0.png": ("cat", 0),
        "cat/1.png": ("cat", 1),
        "cat/2.PNG": ("cat", 2),
        "dog/0.png": ("dog", 3),
        "dog/deep/1.png": ("deep", 4),
        "odd.png": (None, 5),
    }


def test_a_folder_is_shuffled_by_the_seed_alone(folder):
    def order(seed: int) -> list[str]:
        return [record.name for record in read_images(str(folder), seed=seed)]

    assert order(0) == order(0)
    assert sorted(order(0)) == sorted(order(1)) == sorted(order(2))
    assert len({tuple(order(seed)) for seed in range(5)}) > 1
    assert any(order(seed) != sorted(order(seed)) for seed in range(3))


@pytest.mark.parametrize(
    ("mode", "colour", "seen"),
    [("L", 7, (7, 7, 7)), ("RGBA", (1, 2, 3, 0), (1, 2, 3)), ("1", 1, (255, 255, 255)), ("P", 0, (0, 0, 0))],
)
def test_every_mode_becomes_rgb(tmp_path, mode, colour, seen):
    (tmp_path / "image.png").write_bytes(png(colour, mode))
    (record,) = read_images(str(tmp_path))
    assert record.content.mode == "RGB"
    assert record.content.getpixel((0, 0)) == seen


def test_an_image_is_taken_from_all_that_a_table_may_hold(tmp_path):
    (tmp_path / "image.png").write_bytes(png())
    forms = [
        png(),
        tmp_path / "image.png",
        {"bytes": png(), "path": None},
        {"bytes": None, "path": tmp_path / "image.png"},
    ]
    for form in [*forms, Image.new("RGB", (4, 3), (200, 0, 0))]:
        assert to_image(form).getpixel((1, 1)) == (200, 0, 0)


def test_parquet_with_bytes_and_with_the_form_of_datasets(put):
    images = [png((1, 0, 0)), png((2, 0, 0))]
    plain = put("plain.parquet", {"pixels": images, "label": [5, 6]})
    nested = put("nested.parquet", {"img": [{"bytes": b, "path": "x.png"} for b in images], "fine_label": ["5", "6"]})
    for source in (plain, nested):
        found = list(read_images(source))
        assert [record.content.getpixel((0, 0)) for record in found] == [(1, 0, 0), (2, 0, 0)]
        assert [(record.label, record.name) for record in found] == [("5", "row 1"), ("6", "row 2")]


def test_columns_of_images_that_are_not_clear_or_not_there(put):
    source = put("two.parquet", {"left": [png((1, 0, 0))], "right": [png((2, 0, 0))]})
    assert next(read_images(source, "right")).content.getpixel((0, 0)) == (2, 0, 0)
    with pytest.raises(SepNormError, match=r"which column of .* holds the images is not clear \(it has left, right\)"):
        list(read_images(source))
    with pytest.raises(SepNormError, match=r"no column 'rigth': .* Did you mean 'right'"):
        list(read_images(source, "rigth"))


def test_a_few_corrupt_images_are_left_out_and_many_refused(put):
    few = put("few.parquet", {"image": [png()] * 110 + [png()[:40]] * 12})
    assert sum(1 for _ in read_images(few)) == 110
    many = put("many.parquet", {"image": [png()] * 110 + [png()[:40]] * 13})
    with pytest.raises(SepNormError, match=r"13 of the first 123 images of .* cannot be read, such as row 111"):
        list(read_images(many))


def test_a_folder_of_corrupt_images_only_is_refused(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.png").write_bytes(png()[: 40 if number % 2 else 0])
    with pytest.raises(SepNormError, match=r"11 of the first 11 images .* such as \d+.png \(.*\): check the files"):
        list(read_images(str(tmp_path)))
    for number in range(5, 20):
        (tmp_path / f"{number}.png").unlink()
    with pytest.raises(SepNormError, match=r"holds no image, but 5 that cannot be read, such as \d.png"):
        list(read_images(str(tmp_path)))
    (tmp_path / "whole.png").write_bytes(png())
    with pytest.raises(SepNormError, match=r"5 of 6 images of .* cannot be read, such as \d.png"):
        list(read_images(str(tmp_path)))
    for number in range(4):
        (tmp_path / f"whole{number}.png").write_bytes(png())
    assert len(list(read_images(str(tmp_path)))) == 5  # half of ten: few, and not most


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(SepNormError, match=r"holds no image: give a folder with .bmp, .gif"):
        list(read_images(str(tmp_path)))


def test_a_missing_label_is_none_and_not_a_class_of_that_name(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n')
    assert [record.label for record in read_texts(str(tmp_path / "x.jsonl"))] == ["x", None]


def test_damaged_metadata_of_a_parquet_file_do_not_end_the_process(tmp_path):
    """pyarrow ends the process where some of them are damaged and looked at."""
    import subprocess
    import sys

    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    places = range(max(4, len(whole) - 400), len(whole) - 8, 7)
    for place in places:
        (tmp_path / f"{place}.parquet").write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
    code = (
        "import sys\nfrom sepnorm.errors import SepNormError\nfrom sepnorm.data.records import read_texts\n"
        "for name in sys.argv[1:]:\n    try:\n        list(read_texts(name))\n    except SepNormError:\n        pass\n"
    )
    names = [str(tmp_path / f"{place}.parquet") for place in places]
    assert subprocess.run([sys.executable, "-c", code, *names], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "text;label\nhello;1\n"), ("a.csv", "text\tlabel\nhello\t1\n"), ("a.tsv", "text,label\nhello,1\n")],
)
def test_cells_that_are_separated_in_another_way_are_no_text(put, name, text):
    with pytest.raises(SepNormError, match=r"has a single column, 'text.{1,2}label': separate cells by (commas|tabs)"):
        list(read_texts(put(name, text.encode())))
