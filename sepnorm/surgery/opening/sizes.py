"""Reads the size of weights from safetensors headers alone, and refuses configs of larger models."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from sepnorm.errors import SepNormError, one_line

_LARGEST_HEADER = 10**8  # bytes; safetensors' own limit
_SPARE_VALUES, _SPARE_TENSORS = 2**26, 1000  # allowance for position tables and heads without saved weights


@dataclass(frozen=True)
class Size:
    """Number of tensors and of values, and the longest side of any tensor."""

    tensors: int = 0
    values: int = 0
    largest: int = 0


def size_of(files: Iterable[Path]) -> Size:
    """The size according to the headers of safetensors files; raises for a truncated file."""
    shapes: list[list[int]] = []
    for path in files:
        shapes += _shapes(path).values()
    return Size(len(shapes), sum(map(prod, shapes)), max((side for shape in shapes for side in shape), default=0))


def names_of(files: Iterable[Path]) -> list[str]:
    """Names of the tensors in safetensors files, from their headers alone."""
    return [name for path in files for name in _shapes(path)]


def _shapes(path: Path) -> dict[str, list[int]]:
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(_LARGEST_HEADER, path.stat().st_size):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        shapes = {name: [int(side) for side in entry["shape"]] for name, entry in tensors.items()}
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
        if 8 + length + end > path.stat().st_size:
            raise ValueError("it is cut short")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise SepNormError(
            f"{path} is no complete safetensors file: {one_line(error)}. Copy or save it again."
        ) from error
    return shapes


def require_fitting(build: Callable[[], Any], size: Size, where: Path) -> None:
    """Builds a model on the ``meta`` device, without memory, and raises once it is larger than its weights."""
    seen: dict[tuple[int, str], int] = {}
    total = 0

    def count(module: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        nonlocal total
        if tensor is None:
            return
        total += tensor.numel() - seen.get((id(module), name), 0)
        seen[id(module), name] = tensor.numel()
        if len(seen) > 4 * size.tensors + _SPARE_TENSORS or total > 2 * size.values + _SPARE_VALUES:
            raise SepNormError(
                f"{where} describes a larger model than its weights, which have {size.tensors:,} tensors with {size.values:,} "
                "values: it is not built. Use the config and weights of the same model."
            )

    with (
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
        torch.device("meta"),
    ):
        build()
