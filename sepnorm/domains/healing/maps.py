"""The file of a linear map, which NumPy alone can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sepnorm.domains.encoders import Encoded
from sepnorm.errors import SepNormError
from sepnorm.files import intact, refuse_bombs, write_whole
from sepnorm.geometry.linear_maps import LinearMap

#: File of the map: ``weight`` (out, in), ``bias`` (out,), ``name`` and ``pooling``.
FILE = "healing.npz"


def load_map(folder: str | Path) -> tuple[LinearMap, str]:
    """Reads the map that ``heal`` wrote to a folder, and the pooling that it follows (empty for bare vectors)."""
    import numpy

    path = Path(folder) / FILE if Path(folder).is_dir() else Path(folder)
    if not path.is_file():
        raise SepNormError(f"there is no {FILE} in {folder}: it is no folder that heal wrote.")
    with intact(path), numpy.load(path, allow_pickle=False) as arrays:
        refuse_bombs(arrays.zip)
        weight, bias = torch.from_numpy(arrays["weight"]), torch.from_numpy(arrays["bias"])
        if weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise ValueError(f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} do not fit")
        return LinearMap(str(arrays["name"]), weight.double(), bias.double()), str(arrays["pooling"])


def healed_pooling(folder: str | Path) -> Callable[[Encoded], Tensor]:
    """A function from hidden states to healed vectors (batch, out), by the map in a folder."""
    found, pooling = load_map(folder)
    return lambda encoded: healed_vectors(encoded, found, pooling)


def healed_vectors(encoded: Encoded, found: LinearMap, pooling: str) -> Tensor:
    """Healed vectors (batch, out): the map of a pooling, ``cls``, ``mean`` or ``sum`` of both."""
    if pooling == "sum":
        return found(encoded.pooled("cls") + encoded.pooled("mean"))
    return found(encoded.pooled(pooling))


def write_map(path: Path, found: LinearMap, pooling: str) -> None:
    """Writes ``weight``, ``bias``, ``name`` and ``pooling`` to an ``.npz`` file."""
    import numpy

    def write(scratch: str) -> None:
        with open(scratch, "wb") as file:
            numpy.savez(
                file,
                allow_pickle=False,
                weight=found.weight.numpy(),
                bias=found.bias.numpy(),
                name=numpy.array(found.name),
                pooling=numpy.array(pooling),
            )

    write_whole(path, write)
