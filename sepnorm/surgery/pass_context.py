"""A value of the current forward pass, such as its padding mask, for modules deep inside a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from sepnorm.errors import SepNormError
from sepnorm.layer.torch_internals import in_backward
from sepnorm.surgery.families import is_sentence_module, is_timm, is_torch_encoder, is_transformers

_REMEMBERED = 8


class PassContext:
    """A value that a model sets when it is called and clears when it returns.

    Gradient checkpointing runs blocks again in the backward pass, after the model has returned. For that, the values of
    recent passes are kept, and the one that fits the block's input is used.
    """

    #: Error message for the case that several kept values fit.
    unclear = ""

    def __init__(self) -> None:
        self.value: Any = None
        self.depth = 0
        self._earlier: list[Any] = []
        self._recomputed = False

    def current(self, batch: int, tokens: int) -> Any:
        """The value of the pass that runs now, or that is recomputed with (batch, tokens)."""
        if torch.compiler.is_compiling() or self.depth or not in_backward():
            return self.value
        return self._recall(batch, tokens)

    def enter(self, value: Any) -> None:
        """Sets the value at the start of a pass."""
        self.value = value
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if self._recomputed:
            self._earlier.clear()
            self._recomputed = False
        self._earlier = [*self._earlier[1 - _REMEMBERED :], value]

    def refine(self, value: Any) -> None:
        """Replaces the value of the same pass."""
        self.value = value
        if self._earlier and not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self._earlier[-1] = value

    def fits(self, value: Any, batch: int, tokens: int) -> bool:
        """Whether a value can belong to a pass with this input."""
        return value is None or tuple(value.shape) == (batch, tokens)

    def same(self, value: Any, other: Any) -> bool:
        """Whether two values are equal."""
        return value is other or (value is not None and other is not None and bool(value.equal(other)))

    def _recall(self, batch: int, tokens: int) -> Any:
        self._recomputed = True
        fitting = [value for value in self._earlier if self.fits(value, batch, tokens)]
        if not fitting:
            return None
        if not all(self.same(value, fitting[-1]) for value in fitting):
            raise SepNormError(self.unclear)
        return fitting[-1]


class Leave:
    """Forward hook that clears the value when the outermost model returns or raises."""

    def __init__(self, context: PassContext) -> None:
        self.context = context

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.context.depth = max(0, self.context.depth - 1)
        if self.context.depth == 0:
            self.context.value = None


def models_around(model: nn.Module, inner: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """The model itself, and every encoder of a known family in it, if it contains some of ``inner``."""
    wanted = {id(module) for module in inner}
    for module in model.modules():
        known = is_torch_encoder(module) or is_transformers(module) or is_timm(module) or is_sentence_module(module)
        if (known or module is model) and any(id(child) in wanted for child in module.modules()):
            yield module
