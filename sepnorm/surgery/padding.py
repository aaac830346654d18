"""Passes the padding mask of a converted model to its norms, which are called with the tokens alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import SepNormError
from sepnorm.layer.torch_internals import remove_hooks
from sepnorm.surgery.families import is_sentence_module
from sepnorm.surgery.pass_context import Leave, PassContext, models_around

#: Names of mask arguments, and whether True means padding.
MASK_ARGUMENTS = {
    "attention_mask": False,
    "src_key_padding_mask": True,
    "key_padding_mask": True,
    "padding_mask": True,
    "patch_valid": False,
}


class PaddingContext(PassContext):
    """The padding mask (batch, tokens) of the current pass, True where padded, shared by all norms of one model."""

    unclear = (
        "gradient checkpointing with batch norm over tokens cannot tell which padding mask belongs to the block that "
        "is run again, because several forward passes with different masks came before this backward pass. "
        "Call backward after each forward pass, or put both inputs in one batch."
    )

    def __init__(self) -> None:
        super().__init__()
        self._holders: set[int] = set()  # ids of the modules that set the mask

    def __deepcopy__(self, memo: dict[int, Any]) -> PaddingContext:
        """A copied model gets its own context. A norm copied alone, which stays in its model, keeps this one."""
        copied = {id(memo[holder]) for holder in self._holders if holder in memo}
        if not copied:
            return self
        new = memo[id(self)] = PaddingContext()
        new._holders = copied
        return new

    def attach(self, model: nn.Module, norms: list[nn.Module]) -> None:
        """Hooks every model around ``norms`` that takes a padding mask, so that it sets the mask here while it runs."""
        for module in models_around(model, norms):
            argument = mask_argument(module)
            if argument is not None:
                self._holders.add(id(module))
                module.register_forward_pre_hook(_Enter(self, *argument), with_kwargs=True)
                module.register_forward_hook(Leave(self), always_call=True)

    def detach(self, model: nn.Module) -> None:
        """Removes the hooks of ``attach``."""
        for module in model.modules():
            remove_hooks(module, lambda hook: isinstance(hook, _Enter | Leave) and hook.context is self)


class _Enter:
    """Forward pre-hook that takes the mask from the arguments of an encoder."""

    def __init__(self, context: PaddingContext, name: str, position: int) -> None:
        self.context, self.name, self.position = context, name, position

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = mask_of(args, kwargs, self.name, self.position)
        context = self.context
        if isinstance(value, Tensor) and value.dim() == 2:
            padding = to_padding(value, MASK_ARGUMENTS[self.name])
            context.enter(_behind_prefix(padding, module) if self.name == "patch_valid" else padding)
        elif context.depth == 0:
            if value is not None:
                raise SepNormError(
                    f"batch norm over tokens needs {self.name} as (batch, tokens) to leave padding out of its statistics, "
                    f"found {_describe(value)}."
                )
            context.enter(None)
        context.depth += 1


def contexts(model: nn.Module) -> Iterator[PaddingContext]:
    """Every padding context that norms of ``model`` use, once each."""
    found = (getattr(module, "padding", None) for module in model.modules())
    seen = {id(context): context for context in found if isinstance(context, PaddingContext)}
    yield from seen.values()


def mask_argument(module: nn.Module) -> tuple[str, int] | None:
    """Name and position of the argument by which a model takes a padding mask; None if it takes none."""
    names = list(inspect.signature(module.forward).parameters)
    if is_sentence_module(module):  # it takes one mapping
        return "attention_mask", len(names)
    return next(((name, names.index(name)) for name in MASK_ARGUMENTS if name in names), None)


def mask_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, position: int) -> Any:
    """The mask in the arguments of a call, or None."""
    value = kwargs.get(name, args[position] if position < len(args) else None)
    # timm and sentence-transformers pass the batch as one mapping
    if value is None and args and isinstance(args[0], Mapping):
        value = args[0].get(name)
    return value


def to_padding(mask: Tensor, true_is_padding: bool) -> Tensor:
    """Where a mask hides tokens: True where padded."""
    if not true_is_padding:
        return mask == 0
    return mask if mask.dtype == torch.bool else mask < 0  # torch also accepts 0 and -inf


def _behind_prefix(padding: Tensor, module: nn.Module) -> Tensor:
    """A mask of patches (batch, patches), extended to all tokens: [CLS] and registers come first and are no padding."""
    prefix = int(getattr(module, "num_prefix_tokens", 0))
    return torch.cat([padding.new_zeros(len(padding), prefix), padding], dim=1)


def _describe(value: Any) -> str:
    return f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
