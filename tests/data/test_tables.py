from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sepnorm import SepNormError
from sepnorm.data import json_lists, tables
from sepnorm.data.tables import parquet_batches, parquet_parts, rows_of_file

SMALL = 2**20


@pytest.fixture
def small(monkeypatch):
    """As if a mebibyte were all that may be read at a time."""
    monkeypatch.setattr(tables, "_AT_ONCE", SMALL)


def named_again(path: Path, short: int, long: int, size: int) -> Path:
    """A small parquet file of short texts, then of one long text that it holds once and names again and again."""
    order = pa.array([0] * short + [1] * long, pa.int32())
    rows = pa.DictionaryArray.from_arrays(order, pa.array(["short", "a b " * (size // 4)]))
    options = {"compression": "zstd", "dictionary_pagesize_limit": 2**30, "store_schema": False}
    pq.write_table(pa.table({"text": rows}), path, **options)
    return path


# ---- parquet ------------------------------------------------------------------------------------------------------------


def test_short_rows_are_read_ever_more_at_a_time(tmp_path):
    lines = [f"line {number}" for number in range(1000)]
    pq.write_table(pa.table({"text": lines}), tmp_path / "t.parquet", row_group_size=300)
    batches = list(parquet_batches(tmp_path / "t.parquet", 64))
    assert [batch.num_rows for batch in batches[:8]] == [1, 2, 4, 8, 16, 32, 64, 64]
    assert [text for batch in batches for text in batch.column("text").to_pylist()] == lines
    (part, *others) = parquet_parts(tmp_path / "t.parquet", 200)
    assert 200 <= part.num_rows <= 400
    assert [text for batch in (part, *others) for text in batch.column("text").to_pylist()] == lines


@pytest.mark.parametrize("short", [1, 500])
def test_a_long_text_that_is_named_again_and_again_is_read_a_few_times_at_once(tmp_path, small, short):
    path = named_again(tmp_path / "t.parquet", short, 63, SMALL // 4)
    assert path.stat().st_size < 10_000
    batches = list(parquet_batches(path))
    assert sum(batch.num_rows for batch in batches) == short + 63
    assert max(batch.nbytes for batch in batches) <= 1.1 * SMALL
    assert sum(len(row["text"]) > 5 for row in rows_of_file(path)) == 63


def test_a_long_text_after_short_ones_does_not_multiply_also_where_other_columns_are_large(
    tmp_path, small, monkeypatch
):
    """Short rows make the next part one of many rows, and the size of the file says nothing."""
    monkeypatch.setattr(tables, "_LONG_AT_ONCE", 2 * SMALL)
    order = pa.array([n % 2 for n in range(300)] + [2] * 40, pa.int32())
    texts = pa.DictionaryArray.from_arrays(order, pa.array(["a", "b", "x" * (SMALL // 4)]))
    table = pa.table({"text": texts, "pad": np.random.default_rng(0).integers(0, 2**62, 340)})
    pq.write_table(table, tmp_path / "t.parquet", dictionary_pagesize_limit=2**30, store_schema=False)
    batches = list(parquet_batches(tmp_path / "t.parquet"))
    assert max(batch.nbytes for batch in batches) <= 2.1 * SMALL
    assert max(batch.num_rows for batch in batches) > 4
    assert sum(len(row["text"]) > 5 for row in rows_of_file(tmp_path / "t.parquet")) == 40


def test_lists_that_nobody_asked_for_are_not_read(tmp_path):
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 10**6], pa.int32()), pa.array(np.zeros(10**6, np.int8)))
    kept = {"text": ["a", "b"], "image": [{"bytes": b"1", "path": None}] * 2}
    pq.write_table(pa.table(kept | {"other": lists}), tmp_path / "t.parquet")
    assert [[*row] for row in rows_of_file(tmp_path / "t.parquet")] == [["text", "image"]] * 2
    pq.write_table(pa.table({"other": lists}), tmp_path / "t.parquet")
    with pytest.raises(
        SepNormError, match=r"has columns of lists alone \(other\), such as embeddings: name other data"
    ):
        list(rows_of_file(tmp_path / "t.parquet"))


def test_lists_of_far_more_values_than_the_file_has_bytes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LARGE", SMALL)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 10**6], pa.int32()), pa.array(np.zeros(10**6, np.int8)))
    pq.write_table(pa.table({"other": lists}), tmp_path / "t.parquet")
    for read in (parquet_batches, lambda path: parquet_parts(path, 200)):
        with pytest.raises(SepNormError, match="unpacks to 15 MiB, more than 100 times its size"):
            list(read(tmp_path / "t.parquet"))


def test_lists_after_a_missing_one_are_read_a_few_at_a_time(tmp_path, small):
    values = [None, *np.zeros((2000, 1000), np.float32)]
    pq.write_table(pa.table({"embedding": values}), tmp_path / "l.parquet")
    for read in (parquet_batches, parquet_parts):
        batches = list(read(tmp_path / "l.parquet", 16_384))
        assert sum(batch.num_rows for batch in batches) == 2001
        assert max(batch.nbytes for batch in batches) <= 1.6 * SMALL


# ---- JSON ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("longest", [150, 10**7])
def test_a_list_is_read_item_by_item_wherever_its_parts_end(tmp_path, monkeypatch, longest):
    monkeypatch.setattr(json_lists, "_LONGEST", longest)
    rows = [{"text": "one, [two] {é}", "n": [1, 2.5, None]}, {}, {"a": {"b": "]"}}] * 20
    for indent in (None, 2):
        (tmp_path / "t.json").write_text(f" \n{json.dumps(rows, indent=indent)}\n ", encoding="utf-8")
        assert list(rows_of_file(tmp_path / "t.json")) == rows
    (tmp_path / "t.json").write_text(" [ ] ")
    assert list(rows_of_file(tmp_path / "t.json")) == []


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('[{"a": 1}', 1),
        ('[{"a": 1},]', 1),
        ('[{"a": 1} {"a": 2}]', 1),
        ('[{"a": 1}] x', 1),
        ('[{"a": 1}, {"a": ', 1),
        ("[", 0),
        ("[,]", 0),
    ],
)
def test_a_damaged_list_is_one_sentence_that_names_the_row(tmp_path, text, row):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(SepNormError, match=rf"t.json cannot be read: .* after row {row}\.$"):
        list(rows_of_file(tmp_path / "t.json"))
