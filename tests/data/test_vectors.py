from __future__ import annotations

import os
import pickle
import re
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sepnorm import SepNormError
from sepnorm.data.vectors import EmbeddingFile, Part

ROWS = np.array([[0.5, -1.5, 2.0], [3.25, 4.0, 5.5], [-6.0, 7.5, 8.0], [9.0, 10.5, 11.25]])


@pytest.fixture
def csv(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "table.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.fixture
def parquet(tmp_path):
    def write(table: dict | pa.Table) -> Path:
        path = tmp_path / "table.parquet"
        pq.write_table(pa.table(table) if isinstance(table, dict) else table, path)
        return path

    return write


@pytest.fixture
def npz(tmp_path):
    def write(*args, **arrays) -> Path:
        path = tmp_path / "arrays.npz"
        np.savez(path, *args, **arrays)
        return path

    return write


class Harmful:
    """An object that leaves a folder behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def whole(path: Path, column: str | None = None, label: str | None = None) -> Part:
    """All parts of a file as one."""
    parts = list(EmbeddingFile(path, column, label).parts())
    labels = [value for part in parts for value in part.labels or []]
    names = [value for part in parts for value in part.names or []]
    return Part(torch.cat([part.rows for part in parts]), labels or None, names or None)


def lists(rows, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array([None if row is None else list(row) for row in rows], pa.list_(kind or pa.float64()))


# ---- .npy ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f4", ">f8"])
def test_npy_of_each_precision_and_order(tmp_path, kind, order):
    np.save(tmp_path / "a.npy", np.asarray(ROWS, dtype=kind, order=order))
    file = EmbeddingFile(tmp_path / "a.npy")
    (part,) = file.parts()
    assert (part.labels, part.names) == (None, None)
    assert part.rows.dtype == getattr(torch, f"float{8 * np.dtype(kind).itemsize}")
    np.testing.assert_array_equal(part.rows.numpy(), ROWS.astype(np.dtype(kind).newbyteorder("=")))
    assert file.count == 4


def test_whole_numbers_become_exact_floats(tmp_path, parquet):
    large = np.array([[2**24 + 1, -70_000], [2049, 3]])
    np.save(tmp_path / "a.npy", large)
    for path in (tmp_path / "a.npy", parquet({"v": lists(large.tolist(), pa.int64())})):
        rows = whole(path).rows
        assert rows.dtype == torch.float64
        assert rows.tolist() == large.tolist()


def test_npy_is_not_read_into_memory(tmp_path):
    size = 64 * 2**20
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (size // 64, 16)).flush()
    assert (tmp_path / "a.npy").stat().st_size > size
    tracemalloc.start()
    try:
        counts = [len(part.rows) for part in EmbeddingFile(tmp_path / "a.npy").parts()]
        assert tracemalloc.get_traced_memory()[1] < size / 2
    finally:
        tracemalloc.stop()
    assert len(counts) > 4
    assert sum(counts) == size // 64


def test_npy_that_holds_no_embeddings_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    for array, message in [
        (ROWS[0], r"found the shape \(3,\)"),
        (ROWS[None], r"found the shape \(1, 4, 3\)"),
        (ROWS[:0], r"empty, of shape \(0, 3\)"),
        (ROWS[:, :0], r"empty, of shape \(4, 0\)"),
        (ROWS.astype(str), "found an array of <U"),
        (ROWS.astype(complex), "found complex128"),
        (ROWS > 0, "found bool"),
    ]:
        np.save(path, array)
        with pytest.raises(SepNormError, match=rf"a\.npy.*{message}"):
            whole(path)
    np.save(path, ROWS)
    with pytest.raises(SepNormError, match="holds one array: leave out --column"):
        whole(path, "embedding")


# ---- .npz ---------------------------------------------------------------------------------------------------------------


def test_npz_with_one_array_whatever_its_name(npz):
    np.testing.assert_array_equal(whole(npz(ROWS)).rows, ROWS)
    np.testing.assert_array_equal(whole(npz(foo=ROWS, steps=np.arange(9))).rows, ROWS)


def test_npz_with_several_arrays_takes_the_named_or_the_usual_one(npz):
    path = npz(a=ROWS, b=ROWS + 1)
    np.testing.assert_array_equal(whole(path, "b").rows, ROWS + 1)
    with pytest.raises(SepNormError, match=r"which array holds the embeddings is not clear \(it has a, b\)"):
        whole(path)
    with pytest.raises(SepNormError, match=r"no array 'bb', only a, b. Did you mean 'b'"):
        whole(path, "bb")
    np.testing.assert_array_equal(whole(npz(other=ROWS + 1, Embeddings=ROWS)).rows, ROWS)
    with pytest.raises(SepNormError, match=r"not clear \(it has a, b\)"):
        whole(npz(a=ROWS, b=ROWS, cls=ROWS[0]))


def test_npz_with_labels(npz):
    assert whole(npz(x=ROWS, label=np.array(list("abca")))).labels == ["a", "b", "c", "a"]
    assert whole(npz(x=ROWS, y=ROWS), "y").labels is None
    path = npz(x=ROWS, kind=np.arange(4), short=np.arange(3))
    assert whole(path).labels is None
    assert whole(path, label="kind").labels == ["0", "1", "2", "3"]
    with pytest.raises(SepNormError, match=r"'short' has \(3,\) entries for \(4,\) embeddings"):
        whole(path, label="short")
    with pytest.raises(SepNormError, match=r"no array 'kin'.*Did you mean 'kind'"):
        whole(path, label="kin")


def test_labels_of_another_shape_are_refused_by_their_header(npz, monkeypatch):
    monkeypatch.setattr(
        EmbeddingFile, "_get", lambda self, arrays, name, *_: ROWS if name == "cls" else pytest.fail(name)
    )
    with pytest.raises(SepNormError, match=r"its labels 'label' have the shape \(4, 9\): give one label for each"):
        whole(npz(cls=ROWS, label=np.zeros((4, 9))))
    with pytest.raises(SepNormError, match=r"'label' has \(5,\) entries for \(4,\) embeddings"):
        whole(npz(cls=ROWS, label=np.zeros(5)))


def test_labels_stay_beside_their_rows_over_several_parts(npz, parquet):
    count = 70_000
    rows, labels = np.arange(2.0 * count).reshape(count, 2), np.arange(count)
    archive = npz(x=np.repeat(rows, 16, axis=1), label=labels)
    table = parquet({"x": lists(rows), "label": labels})
    for path in (archive, table):
        parts = list(EmbeddingFile(path).parts())
        assert len(parts) > 1
        assert all([str(int(value) // 2) for value in part.rows[:, 0]] == part.labels for part in parts)
        assert sum(len(part.rows) for part in parts) == count


def test_missing_labels_are_none(npz, parquet, csv):
    (part,) = EmbeddingFile(npz(embeddings=ROWS, label=[1.0, np.nan, 0.0, 1.0])).parts()
    assert part.labels == ["1.0", None, "0.0", "1.0"]
    (part,) = EmbeddingFile(parquet({"embedding": ROWS.tolist(), "label": ["a", None, "", "b"]})).parts()
    assert part.labels == ["a", None, None, "b"]
    (part,) = EmbeddingFile(csv("a,b,label\n0.5,1.5,x\n2.5,3.5,\n")).parts()
    assert part.labels == ["x", None]


def test_npz_without_embeddings_is_refused(npz, tmp_path):
    with pytest.raises(SepNormError, match=r"not clear \(it is empty\)"):
        whole(npz())
    with pytest.raises(SepNormError, match=r"not clear \(it has a\)"):
        whole(npz(a=ROWS[0]))
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(SepNormError, match=r"not clear \(it has notes.txt\)"):
        whole(tmp_path / "other.npz")


def test_a_suffix_that_belongs_to_the_other_kind_of_file(npz, tmp_path):
    npz(ROWS).rename(tmp_path / "archive.npy")
    with pytest.raises(SepNormError, match=r"archive.npy is an archive of arrays: name it .npz"):
        whole(tmp_path / "archive.npy")
    np.save(tmp_path / "a.npy", ROWS)
    (tmp_path / "a.npy").rename(tmp_path / "single.npz")
    with pytest.raises(SepNormError, match=r"single.npz is a single array: name it .npy"):
        whole(tmp_path / "single.npz")


# ---- objects ------------------------------------------------------------------------------------------------------------


def test_objects_are_refused_and_never_unpickled(tmp_path):
    trace = tmp_path / "trace"
    objects = np.full((4, 3), Harmful(trace), dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "b.npz", embeddings=objects)
    np.savez(tmp_path / "c.npz", embeddings=ROWS, label=objects[:, 0])
    for name in ("d.npy", "d.npz"):
        (tmp_path / name).write_bytes(pickle.dumps(Harmful(trace)))
    (tmp_path / "e.npy").write_bytes(b"ab")  # numpy takes this for a pickle too
    for name in ("a.npy", "b.npz", "c.npz", "d.npy", "d.npz", "e.npy"):
        with pytest.raises(SepNormError, match=f"{name} cannot be read as a .* file of embeddings: .*") as found:
            whole(tmp_path / name)
        assert re.search("objects in dtype|it is no array of numbers, or is damaged", str(found.value))
        assert "allow_pickle" not in str(found.value)
    assert not trace.exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)  # what a careless reader would do
    assert trace.exists()


def test_objects_beside_the_embeddings_are_no_obstacle(npz, tmp_path):
    path = npz(embeddings=ROWS, texts=np.full(4, Harmful(tmp_path / "trace"), dtype=object))
    np.testing.assert_array_equal(whole(path).rows, ROWS)
    assert not (tmp_path / "trace").exists()


# ---- .parquet -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("form", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 3)])
def test_parquet_with_a_column_of_lists_of_each_form(parquet, form, kind):
    rows = ROWS.astype(kind.to_pandas_dtype())
    path = parquet({"n": [1, 2, 3, 4], "anything": pa.array(list(rows), form(kind)), "label": list("abca")})
    found = whole(path)
    np.testing.assert_array_equal(found.rows.numpy(), rows)
    assert found.rows.numpy().dtype == rows.dtype
    file = EmbeddingFile(path)
    assert len(next(file.parts()).rows) == file.count == 4
    assert found.labels == ["a", "b", "c", "a"]


def test_parquet_keeps_double_precision(parquet):
    rows = np.random.default_rng(0).standard_normal((5, 3)) * 1e-200
    np.testing.assert_array_equal(whole(parquet({"v": lists(rows)})).rows.numpy(), rows)
    columns = {name: rows[:, i] for i, name in enumerate("abc")}
    np.testing.assert_array_equal(whole(parquet(columns)).rows.numpy(), rows)


def test_parquet_with_several_columns_of_lists(parquet):
    path = parquet({"a": lists(ROWS), "b": lists(ROWS + 1)})
    np.testing.assert_array_equal(whole(path, "b").rows, ROWS + 1)
    with pytest.raises(SepNormError, match=r"which column of lists holds the embeddings is not clear \(it has a, b\)"):
        whole(path)
    with pytest.raises(SepNormError, match=r"no column 'bb', only a, b. Did you mean 'b'"):
        whole(path, "bb")
    np.testing.assert_array_equal(whole(parquet({"a": lists(ROWS + 1), "Vector": lists(ROWS)})).rows, ROWS)
    words = pa.array([["some"], ["more", "words"], [], None])
    np.testing.assert_array_equal(whole(parquet({"words": words, "x": lists(ROWS)})).rows, ROWS)


def test_parquet_with_columns_of_numbers(parquet):
    table = {
        "text": ["one", "two"],
        "id": [7, 8],
        "a": [0.5, 1.5],
        "b": [2, 3],
        "class": ["x", "y"],
        "t": [True, False],
    }
    found = whole(parquet(table))
    assert found.rows.tolist() == [[0.5, 2.0], [1.5, 3.0]]
    assert found.labels == ["x", "y"]
    assert found.names == ["one", "two"]
    assert whole(parquet(table), "b").rows.tolist() == [[2.0], [3.0]]
    assert whole(parquet({"a": [1.5], "b": [2.5], "text": ["long " * 100]})).names == ["long " * 40]


def test_the_index_of_pandas_is_no_dimension(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(ROWS, index=[4, 3, 2, 1])
    frame.to_csv(tmp_path / "frame.csv")
    np.testing.assert_array_equal(whole(tmp_path / "frame.csv").rows, ROWS)
    frame.to_csv(tmp_path / "frame.csv", index=False)
    np.testing.assert_array_equal(whole(tmp_path / "frame.csv").rows, ROWS)
    frame.columns = list("abc")
    frame.to_parquet(tmp_path / "frame.parquet")
    np.testing.assert_array_equal(whole(tmp_path / "frame.parquet").rows, ROWS)


def test_columns_of_the_same_name_are_each_read(parquet, csv):
    table = pa.Table.from_arrays([pa.array([1.5, 2.0]), pa.array([3.0, 4.0])], names=["a", "a"])
    for path in (parquet(table), csv("a,a\n1.5,3\n2,4\n")):
        assert whole(path).rows.tolist() == [[1.5, 3.0], [2.0, 4.0]]


@pytest.mark.parametrize("form", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
def test_missing_embeddings_become_rows_of_nan(parquet, form):
    rows = [[1.0, 2.0], None, [3.0, None], [4.0, 5.0]]
    found = whole(parquet({"v": pa.array(rows, form(pa.float32()))})).rows
    np.testing.assert_array_equal(found.numpy(), [[1, 2], [np.nan, np.nan], [3, np.nan], [4, 5]])
    assert found.dtype == torch.float32


def test_a_whole_part_of_missing_embeddings(parquet):
    count = 20_000  # more than a part has
    found = whole(parquet({"v": lists([[1.0, 2.0]] + [None] * 2 * count + [[3.0, 4.0]])})).rows
    assert found.shape == (2 * count + 2, 2)
    assert found[[0, -1]].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found[1:-1].isnan().all()
    with pytest.raises(SepNormError, match=r"its first 2 embeddings are missing or empty"):
        whole(parquet({"v": lists([None, None])}))
    with pytest.raises(SepNormError, match=r"its first 2 embeddings are missing or empty"):
        whole(parquet({"v": lists([[], []])}))


@pytest.mark.parametrize("before", [1, 20_000])
def test_lists_of_different_lengths_are_refused(parquet, before):
    with pytest.raises(SepNormError, match=r"table.parquet: its embeddings have different lengths \(1, 2\)"):
        whole(parquet({"v": lists([[1.0, 2.0]] * before + [[3.0]])}))


def test_tables_without_numbers_or_rows_are_refused(parquet, csv):
    for path in (parquet({"a": ["x"], "b": ["y"]}), csv("a,b\nx,y\n")):
        with pytest.raises(SepNormError, match=r"table.* holds texts \(a, b\) and no embeddings"):
            whole(path)
    with pytest.raises(SepNormError, match=r"no columns of numbers that could be dimensions, only words"):
        whole(parquet({"words": [["a"], ["b"]]}))
    for path in (parquet({"a": ["x"], "b": lists([[1.0]])}), csv("a,b\nx,1\n")):
        with pytest.raises(SepNormError, match=r"its column 'a' holds string, not numbers"):
            whole(path, "a")
    for column in (lists([]), pa.array([], pa.float32())):
        with pytest.raises(SepNormError, match=r"table.parquet: it holds no rows"):
            whole(parquet({"v": column}))
    with pytest.raises(SepNormError, match=r"no columns of numbers"):
        whole(csv("a,b\n"))
    for text in ("", "\n\n"):
        with pytest.raises(
            SepNormError, match=r"table.csv cannot be read as a .csv file of embeddings: .*[Ee]mpty CSV file"
        ):
            whole(csv(text))


# ---- .csv ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n0.5,2\n1.5,3\n",
        "a,b\r\n0.5,2\r\n1.5,3\r\n",
        "\ufeffa,b\n0.5,2\n1.5,3\n",
        "0,1\n0.5,2\n1.5,3\n",
        '"0","1"\n0.5,2\n1.5,3\n',
        ",0,1\n0,0.5,2\n1,1.5,3\n",
        "index,a,b\n0,0.5,2\n1,1.5,3\n",
        "Unnamed: 0,a,b\n0,0.5,2\n1,1.5,3\n",
        "0.5,2\n1.5,3\n",
        "\ufeff0.5,2\n1.5,3\n",
        "5e-1,2e0\n1.5,3\n",
    ],
)
def test_csv_with_and_without_a_header_and_an_index(csv, text):
    rows = whole(csv(text)).rows
    assert rows.dtype == torch.float64
    assert rows.tolist() == [[0.5, 2.0], [1.5, 3.0]]


@pytest.mark.parametrize("first", ["0.0,0.0,1.0", "0,0,1", "-1,2,3", "nan,2,3"])
def test_no_row_is_lost_where_the_first_one_has_whole_numbers(csv, first):
    rows = whole(csv(f"{first}\n0.5,1.5,2.5\n")).rows
    np.testing.assert_array_equal(rows.numpy(), [[float(cell) for cell in first.split(",")], [0.5, 1.5, 2.5]])


def test_csv_with_labels_and_texts(csv):
    path = csv("text,a,label,b\none,1,x,2\ntwo,3,y,4\n")
    found = whole(path)
    assert (found.rows.tolist(), found.labels, found.names) == ([[1, 2], [3, 4]], ["x", "y"], ["one", "two"])
    found = whole(csv("a,kind,b\n1,0,2\n3,1,4\n"), label="kind")
    assert (found.rows.tolist(), found.labels, found.names) == ([[1, 2], [3, 4]], ["0", "1"], None)
    with pytest.raises(SepNormError, match=r"no column 'knd', only a, kind, b. Did you mean 'kind'"):
        whole(csv("a,kind,b\n1,0,2\n3,1,4\n"), label="knd")


@pytest.mark.parametrize(
    "text",
    [
        "0,5;-1,5;2,0\n3,25;4,0;5,5\n",
        "0.5;-1.5;2.0\n3.25;4.0;5.5\n",
        "a;b;c\n0,5;-1,5;2,0\n",
        "a\tb\tc\n0.5\t-1.5\t2.0\n",
    ],
)
def test_other_separators_than_commas_are_refused(csv, text):
    with pytest.raises(SepNormError, match=r"its cells are separated by .*: separate them by commas"):
        list(EmbeddingFile(csv(text)).parts())


@pytest.mark.parametrize("cell", ["missing", "-", "0,5"])
def test_a_column_of_numbers_and_a_word_is_refused(csv, cell):
    with pytest.raises(SepNormError, match=f"its column 'b' holds numbers and '{cell}', which is none"):
        list(EmbeddingFile(csv(f'a,b,c\n0.5,"{cell}",2.0\n3.25,4.5,5.5\n-6.0,7.5,8.0\n')).parts())


def test_names_of_columns_may_begin_with_a_space(csv):
    (part,) = EmbeddingFile(csv("index, a, b, label\n0, 0.5, 1.5, 1\n1, 2.5, 3.5, 0\n")).parts()
    assert part.rows.tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert part.labels == ["1", "0"]


def test_gaps_and_nan_in_csv_stay(csv):
    rows = whole(csv("a,b\n1,nan\n,4\ninf,-nan\n")).rows
    np.testing.assert_array_equal(rows.numpy(), [[1, np.nan], [np.nan, 4], [np.inf, np.nan]])
    rows = whole(csv("a,b\n1,nan\n2,NaN\n")).rows
    np.testing.assert_array_equal(rows.numpy(), [[1, np.nan], [2, np.nan]])


def test_whole_numbers_for_a_megabyte_and_others_after(csv):
    rows = whole(csv("a,label\n" + "1,2\n" * 400_000 + "1.5,3\n"))
    assert rows.rows[-2:].tolist() == [[1.0], [1.5]]
    assert rows.labels[-2:] == ["2", "3"]


def test_a_broken_value_far_down_is_found_and_named(csv):
    path = csv("a,b\n" + "1.5,2\n" * 300_000 + "1.5,oops\n")
    parts = EmbeddingFile(path).parts()
    assert next(parts).rows[0].tolist() == [1.5, 2.0]
    with pytest.raises(
        SepNormError, match=r"table.csv cannot be read as a .csv file of embeddings: .*column #1.*'oops'"
    ):
        list(parts)


# ---- damage -------------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_refused(tmp_path):
    for name in ("a.npy", "a.npz", "a.parquet", "a.csv"):
        with pytest.raises(SepNormError, match=rf"there is no file .*{name}"):
            EmbeddingFile(tmp_path / name)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
def test_a_file_cut_short_anywhere_is_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    rows = np.random.default_rng(0).standard_normal((20, 5))
    if suffix == ".npy":
        np.save(path, rows)
    elif suffix == ".npz":
        np.savez_compressed(path, rows)
    else:
        pq.write_table(pa.table({"v": lists(rows)}), path)
    content = path.read_bytes()
    np.testing.assert_array_equal(whole(path).rows.numpy(), rows)
    for cut in [*range(0, len(content), 41), len(content) - 1]:
        path.write_bytes(content[:cut])
        with pytest.raises(
            SepNormError, match=rf"a{suffix} cannot be read as a {suffix} file of embeddings: .*Write it again"
        ):
            whole(path)


def test_a_table_cut_short_is_refused(csv):
    for text in ("a,b,c\n1,2,3\n4,5", 'a,b\n1,2\n"3,4\n'):
        with pytest.raises(
            SepNormError, match=r"table.csv cannot be read as a .csv file of embeddings: CSV parse error"
        ):
            whole(csv(text))


def test_damage_inside_an_archive_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", np.random.default_rng(0).standard_normal((50, 50)))
    content = (tmp_path / "a.npz").read_bytes()
    for place in range(40, len(content) - 200, 997):
        (tmp_path / "a.npz").write_bytes(content[:place] + b"\xff" * 30 + content[place + 30 :])
        with pytest.raises(SepNormError, match=r"a.npz cannot be read as a .npz file of embeddings"):
            whole(tmp_path / "a.npz")


# ---- there and back -----------------------------------------------------------------------------------------------------


def matrices(kinds):
    shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6)
    values = {"allow_nan": True, "allow_infinity": True}
    return kinds.flatmap(lambda kind: hnp.arrays(kind, shapes, elements=values if kind != "float16" else None))


@settings(max_examples=40, deadline=None)
@given(matrices(st.sampled_from(["float16", "float32", "float64"])))
def test_arrays_and_lists_come_back(rows):
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/a.npy", rows)
        np.savez(f"{folder}/a.npz", embeddings=rows)
        pq.write_table(pa.table({"v": pa.array(list(rows))}), f"{folder}/a.parquet")
        for suffix in ("npy", "npz", "parquet"):
            found = whole(Path(folder, f"a.{suffix}")).rows.numpy()
            assert found.dtype == rows.dtype
            np.testing.assert_array_equal(found, rows)


@settings(max_examples=40, deadline=None)
@given(matrices(st.just("float64")), st.booleans())
def test_tables_come_back(rows, header):
    names = [f"d{i}" for i in range(rows.shape[1])]
    lines = [",".join(map(repr, row)) for row in rows.tolist()]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.csv").write_text("\n".join([",".join(names), *lines] if header else lines) + "\n")
        pq.write_table(pa.table(dict(zip(names, rows.T, strict=True))), f"{folder}/a.parquet")
        for suffix in ("csv", "parquet"):
            np.testing.assert_array_equal(whole(Path(folder, f"a.{suffix}")).rows.numpy(), rows)


def test_an_array_that_is_packed_a_thousand_times_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("sepnorm.files.LARGE", 2**20)
    np.savez_compressed(tmp_path / "z.npz", cls=np.zeros((3000, 100)))
    with pytest.raises(
        SepNormError, match=r"array cls.npy has 0.0 GiB, packed to .* and is not unpacked: save it as .npy"
    ):
        list(EmbeddingFile(tmp_path / "z.npz").parts())
    np.savez(tmp_path / "z.npz", cls=np.zeros((3000, 100)))
    assert sum(len(part.rows) for part in EmbeddingFile(tmp_path / "z.npz").parts()) == 3000


@pytest.mark.parametrize("shape", ["(3,", "(10**9, 10**9)", f"({10**30}, 2)", "(-1, 2)", "(99999999999, 99999)"])
def test_a_damaged_header_is_one_sentence(tmp_path, shape):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    (tmp_path / "e.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(100))
    with pytest.raises(SepNormError, match=r"cannot be read as a .npy file of embeddings"):
        list(EmbeddingFile(tmp_path / "e.npy").parts())


@pytest.mark.parametrize("form", ["npy", "npz", "lists", "fixed", "columns", "csv"])
def test_very_wide_embeddings_are_refused_before_they_are_measured(tmp_path, form):
    rows = np.arange(4 * 16_385, dtype=np.float32).reshape(4, -1)
    path = tmp_path / f"e.{'parquet' if form in ('lists', 'fixed', 'columns') else form}"
    if form == "npy":
        np.save(path, rows)
    elif form == "npz":
        np.savez_compressed(path, embedding=rows)
    elif form == "csv":
        np.savetxt(path, rows, fmt="%.2f", delimiter=",", header=",".join(f"d{n}" for n in range(16_385)), comments="")
    elif form == "columns":
        pq.write_table(pa.table({f"d{n}": rows[:, n] for n in range(16_385)}), path)
    else:
        kind = pa.list_(pa.float32(), 16_385 if form == "fixed" else -1)
        pq.write_table(pa.table({"embedding": pa.array(list(rows), kind)}), path)
    with pytest.raises(SepNormError, match="embeddings have 16,385 dimensions, and 16,384 are the most"):
        next(EmbeddingFile(path).parts())
