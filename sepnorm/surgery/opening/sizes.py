"""Reads the size of weights from safetensors headers alone, and refuses configs of larger models."""

from __future__ import annotations

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

_SPARE_VALUES, _SPARE_TENSORS = 2**22, 1000  # allowance for position tables and heads without saved weights


@dataclass(frozen=True)
class Size:
    """Number of tensors and of values, and the longest side of any tensor that has values."""

    tensors: int = 0
    values: int = 0
    largest: int = 0


def size_of(files: Iterable[Path]) -> Size:
    """The size according to the headers of safetensors files; raises for a damaged file."""
    shapes: list[list[int]] = []
    for path in files:
        shapes += _shapes(path).values()
    sides = (side for shape in shapes if prod(shape) for side in shape)
    return Size(len(shapes), sum(map(prod, shapes)), max(sides, default=0))


def names_of(files: Iterable[Path]) -> list[str]:
    """Names of the tensors in safetensors files, from their headers alone."""
    return [name for path in files for name in _shapes(path)]


def _shapes(path: Path) -> dict[str, list[int]]:
    """Shapes by name, of a file whose header the library has checked: a shape has as many bytes as it needs."""
    from safetensors import safe_open

    try:
        with safe_open(path, "numpy") as file:  # maps the file, reads its header alone
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors has an error class for each kind of damage
        raise SepNormError(
            f"{path} is no complete safetensors file: {one_line(error)}. Copy or save it again."
        ) from error


def require_fitting(build: Callable[[], Any], size: Size, where: Path) -> None:
    """Builds a model on the ``meta`` device, without memory, and raises once it is larger than its weights."""
    seen: dict[tuple[int, str], int] = {}
    total = 0

    def count(module: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        nonlocal total
        if tensor is None:
            return
        size_in_floats = tensor.numel() * tensor.element_size() // 4  # tables of indices take twice as much
        total += size_in_floats - seen.get((id(module), name), 0)
        seen[id(module), name] = size_in_floats
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
