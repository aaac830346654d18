"""The parts of torch that have no public name and that the layer cannot do without, each in one place."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad


def in_backward() -> bool:
    """Whether a backward pass is running in this thread, as when gradient checkpointing runs a block again."""
    return torch._C._current_graph_task_id() != -1


def transforms_active() -> bool:
    """Whether ``torch.func``, forward-mode differentiation or the older ONNX export is at work: none can use our own backward."""
    tracing = torch._C._get_tracing_state() is not None
    return tracing or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_watched(module: nn.Module) -> bool:
    """Whether somebody registered a hook on the module, which has to be called then."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def remove_hooks(module: nn.Module, ours: Any) -> None:
    """Takes out the forward hooks for which ``ours(hook)`` holds, also those that came with a copy of the module."""
    for hooks, extra in (
        (module._forward_pre_hooks, (module._forward_pre_hooks_with_kwargs,)),
        (module._forward_hooks, (module._forward_hooks_with_kwargs, module._forward_hooks_always_called)),
    ):
        for key in [key for key, hook in hooks.items() if ours(hook)]:
            for table in (hooks, *extra):
                table.pop(key, None)
