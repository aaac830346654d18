"""How the padding mask of a converted model reaches its norms, which are called with the tokens alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import SepNormError
from sepnorm.layer.torch_internals import in_backward, remove_hooks
from sepnorm.surgery.families import is_timm, is_torch_encoder, is_transformers

#: Names of the argument that carries the mask, and whether a true value there means padding.
MASK_ARGUMENTS = {
    "attention_mask": False,
    "src_key_padding_mask": True,
    "key_padding_mask": True,
    "padding_mask": True,
    "patch_valid": False,
}
_REMEMBERED = 8


class PaddingContext:
    """The mask of the forward pass that is running, shared by all norms of one model."""

    def __init__(self) -> None:
        self.mask: Tensor | None = None
        self.depth = 0
        self._earlier: list[Tensor | None] = []
        self._recomputed = False
        self._holders: set[int] = set()  # ids of the modules that leave a mask here

    def __deepcopy__(self, memo: dict[int, Any]) -> PaddingContext:
        """A copied model gets a context of its own; a norm that is copied alone, and stays in its model, keeps this one."""
        copied = {id(memo[holder]) for holder in self._holders if holder in memo}
        if not copied:
            return self
        new = memo[id(self)] = PaddingContext()
        new._holders = copied
        return new

    def attach(self, model: nn.Module, norms: list[nn.Module]) -> None:
        """Makes every model around ``norms`` that takes a padding mask leave it here while it runs."""
        wanted = {id(norm) for norm in norms}
        for module in model.modules():
            takes_mask = module is model or is_torch_encoder(module) or is_transformers(module) or is_timm(module)
            if takes_mask and any(id(child) in wanted for child in module.modules()):
                argument = _mask_argument(module)
                if argument is not None:
                    self._holders.add(id(module))
                    module.register_forward_pre_hook(_Enter(self, *argument), with_kwargs=True)
                    module.register_forward_hook(_Leave(self), always_call=True)

    def detach(self, model: nn.Module) -> None:
        """Removes what ``attach`` added."""
        for module in model.modules():
            remove_hooks(module, lambda hook: isinstance(hook, _Enter | _Leave) and hook.context is self)

    def current(self, batch: int, tokens: int) -> Tensor | None:
        """The mask (batch, tokens), True where padded, of the forward pass that is running or being recomputed."""
        if torch.compiler.is_compiling() or self.depth or not in_backward():
            return self.mask
        return self._recall(batch, tokens)

    def enter(self, mask: Tensor | None) -> None:
        self.mask = mask
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if self._recomputed:
            self._earlier.clear()
            self._recomputed = False
        self._earlier = [*self._earlier[1 - _REMEMBERED :], mask]

    def _recall(self, batch: int, tokens: int) -> Tensor | None:
        """Gradient checkpointing runs blocks again in the backward pass, when the model that held the mask is gone."""
        self._recomputed = True
        fitting = [mask for mask in self._earlier if mask is None or tuple(mask.shape) == (batch, tokens)]
        if not fitting:
            return None
        last = fitting[-1]
        if any(mask is not last and (mask is None or last is None or not mask.equal(last)) for mask in fitting):
            raise SepNormError(
                "gradient checkpointing with batch norm over tokens cannot tell which padding mask belongs to the block that "
                "is run again, because several forward passes with different masks came before this backward pass. "
                "Call backward after each forward pass, or put both inputs in one batch."
            )
        return last


class _Enter:
    """Forward pre-hook: takes the mask from the arguments of an encoder."""

    def __init__(self, context: PaddingContext, name: str, position: int) -> None:
        self.context, self.name, self.position = context, name, position

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = kwargs.get(self.name, args[self.position] if self.position < len(args) else None)
        if value is None and args and isinstance(args[0], Mapping):  # timm takes a batch of patches in one piece
            value = args[0].get(self.name)
        context = self.context
        if isinstance(value, Tensor) and value.dim() == 2:
            padding = _to_padding(value, MASK_ARGUMENTS[self.name])
            context.enter(_behind_prefix(padding, module) if self.name == "patch_valid" else padding)
        elif context.depth == 0:
            if value is not None:
                raise SepNormError(
                    f"batch norm over tokens needs {self.name} as (batch, tokens) to leave padding out of its statistics, "
                    f"found {_describe(value)}."
                )
            context.enter(None)
        context.depth += 1


class _Leave:
    """Forward hook: forgets the mask when the outermost encoder is done, also after an error."""

    def __init__(self, context: PaddingContext) -> None:
        self.context = context

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.context.depth = max(0, self.context.depth - 1)
        if self.context.depth == 0:
            self.context.mask = None


def contexts(model: nn.Module) -> Iterator[PaddingContext]:
    """Every padding context in use by the norms of ``model``, once each."""
    found = (getattr(module, "padding", None) for module in model.modules())
    seen = {id(context): context for context in found if isinstance(context, PaddingContext)}
    yield from seen.values()


def _mask_argument(module: nn.Module) -> tuple[str, int] | None:
    names = list(inspect.signature(module.forward).parameters)
    return next(((name, names.index(name)) for name in MASK_ARGUMENTS if name in names), None)


def _to_padding(mask: Tensor, true_is_padding: bool) -> Tensor:
    if not true_is_padding:
        return mask == 0
    return mask if mask.dtype == torch.bool else mask < 0  # torch also takes 0 and -inf


def _behind_prefix(padding: Tensor, module: nn.Module) -> Tensor:
    """A mask of patches (batch, patches) for all tokens: [CLS] and registers come first and are no padding."""
    prefix = int(getattr(module, "num_prefix_tokens", 0))
    return torch.cat([padding.new_zeros(len(padding), prefix), padding], dim=1)


def _describe(value: Any) -> str:
    return f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
