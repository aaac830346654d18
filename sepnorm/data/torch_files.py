"""Reads files of ``torch.save`` as data: a pickle's operations are followed, but no name in it is imported or called."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.errors import SepNormError, one_line
from sepnorm.files import require_file

_LARGEST = 2**26  # bytes of a pickle without its tensors; the splits of PCQM4Mv2 have 45 MB
_MOST = 2**20  # operations, each of which makes an object
_SIDES = 8  # of a tensor
_TENSOR, _PARAMETER = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter")
_DTYPES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}
#: Names that weights and the arguments of a run need.
_NAMES = frozenset(
    (_TENSOR, _PARAMETER, "collections.OrderedDict", "__builtin__.set", "torch.Size", "torch.device", *_DTYPES)
) | {str(dtype) for dtype in _DTYPES.values()}
#: Names in NumPy's arrays, old and new.
ARRAYS = frozenset("numpy.ndarray numpy.dtype numpy.dtypes.UInt32DType _codecs.encode".split()) | {
    f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = frozenset("BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINSTRING".split())
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(eq=False)
class Made:
    """What a pickle would make: by which name, of what, and with which state. ``name`` alone is the name itself."""

    name: str
    given: Any = None
    state: Any = None


@contextmanager
def stored(path: Path, names: Collection[str]) -> Iterator[Stored]:
    """Opens a file of ``torch.save``. A pickle with other names than weights need and ``names`` is refused.

    Raises for a compressed archive, which could unpack to any size, and ``DAMAGE`` for other contents.
    """
    require_file(path)
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise SepNormError(
            f"{path} is no checkpoint that torch.save wrote since version 1.6: {one_line(error)}. Save it again."
        ) from error
    with archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise SepNormError(f"{path} is packed, which torch.save does not do: it is not opened.")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise SepNormError(f"{path} names more than it holds: it is not opened.")
        yield Stored(path, archive, _NAMES | set(names))


class Stored:
    """An open file of ``torch.save``: ``content`` has objects as ``Made``, of which ``tensor`` makes tensors."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, names: Collection[str]) -> None:
        self._archive = archive
        (place,) = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
        if place.file_size > _LARGEST:
            raise SepNormError(
                f"{path} has {place.file_size / 2**20:.0f} MiB beside its tensors, and {_LARGEST // 2**20} MiB are the most."
            )
        self._root = place.filename.removesuffix("data.pkl")
        order = f"{self._root}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise SepNormError(f"{path} was saved on another kind of machine: save it again on one like this.")
        self.content: Any = _followed(archive.read(place), names)
        self._read: dict[str, bytearray] = {}

    def tensor(self, made: Any) -> Tensor | None:
        """The tensor that an object is; None if it is another thing. Raises for one that is not within its storage."""
        if isinstance(made, Made) and made.name == _PARAMETER:
            made = made.given[0]
        if not isinstance(made, Made) or made.name != _TENSOR:
            return None
        (storage, offset, shape, strides, *_) = made.given
        kind, dtype, key, _, count = storage.given
        if kind != "storage" or not len(shape) == len(strides) <= _SIDES or min((offset, *shape, *strides)) < 0:
            raise ValueError("a tensor is damaged")
        last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
        if 0 not in shape and last >= count:
            raise ValueError("a tensor is larger than what is stored of it")
        if 0 in shape:
            return torch.empty(shape, dtype=_DTYPES[dtype.name])
        values = torch.frombuffer(self._bytes(key), dtype=_DTYPES[dtype.name], count=count)
        return values.as_strided(shape, strides, offset)

    def _bytes(self, key: str) -> bytearray:
        if key not in self._read:
            entry = self._archive.getinfo(f"{self._root}data/{key}")
            self._read[key] = bytearray(entry.file_size)
            opened: Any = self._archive.open(entry)
            with opened as file:
                file.readinto(self._read[key])
        return self._read[key]


def _followed(data: bytes, names: Collection[str]) -> Any:
    """What a pickle of protocol 2 holds. Containers, numbers and texts are made; all else is a ``Made``."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def taken(count: int | None = None) -> list[Any]:
        """The last ``count`` values, or those since the last mark."""
        start = marks.pop() if count is None else len(stack) - count
        if start < 0:
            raise ValueError("it is damaged")
        values = stack[start:]
        del stack[start:]
        return values

    copied = 0
    operations: Iterator[tuple[Any, Any, Any]] = pickletools.genops(data)
    for number, (code, value, _) in enumerate(operations):
        if number >= _MOST:
            raise ValueError(f"more than {_MOST:,} values")
        name = code.name
        if name == "STOP":
            return stack.pop()
        if name == "MARK":
            marks.append(len(stack))
        elif name == "GLOBAL":
            stack.append(Made(_allowed(str(value).replace(" ", "."), names)))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _VALUES:
            stack.append(value)
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name == "TUPLE" or name in _TUPLES:
            stack.append(tuple(taken(_TUPLES.get(name))))
        elif name in ("APPEND", "APPENDS"):
            items = taken(1 if name == "APPEND" else None)
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = taken(2 if name == "SETITEM" else None)
            _set(stack[-1], items)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name == "BINPERSID":
            stack.append(Made("storage", *taken(1)))
        elif name in ("REDUCE", "NEWOBJ"):
            made, given = taken(2)
            copied += _cost(given)
            if copied > _LARGEST:
                raise ValueError("it is copied too often")
            if made.name == "_codecs.encode" and given[1:] != ("latin1",):
                raise ValueError("a text in a code of its own")
            stack.append({} if made.name == "collections.OrderedDict" else Made(made.name, given))
        elif name == "BUILD":
            (state,) = taken(1)
            if isinstance(stack[-1], Made):
                stack[-1].state = state
        elif name != "PROTO":
            raise ValueError(f"the operation {name}")
    raise ValueError("it is cut short")


def _allowed(name: str, names: Collection[str]) -> str:
    if name not in names:
        raise ValueError(name)
    return name


def _cost(given: Any) -> int:
    """About the bytes that a function may copy of its arguments: they can be the same ones many times over."""
    sizes = (
        (64 if isinstance(each, tuple | list | dict) else 1) * len(each) for each in given if hasattr(each, "__len__")
    )
    return sum(sizes)


def _set(target: Any, items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int | float):  # others may be nested deeper than Python can compare them
            raise ValueError("a name that is no text and no number")
        target[key] = value
