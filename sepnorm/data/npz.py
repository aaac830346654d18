"""Shapes of the arrays of an .npz file, from their headers, before any array is read."""

from __future__ import annotations

from typing import Any

_MAGIC = b"\x93NUMPY"


def matrices(arrays: Any) -> list[str]:
    """The names of two-dimensional arrays. Arrays of objects are skipped, since nothing is unpickled."""
    headers = {name: header(arrays, name) for name in arrays.files}
    found = [name for name, (shape, dtype) in headers.items() if len(shape) == 2 and not dtype.hasobject]
    refused = [name for name, (_, dtype) in headers.items() if dtype.hasobject]
    if refused and not found:
        arrays[refused[0]]  # numpy says why
    return found


def header(arrays: Any, name: str) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of a file in the archive; those of a single value if it is no array."""
    import numpy
    from numpy.lib import format as npy

    inside = name if name in arrays.zip.namelist() else f"{name}.npy"
    with arrays.zip.open(inside) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return (), numpy.dtype(bytes)
        file.seek(0)
        old = npy.read_magic(file) == (1, 0)
        shape, _, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(file)
    return shape, dtype
