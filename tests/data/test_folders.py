from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sepnorm import SepNormError
from sepnorm.data import records
from sepnorm.data.records import read_texts, rows_of
from sepnorm.data.streams import open_rows


def texts(source) -> list[str]:
    return [record.content for record in read_texts(str(source))]


@pytest.fixture
def no_library(monkeypatch):
    """Fails where the library datasets is asked to open something."""
    import datasets

    monkeypatch.setattr(
        datasets, "load_dataset", lambda *words, **options: pytest.fail(f"{words} is given to datasets")
    )


@pytest.mark.parametrize("place", ["../secret.csv", "hf://datasets/some/data/x.csv", "http://127.0.0.1:9/x.csv"])
def test_instructions_in_a_folder_are_not_followed(tmp_path, no_library, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.csv").write_text("text\nsecret\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {place!r}\n---\n")
    with pytest.raises(SepNormError, match=r"folder holds no texts or tables: give a folder with .txt"):
        texts(folder)
    (folder / "own.csv").write_text("text\nown\n")
    assert texts(folder) == ["own"]
    with pytest.raises(SepNormError, match=r"folder is a folder or file here, which has no 'default': name it alone"):
        texts("folder:default")


def test_files_of_a_folder_are_read_in_order(tmp_path, no_library):
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden/a.jsonl").write_text('{"text": "hidden"}')
    (tmp_path / "dataset_infos.json").write_text("{}")
    for name, text in (("b.jsonl", "two"), ("a.jsonl", "one"), ("deep/c.jsonl", "three")):
        (tmp_path / name).write_text(json.dumps({"text": text}))
    assert texts(tmp_path) == ["one", "two", "three"]
    (tmp_path / "d.csv").write_text("text\nfour\n")
    with pytest.raises(SepNormError, match=r"are of different kinds, .csv and .jsonl: name those of one"):
        texts(tmp_path)


def test_a_folder_of_text_files_has_a_row_for_each_line(tmp_path, no_library):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert texts(tmp_path) == ["one", "two"]


def test_a_split_is_of_the_files_that_say_so(tmp_path, no_library):
    for name in ("data/train-00000-of-00001", "data/dev", "test/0", "notes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": [name]}), tmp_path / f"{name}.parquet")
    splits = {
        split: [row["text"] for row in rows_of(str(tmp_path), split)] for split in ("train", "validation", "test")
    }
    assert splits == {"train": ["data/train-00000-of-00001"], "validation": ["data/dev"], "test": ["test/0"]}
    with pytest.raises(SepNormError, match="no file whose name says that it is of the split other: name the file"):
        list(rows_of(str(tmp_path), "other"))


def test_an_image_beside_texts_is_not_opened(tmp_path, monkeypatch):
    """Neither in a folder nor of a name of the hub, whose cells may name files and addresses elsewhere."""
    import datasets

    Image.new("L", (2, 2)).save(tmp_path / "elsewhere.png")
    (tmp_path / "data").mkdir()
    features = datasets.Features({"text": datasets.Value("string"), "image": datasets.Image()})
    cells = [{"bytes": None, "path": str(tmp_path / "elsewhere.png")}] * 2
    table = pa.table({"text": ["a", "b"], "image": cells}, schema=features.arrow_schema)
    pq.write_table(table, tmp_path / "data/t.parquet")
    rows = datasets.Dataset.from_parquet(str(tmp_path / "data/t.parquet")).to_iterable_dataset()
    monkeypatch.setattr(datasets, "load_dataset", lambda *words, **options: rows)
    monkeypatch.setattr(records, "prepare_hub", lambda: None)
    for source in (str(tmp_path / "data"), "some/data"):
        assert [row["image"] for row in rows_of(source)] == cells
        assert texts(source) == ["a", "b"]
        assert [row["image"] for row in open_rows(source)] == cells
        assert [row["image"] for row in rows_of(source, images=True)] == cells


def test_an_image_file_of_the_hub_is_fetched_where_images_are_wanted(monkeypatch):
    import datasets
    import fsspec

    place = "hf://datasets/some/data@main/0.png"
    features = datasets.Features({"image": datasets.Image()})
    table = pa.table({"image": [{"bytes": None, "path": place}]}, schema=features.arrow_schema)
    monkeypatch.setattr(
        records, "hub_rows", lambda source, split: datasets.Dataset(table).to_iterable_dataset().decode(False)
    )
    monkeypatch.setattr(fsspec, "open", lambda name, mode: io.BytesIO(name.encode()))
    assert [row["image"]["bytes"] for row in rows_of("some/data")] == [None]
    assert [row["image"]["bytes"] for row in rows_of("some/data", images=True)] == [place.encode()]
