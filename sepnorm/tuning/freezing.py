"""What ``tune_special`` freezes, the statistics of batch norms among it, and how ``remove`` restores it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from sepnorm.layer import TokenNorm
from sepnorm.layer.kinds import BATCH_NORMS
from sepnorm.layer.torch_internals import pre_hooks, remove_hooks
from sepnorm.surgery.pass_context import models_around

_WITH_STATISTICS = (*BATCH_NORMS, nn.BatchNorm2d, nn.BatchNorm3d)


class Frozen:
    """Forward pre-hook of a tuned model: batch norms that are not trained use their running statistics and keep them.

    Otherwise the statistics would follow the data of a task, and no file of vectors has them. ``model.train()`` puts
    such norms into training mode, so each call looks again.
    """

    def __init__(self, model: nn.Module) -> None:
        self.before = frozenset(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
        self.held: set[nn.Module] = set()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        for norm in _untrained(module):
            if norm.training:
                norm.training = False
                self.held.add(norm)

    def attach(self, model: nn.Module, layers: list[nn.Module]) -> None:
        """Hooks the model and encoders in it, which may be converted later, and its converted norms.

        The norms themselves are hooked for code that calls an encoder by another name than ``forward``.
        """
        norms = (module for module in model.modules() if isinstance(module, TokenNorm))
        for module in dict.fromkeys([*models_around(model, layers), *norms]):
            module.register_forward_pre_hook(self)

    def release(self, model: nn.Module) -> None:
        """Removes the hooks, and trains what was trained before."""
        for module in model.modules():
            remove_hooks(module, lambda hook: hook is self)
        for norm in self.held:
            norm.training = model.training
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in self.before)


def frozen_of(model: nn.Module) -> Frozen | None:
    """What ``tune_special`` has frozen in a model, or None."""
    hooks = (hook for module in model.modules() for hook in pre_hooks(module))
    return next((hook for hook in hooks if isinstance(hook, Frozen)), None)


def _untrained(model: nn.Module) -> Iterator[nn.Module]:
    """The batch norms none of whose parameters is trained. One without parameters counts if it is a part of ours."""
    for module in model.modules():
        for norm in module.children():
            if isinstance(norm, _WITH_STATISTICS):
                trained = [parameter.requires_grad for parameter in norm.parameters()]
                if not any(trained) and (trained or isinstance(module, TokenNorm)):
                    yield norm
