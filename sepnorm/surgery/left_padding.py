"""Refuses padding on the left, which puts a pad where a converted norm expects [CLS]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.layer import SepNorm
from sepnorm.layer.padding import padded_left
from sepnorm.layer.torch_internals import pre_hooks, remove_hooks, transforms_active
from sepnorm.surgery.padding import MASK_ARGUMENTS, mask_argument, mask_of, to_padding
from sepnorm.surgery.pass_context import models_around

#: Masks on an accelerator that are looked at. Each look waits for the device, so later ones are taken on trust.
_LOOKS = 3


class _LookLeft:
    """Forward pre-hook of a model that tells its separate norms of a mask with padding on the left.

    The norms raise if the mask is of their tokens. It is not if the model itself puts [CLS] before what it is given.
    """

    def __init__(self, name: str, position: int) -> None:
        self.name, self.position = name, position
        self.looks = _LOOKS
        self.told = False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = mask_of(args, kwargs, self.name, self.position)
        if self._readable(mask) and padded_left(to_padding(mask, MASK_ARGUMENTS[self.name])):
            _tell(module, tuple(mask.shape))
            self.told = True

    def _readable(self, mask: Any) -> bool:
        """Whether the mask is (batch, tokens), and neither of a trace nor on an accelerator that had its looks."""
        if torch.compiler.is_compiling() or type(mask) is not Tensor or mask.dim() != 2 or transforms_active():
            return False
        if not mask.is_cpu:
            self.looks -= 1
        return mask.is_cpu or self.looks >= 0


class _Forget:
    """Forward hook that takes back what ``_LookLeft`` told."""

    def __init__(self, look: _LookLeft) -> None:
        self.look = look

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.look.told:
            _tell(module, None)
            self.look.told = False


def refuse_left_padding(model: nn.Module) -> None:
    """Hooks every model around separate norms that takes a padding mask, unless it is hooked already."""
    norms = [module for module in model.modules() if isinstance(module, SepNorm)]
    for module in models_around(model, norms):
        argument = mask_argument(module)
        # a mask of patches has no place for [CLS]
        if argument is None or argument[0] == "patch_valid" or any(isinstance(h, _LookLeft) for h in pre_hooks(module)):
            continue
        look = _LookLeft(*argument)
        module.register_forward_pre_hook(look, with_kwargs=True)
        module.register_forward_hook(_Forget(look), always_call=True)


def allow_left_padding(model: nn.Module) -> None:
    """Removes the hooks of ``refuse_left_padding``."""
    for module in model.modules():
        remove_hooks(module, lambda hook: isinstance(hook, _LookLeft | _Forget))


def _tell(model: nn.Module, shape: tuple[int, ...] | None) -> None:
    for module in model.modules():
        if isinstance(module, SepNorm):
            module.left_padded = shape
