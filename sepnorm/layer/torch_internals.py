"""Private parts of torch that the layer uses, each in one function.

If a later torch drops such a name, the layer still computes the right numbers. Each function says what is lost then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def in_backward() -> bool:
    """Whether a backward pass runs in this thread, as when gradient checkpointing runs a block again.

    Fallback: never. A checkpointed block then counts its batch statistics twice.
    """
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def transforms_active() -> bool:
    """Whether ``torch.func``, forward-mode differentiation or tracing is active. None can use our backward function.

    Fallback: always. The layer then takes its plain path.
    """
    functional = getattr(torch._C, "_are_functorch_transforms_active", None)
    dual_level = getattr(forward_ad, "_current_level", 0)
    jit: Any = torch.jit  # its stubs leave the function out
    return functional is None or functional() or dual_level >= 0 or jit.is_tracing()


def is_watched(module: nn.Module) -> bool:
    """Whether the module has hooks, which then have to be called.

    Fallback: always. Modules are then always called.
    """
    try:
        before, after = module._forward_pre_hooks, module._forward_hooks
        return bool(before or after or module._backward_pre_hooks or module._backward_hooks)
    except AttributeError:
        return True


def is_compiled(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called.

    Fallback: never. A compiled module is then compiled again at its next call.
    """
    return getattr(module, "_compiled_call_impl", None) is not None


def pre_hooks(module: nn.Module) -> list[Any]:
    """The forward pre-hooks of a module.

    Fallback: none. What was tuned in a model cannot be removed then.
    """
    return list(getattr(module, "_forward_pre_hooks", {}).values())


def remove_hooks(module: nn.Module, ours: Any) -> None:
    """Removes forward hooks for which ``ours(hook)`` is true, also those that came with a copy of the module.

    Fallback: the hooks stay and keep working.
    """
    tables = [getattr(module, name, {}) for name in ("_forward_pre_hooks", "_forward_hooks")]
    extra = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
    for key in [key for table in tables for key, hook in table.items() if ours(hook)]:
        for table in (*tables, *(getattr(module, name, {}) for name in extra)):
            table.pop(key, None)


def softmax_backward(gradient: Tensor, weights: Tensor) -> Tensor:
    """Gradient of the scores, from the gradient of ``weights``, their softmax over the last dimension.

    Fallback: three operations instead of one.
    """
    kernel = getattr(torch.ops.aten, "_softmax_backward_data", None)
    if kernel is None:
        return weights * (gradient - (gradient * weights).sum(-1, keepdim=True))
    found: Tensor = kernel(gradient, weights, -1, weights.dtype)
    return found


class WideStatistics(nn.Module):
    """A module whose batch norms keep statistics in float32 at least when it is cast: running averages need it.

    Fallback: statistics are cast like weights.
    """

    def _keeps_wide(self) -> list[nn.Module]:
        """The modules whose buffers stay in float32: torch's batch norms, which do not do so themselves."""
        return [norm for norm in self.children() if isinstance(norm, nn.BatchNorm1d | nn.SyncBatchNorm)]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = [
            (norm, name, buffer)
            for norm in self._keeps_wide()
            for name, buffer in norm.named_buffers(recurse=False)
            if buffer.is_floating_point()
        ]
        super()._apply(fn, recurse)
        for norm, name, old in before:
            new = norm.get_buffer(name)
            if new.dtype in (torch.bfloat16, torch.float16):
                setattr(norm, name, old.to(new.device, torch.promote_types(old.dtype, torch.float32)))
        return self
