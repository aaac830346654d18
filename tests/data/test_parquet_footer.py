from __future__ import annotations

from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sepnorm import SepNormError
from sepnorm.data.parquet_footer import chunks_of


@pytest.fixture
def path(tmp_path):
    image = {"bytes": b"1", "path": None}
    table = pa.table(
        {"text": ["a b", "c"] * 50, "l": [[1, 2]] * 100, "label": [True, None] * 50, "image": [image] * 100}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=30, write_page_index=True)
    return tmp_path / "t.parquet"


def test_the_sizes_of_columns_are_those_of_pyarrow(path):
    known = pq.read_metadata(path)
    groups = [known.row_group(number) for number in range(known.num_row_groups)]
    wanted = []
    for group in groups:
        for column in map(group.column, range(group.num_columns)):
            name, of_bytes = column.path_in_schema.split(".")[0], column.physical_type == "BYTE_ARRAY"
            wanted.append((name, group.num_rows, column.num_values, column.total_uncompressed_size, of_bytes))
    assert [(c.column, c.rows, c.values, c.size, c.of_bytes) for c in chunks_of(path)] == wanted


def test_a_damaged_footer_is_read_or_refused_in_a_sentence(path):
    whole, rng = path.read_bytes(), Random(0)
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    refused = 0
    for number in range(500):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 2, 5, 50))):
            content[rng.randrange(start, len(whole) - 8 * (number % 2))] = rng.randrange(256)
        path.write_bytes(content)
        try:
            chunks_of(path)
        except SepNormError as error:
            refused += "its footer is damaged" in str(error)
    assert 50 < refused < 450
