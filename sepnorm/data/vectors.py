"""Reads embeddings in parts from .npy, .npz, .parquet and .csv files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sepnorm.data.columns import (
    counts_in_floats,
    is_counted,
    is_data,
    labels_of,
    require_commas,
    require_narrow,
    require_numbers,
)
from sepnorm.data.npz import header, matrices
from sepnorm.data.tables import parquet_parts
from sepnorm.errors import SepNormError, nearest, one_line
from sepnorm.files import DAMAGE, refuse_bombs

if TYPE_CHECKING:
    from torch import Tensor

_NAMES = ("embedding", "embeddings", "vector", "vectors", "features", "emb", "cls")
_LABELS = ("label", "labels", "class", "target", "y")
_NUMBERING = ("", "id", "index", "unnamed: 0", "__index_level_0__")  # columns that number the rows
_ROWS = 16_384
_LONGEST = 10**7  # characters read of the first line


class Part(NamedTuple):
    """Rows (count, dim), with labels and names if the file has them. A missing label is None."""

    rows: Tensor
    labels: list[str | None] | None = None
    names: list[str] | None = None


class EmbeddingFile:
    """A file of embeddings, read in parts.

    Args:
        path: a ``.npy``, ``.npz``, ``.parquet`` or ``.csv`` file.
        column: the array of an .npz, or the column of a table, that holds the embeddings; chosen automatically if None.
        label: the array or column of labels; chosen by its name if None.

    ``count`` is the number of rows, if known. ``note`` says which columns of a table are used, once the first part is
    read.
    """

    def __init__(self, path: str | Path, column: str | None = None, label: str | None = None) -> None:
        self.path, self.column, self.label = Path(path), column, label
        if not self.path.is_file():
            raise SepNormError(f"there is no file {self.path}.")
        self.count: int | None = None  # set if known before reading
        self.note = ""
        self._parts = getattr(self, f"_open_{self.path.suffix.lower()[1:]}")

    def parts(self) -> Iterator[Part]:
        """Yields the embeddings in parts."""
        with self._told():
            yield from self._parts()

    def look(self) -> None:
        """Refuses a table whose columns cannot be embeddings, without torch. Arrays are checked when they are read."""
        with self._told():
            if self.path.suffix.lower() == ".parquet":
                import pyarrow.parquet

                self._columns(pyarrow.parquet.ParquetFile(self.path).schema_arrow)
            elif self.path.suffix.lower() == ".csv":
                self._columns(self._csv()[1])

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turns errors while reading into one sentence that names the file."""
        import pyarrow

        try:
            yield
        except SepNormError as error:
            message = str(error)
            raise SepNormError(message if str(self.path) in message else f"{self.path}: {message}") from error
        except (pyarrow.ArrowException, *DAMAGE) as error:
            pickled = "allow_pickle" in str(error)  # numpy takes any bytes that it does not know for a pickle
            why = "it is no array of numbers, or is damaged" if pickled else one_line(error)
            raise SepNormError(
                f"{self.path} cannot be read as a {self.path.suffix} file of embeddings: {why}. Write it again."
            ) from error

    def _open_npy(self) -> Iterator[Part]:
        import numpy

        if self.column is not None:
            raise SepNormError(f"{self.path} holds one array: leave out --column.")
        array = numpy.load(self.path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, numpy.ndarray):
            raise SepNormError(f"{self.path} is an archive of arrays: name it .npz.")
        yield from self._array(array)

    def _open_npz(self) -> Iterator[Part]:
        import numpy

        loaded = numpy.load(self.path, allow_pickle=False)
        if isinstance(loaded, numpy.ndarray):
            raise SepNormError(f"{self.path} is a single array: name it .npy.")
        with loaded as arrays:
            refuse_bombs(arrays.zip)
            names = list(arrays.files)
            chosen = self.column or self._only(matrices(arrays), names, "array")
            shape, _ = header(arrays, chosen) if chosen in names else ((), None)
            if len(shape) == 2:
                require_narrow(shape[1])
            array = self._get(arrays, chosen, names, "array")
            label = self.label or next((name for name in _LABELS if name in names and name != chosen), None)
            labels = None if label is None else self._labels(arrays, label, names, array.shape[:1])
        yield from self._array(array, labels)

    def _labels(self, arrays: Any, label: str, names: list[str], count: tuple[int, ...]) -> Any:
        """The array of labels, read once its header says that it has one label for each embedding."""
        shape, _ = header(arrays, label) if label in names else (count, None)
        if len(shape) != 1:
            raise SepNormError(f"its labels {label!r} have the shape {shape}: give one label for each embedding.")
        if shape != count:
            raise SepNormError(f"{label!r} has {shape} entries for {count} embeddings.")
        return self._get(arrays, label, names, "array")

    def _array(self, array: Any, labels: Any = None) -> Iterator[Part]:
        from sepnorm.geometry.cloud import chunks

        if array.ndim == 2:
            require_narrow(array.shape[1])
        self.count = array.shape[0] if array.ndim == 2 else None
        start = 0
        for rows in chunks(array):
            stop = start + rows.shape[0]
            yield Part(rows, None if labels is None else labels_of(labels[start:stop].tolist()))
            start = stop

    def _open_parquet(self) -> Iterator[Part]:
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(self.path)
        self.count = file.metadata.num_rows
        yield from self._table(parquet_parts(self.path, _ROWS), file.schema_arrow)

    def _open_csv(self) -> Iterator[Part]:
        open_again, schema = self._csv()
        yield from self._table(open_again(), schema)

    def _csv(self) -> tuple[Callable[[], Any], Any]:
        """A function that opens the table with all numbers as floats, and the schema inferred from its beginning."""
        import pyarrow.csv

        with open(self.path, encoding="utf-8-sig", errors="replace") as file:
            first = file.readline(_LONGEST)
        require_commas(first)
        options = pyarrow.csv.ReadOptions(autogenerate_column_names=is_data(first))
        kinds = pyarrow.csv.ConvertOptions()
        kinds.null_values = [v for v in kinds.null_values if v.lower().lstrip("-") != "nan"]  # which is a number
        with pyarrow.csv.open_csv(self.path, read_options=options, convert_options=kinds) as reader:
            schema = reader.schema
        found = [f for f in schema if f.name != self._label(schema.names) and _is_number(f.type)]
        # types are inferred from the first megabyte: integers there may be followed by floats
        kinds.column_types = {f.name: pyarrow.float64() for f in found}
        return lambda: pyarrow.csv.open_csv(self.path, read_options=options, convert_options=kinds), schema

    def _columns(self, schema: Any) -> tuple[list[int], str | None, list[str]]:
        """Positions of the embedding columns (one of lists, or all numeric ones), label column, text columns."""
        from pyarrow import types

        names = schema.names
        lists = [f.name for f in schema if _is_list(f.type)]
        label = self._label(names)
        wide = [i for i, f in enumerate(schema) if _is_number(f.type) and f.name.strip().lower() not in _NUMBERING]
        wide = [i for i in wide if names[i] != label]  # by position, since a name may occur twice
        texts = [f.name for f in schema if types.is_string(f.type) or types.is_large_string(f.type)]
        texts = [name for name in texts if name != label]
        for wanted in (self.column, label):
            if wanted is not None and wanted not in names:
                self._get({}, wanted, names, "column")
        if self.column or lists:
            wide = [names.index(self.column or self._only(lists, names, "column of lists"))]
        elif len(wide) < 2 and texts:  # a single number beside texts is a key or a score, not an embedding
            raise SepNormError(
                f"{self.path} holds texts ({', '.join(names)}) and no embeddings: make some of them first, sepnorm embed MODEL "
                f"{self.path} --out embeddings.parquet, or see what a model makes of them, sepnorm diagnose MODEL --data FILE."
            )
        elif not wide:
            raise SepNormError(f"it has no columns of numbers that could be dimensions, only {', '.join(names)}.")
        kind = schema.field(wide[0]).type
        require_narrow(getattr(kind, "list_size", len(wide)))
        if not _is_number(kind) and not _is_list(kind):
            raise SepNormError(f"its column {self.column!r} holds {kind}, not numbers or lists of numbers.")
        return wide, label, texts

    def _table(self, batches: Any, schema: Any) -> Iterator[Part]:
        wide, label, texts = self._columns(schema)
        kind = schema.field(wide[0]).type
        batches = iter(batches)
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is not None and self.path.suffix.lower() == ".csv":
            for name in texts:
                require_numbers(name, first.column(name).to_pylist())
        if first is not None and self.column is None and not _is_list(kind):
            wide = self._without_keys(schema, wide, first)
        seen, dim = False, None
        for batch in chain([] if first is None else [first], batches):
            if batch.num_rows == 0:
                continue
            seen = True
            columns = [batch.column(i) for i in wide]
            rows = _from_lists(columns[0], dim) if _is_list(kind) else _from_columns(columns)
            dim = rows.shape[1]
            part_labels = None if label is None else labels_of(batch.column(label).to_pylist())
            part_names = [str(v)[:200] for v in batch.column(texts[0]).to_pylist()] if texts else None
            yield Part(rows, part_labels, part_names)
        if not seen:
            raise SepNormError("it holds no rows.")

    def _without_keys(self, schema: Any, wide: Sequence[int], batch: Any) -> list[int]:
        """Drops columns of distinct integers, which are keys, and records in ``note`` which columns are used.

        If all embeddings are integers, only a column that counts the rows is dropped.
        """
        from pyarrow import types

        whole = [i for i in wide if types.is_integer(schema.field(i).type)]
        keys = [i for i in whole if is_counted(batch.column(i), strict=len(whole) == len(wide))]
        keys += [i for i in wide if i not in whole and counts_in_floats(batch.column(i))]
        keys = [] if len(keys) == len(wide) else keys
        taken = [i for i in wide if i not in keys]
        numbering = [name for name in schema.names if name.lower() in _NUMBERING and name]
        left = [*(repr(schema.names[i]) for i in keys), *map(repr, numbering)]
        reason = f"; {', '.join(left)} {'is' if len(left) == 1 else 'are'} left out, as a key" if left else ""
        self.note = (
            f"{len(taken)} columns are taken for dimensions, {_listed([schema.names[i] for i in taken])}{reason}."
        )
        return taken

    def _label(self, names: list[str]) -> str | None:
        return self.label or next((name for name in names if name.strip().lower() in _LABELS), None)

    def _only(self, fitting: list[str], names: list[str], what: str) -> str:
        usual = [name for name in names if name.lower() in _NAMES and name in fitting]
        if len(fitting) == 1 or usual:
            return (usual or fitting)[0]
        found = f"it has {', '.join(fitting or names)}" if names else "it is empty"
        raise SepNormError(f"which {what} holds the embeddings is not clear ({found}): name it by --column.")

    def _get(self, mapping: Any, name: str, names: list[str], what: str) -> Any:
        if name not in names:
            raise SepNormError(f"it has no {what} {name!r}, only {', '.join(names)}.{nearest(name, names)}")
        return mapping[name]


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind))


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{names[0]}, {names[1]} to {names[-1]}"


def _is_list(kind: Any) -> bool:
    """Whether a column type is a list of numbers."""
    from pyarrow import types

    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(is_one(kind) for is_one in lists) and _is_number(kind.value_type)


def _from_lists(column: Any, dim: int | None) -> Tensor:
    """Embeddings from a column of lists of equal length. A missing list becomes a row of NaN, which is counted later.

    ``dim``: the length of the lists in earlier parts, or None in the first.
    """
    import pyarrow.compute
    import torch

    lengths = set(pyarrow.compute.list_value_length(column.drop_null()).unique().to_pylist())
    require_narrow(max((length for length in lengths if length), default=0))
    lengths |= set() if dim is None else {dim}
    if len(lengths) > 1:
        raise SepNormError(f"its embeddings have different lengths ({', '.join(map(str, sorted(lengths)[:5]))}).")
    if not any(lengths):
        raise SepNormError(f"its first {len(column)} embeddings are missing or empty.")
    dim = lengths.pop()
    flat = pyarrow.compute.list_flatten(column).to_numpy(zero_copy_only=False)
    values = torch.tensor(flat)
    kind = values.dtype if values.is_floating_point() else torch.float64
    rows = torch.full((len(column), dim), float("nan"), dtype=kind)
    present = torch.from_numpy(column.is_valid().to_numpy(zero_copy_only=False).copy())
    rows[present] = values.reshape(-1, dim).to(rows.dtype)
    return rows


def _from_columns(columns: list[Any]) -> Tensor:
    import torch

    arrays = [torch.tensor(c.to_numpy(zero_copy_only=False), dtype=torch.float64) for c in columns]
    return torch.stack(arrays, dim=1)
