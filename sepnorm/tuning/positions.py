"""Finds the special tokens of a forward pass: by position, by token id, or by a mask in the call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.arguments import whole
from sepnorm.errors import SepNormError
from sepnorm.layer.torch_internals import remove_hooks
from sepnorm.surgery.padding import MASK_ARGUMENTS, to_padding
from sepnorm.surgery.pass_context import Leave, PassContext, models_around
from sepnorm.tuning.layers import Layers

#: Argument of a call that marks special tokens. It is removed before the model sees it.
MASK = "special_mask"
#: Other names of a kind of token.
_ALSO = {"sep": "eos"}
#: What is added to the scores of hidden tokens is lower: -10,000 in old models, else the lowest number or -infinity.
_HIDDEN = -1000.0
_LEADING = ("cls", "register")


@dataclass(frozen=True)
class Kind:
    """One kind of special token: found by its id ``token``, or by its position among the leading tokens."""

    name: str
    token: int | None = None
    first: int = 0
    last: int = 1  #: exclusive

    def __str__(self) -> str:
        if self.token is not None:
            return f"{self.name} (token {self.token})"
        return (
            f"{self.name} (first token)" if self.last == 1 else f"{self.name} (tokens {self.first} to {self.last - 1})"
        )


def kinds_of(model: nn.Module, tokens: Any, tokenizer: Any, layers: Layers) -> tuple[Kind, ...]:
    """The kinds that ``tune_special`` asks for; raises for a kind that the model does not have."""
    if isinstance(tokens, str):
        tokens = (tokens,)
    if (
        not isinstance(tokens, Mapping | list | tuple)
        or not tokens
        or not all(isinstance(t, str) and t for t in tokens)
    ):
        raise SepNormError(
            "tokens names kinds of special tokens, as ('cls', 'sep'), or says their ids, as {'cls': 101, 'sep': 102}, "
            f"found {tokens!r}."
        )
    if len(set(tokens)) < len(tokens):
        raise SepNormError(f"tokens names a kind of special token twice, found {tokens!r}.")
    given = dict(tokens) if isinstance(tokens, Mapping) else dict.fromkeys(tokens)
    config = _config_of(model, layers)
    by_words = any("input_ids" in _parameters(module) for module in _around(model, layers))
    found = []
    for name, token in given.items():
        if token is None and name in _LEADING:
            found.append(_leading(model, name, by_words, layers))
            continue
        if not by_words:
            raise SepNormError(
                f"{type(model).__name__} has no {name!r}: its input has no words. Name what it has, tokens='cls' or 'register'."
            )
        found.append(Kind(name, _id(model, name, token, tokenizer, config)))
    return tuple(found)


def _leading(model: nn.Module, name: str, by_words: bool, layers: Layers) -> Kind:
    if name == "cls":
        return Kind(name)
    count = 1 if by_words else layers.constant
    if count < 2:
        raise SepNormError(
            f"{type(model).__name__} has no registers: its only leading token is [CLS]. Leave 'register' out."
        )
    return Kind(name, None, 1, count)


def _id(model: nn.Module, name: str, given: Any, tokenizer: Any, config: Any) -> int:
    vocabulary = getattr(config, "vocab_size", None)
    if given is not None:
        most = None if vocabulary is None else vocabulary - 1
        return whole(given, f"the id of {name!r} in tokens", 0, most)
    for source in (tokenizer, getattr(model, "tokenizer", None), config):
        for each in (name, _ALSO.get(name, name)):
            token = getattr(source, f"{each}_token_id", None)
            if (
                isinstance(token, int)
                and not isinstance(token, bool)
                and (vocabulary is None or 0 <= token < vocabulary)
            ):
                return token
    where = "config" if tokenizer is None else "tokeniser and config"
    raise SepNormError(
        f"the id of {name!r} is unknown to the {where} of {type(model).__name__}: pass tokenizer=, or ids as "
        "tokens={'cls': 101, 'sep': 102}, or leave it out."
    )


def _config_of(model: nn.Module, layers: Layers) -> Any:
    return next((c for module in _around(model, layers) if (c := getattr(module, "config", None)) is not None), None)


def _around(model: nn.Module, layers: Layers) -> list[nn.Module]:
    return list(models_around(model, [call.module for call in layers.calls]))


def _parameters(module: nn.Module) -> list[str]:
    return list(inspect.signature(module.forward).parameters)


# ---- during a forward pass ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Pass:
    """The sets of vectors in use, one or one per sample, and the special tokens of a forward pass.

    ``kinds`` (batch, tokens) is 0 for ordinary tokens and k for tokens of the k-th kind; None if only positions count.
    """

    sets: str | tuple[str | None, ...] | None
    kinds: Tensor | None = None


class Positions(PassContext):
    """The special tokens of the current forward pass."""

    unclear = (
        "gradient checkpointing cannot tell which special tokens belong to the layer that is run again, because several forward "
        "passes with different ones came before this backward pass. Call backward after each forward pass, or put both inputs in "
        "one batch."
    )

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        super().__init__()
        self.kinds = kinds
        self.serial = 0  # number of the pass, for layers that are called several times in one

    def attach(self, model: nn.Module, layers: list[nn.Module], sets: Any) -> None:
        """Hooks the model, and encoders in it that take ids or a mask, to record special tokens here.

        ``sets()`` are in use.
        """
        for module in models_around(model, layers):
            names = _parameters(module)
            if module is model or "input_ids" in names or isinstance(module, nn.TransformerEncoder):
                module.register_forward_pre_hook(_Enter(self, sets, names), with_kwargs=True)
                module.register_forward_hook(Leave(self), always_call=True)

    def detach(self, model: nn.Module) -> None:
        """Removes the hooks of ``attach``."""
        for module in model.modules():
            remove_hooks(module, lambda hook: isinstance(hook, _Enter | Leave) and hook.context is self)

    def fits(self, value: Pass, batch: int, tokens: int) -> bool:
        return value.kinds is None or tuple(value.kinds.shape) == (batch, tokens)

    def same(self, value: Pass, other: Pass) -> bool:
        alike = value.kinds is other.kinds or (
            value.kinds is not None and other.kinds is not None and bool(value.kinds.equal(other.kinds))
        )
        return alike and value.sets == other.sets

    def by_ids(self, ids: Tensor, attended: Tensor | None) -> Tensor:
        """Kinds (batch, tokens) from token ids and an attention mask; [CLS] is the first token that is not padding."""
        found = torch.zeros_like(ids)
        place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        if attended is not None and attended.shape == ids.shape:
            place = place - attended.bool().long().argmax(1, keepdim=True)
        for number, kind in reversed(list(enumerate(self.kinds, 1))):  # the first kind wins
            here = (place >= kind.first) & (place < kind.last) if kind.token is None else ids == kind.token
            found = torch.where(here, number, found)
        return found

    def by_place(self, batch: int, tokens: int, device: torch.device) -> Tensor:
        """Kinds (batch, tokens), if every kind is among the leading tokens."""
        lost = next((kind for kind in self.kinds if kind.token is not None), None)
        if lost is not None:
            raise SepNormError(
                f"{lost.name!r} cannot be located, because the model was called without input_ids: call it with {MASK}=, "
                f"integers (batch, tokens), 0 at ordinary tokens and 1 to {len(self.kinds)} at "
                f"{', '.join(kind.name for kind in self.kinds)}."
            )
        found = torch.zeros(batch, tokens, dtype=torch.long, device=device)
        for number, kind in enumerate(self.kinds, 1):
            found[:, kind.first : kind.last] = number
        return found


class _Enter:
    """Forward pre-hook that takes ids, or the mask of special tokens, from the arguments of a model."""

    def __init__(self, context: Positions, sets: Any, names: list[str]) -> None:
        self.context, self.sets, self.names = context, sets, names
        self.found = False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context, handed = self.context, MASK in kwargs
        mask = kwargs.pop(MASK, None)  # this dict belongs to the call, so that removing a key is safe
        if args and isinstance(args[0], Mapping) and MASK in args[0]:  # this one does not
            mask, handed = args[0][MASK] if mask is None else mask, True
            args = ({key: value for key, value in args[0].items() if key != MASK}, *args[1:])
        if context.depth == 0:
            context.serial += 1
            context.enter(Pass(self.sets()))
        running: Pass = context.value
        if mask is not None:
            context.refine(Pass(running.sets, _checked(mask, len(context.kinds))))
        elif running.kinds is None and (found := self._found(args, kwargs)) is not None:
            if module.training and not self.found:
                self._require(found)
            context.refine(Pass(running.sets, found))
        context.depth += 1
        return (args, kwargs) if handed else None

    def _found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The special tokens of a call: by its ids, or by its mask if only places count."""
        ids, attended = self._argument("input_ids", args, kwargs), self._mask(args, kwargs)
        if ids is not None and ids.dim() != 2:  # a model for choices has another dimension, and hands on ids without it
            ids = None
        if attended is not None and attended.dim() == 4:
            attended = self._columns(attended)
            attended = attended.expand(len(ids), -1) if ids is not None and attended is not None else attended
        elif attended is not None and attended.dim() != 2:
            attended = None
        if ids is None and attended is not None and all(kind.token is None for kind in self.context.kinds):
            ids = attended.long()
        return None if ids is None else self.context.by_ids(ids, attended)

    def _mask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The attention mask of a call, or where another mask hides nothing."""
        for name, true_is_padding in MASK_ARGUMENTS.items():
            mask = self._argument(name, args, kwargs)
            if mask is not None and name != "patch_valid":  # it has no place for [CLS], which is the first token
                return mask if name == "attention_mask" else ~to_padding(mask, true_is_padding)
        return None

    def _argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """An argument of a call, if it is a tensor."""
        position = self.names.index(name) if name in self.names else len(args)
        value = kwargs.get(name, args[position] if position < len(args) else None)
        # a SentenceTransformer takes the batch as one mapping and bypasses hooks on its encoder
        if value is None and args and isinstance(args[0], Mapping):
            value = args[0].get(name)
        return value if isinstance(value, Tensor) else None

    def _columns(self, mask: Tensor) -> Tensor | None:
        """The attended tokens (batch, tokens) of a mask (batch, heads, queries, tokens), boolean or added to scores."""
        if all(kind.token is not None for kind in self.context.kinds):
            return None  # all are found by their ids
        attended = mask > _HIDDEN if mask.is_floating_point() else mask.bool()
        first = attended[:, 0, 0]
        if not torch.compiler.is_compiling() and not bool((attended == first[:, None, None]).all()):
            raise SepNormError(
                f"which tokens are padding cannot be read off an attention mask {tuple(mask.shape)} that differs between heads or "
                f"queries: pass a mask (batch, tokens), or {MASK}=, integers (batch, tokens), 0 at ordinary tokens and 1 to "
                f"{len(self.context.kinds)} at {', '.join(kind.name for kind in self.context.kinds)}."
            )
        return first

    def _require(self, found: Tensor) -> None:
        """Raises if the first training batch lacks a kind of token: its vectors would never be trained."""
        for number, kind in enumerate(self.context.kinds, 1):
            if not bool((found == number).any()):
                raise SepNormError(
                    f"none of the {len(found)} samples of this batch has the special token {kind}: say its id, as "
                    f"tokens={{{kind.name!r}: ID}}, let the tokeniser add special tokens, or leave {kind.name!r} out."
                )
        self.found = True


def _checked(mask: Any, kinds: int) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.is_floating_point() or mask.is_complex():
        found = f"the shape {tuple(mask.shape)} of {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise SepNormError(f"{MASK} is a tensor of whole numbers (batch, tokens), found {found}.")
    mask = mask.long()
    if not torch.compiler.is_compiling() and mask.numel() and not 0 <= int(mask.min()) <= int(mask.max()) <= kinds:
        raise SepNormError(
            f"{MASK} is 0 at ordinary tokens and 1 to {kinds} at the kinds of special tokens, found {int(mask.min())} to "
            f"{int(mask.max())}."
        )
    return mask
