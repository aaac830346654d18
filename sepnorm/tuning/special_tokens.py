"""``SpecialTokens``: vectors for the special tokens of a model, one per layer and kind, in named sets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.errors import SepNormError, nearest
from sepnorm.layer.torch_internals import in_backward, remove_hooks, transforms_active
from sepnorm.tuning.positions import Kind, Positions

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PREFIX = "of_"  # sets are parameters; the prefix keeps their names apart from those of methods


class SpecialTokens(nn.Module):
    """Adds trained vectors to hidden states of special tokens before each layer (Yang et al., Findings of EACL 2023).

    ``tune_special`` makes it a child of the model; it acts by hooks on the layers. Each set of vectors is one parameter
    (layers, kinds, width). It stays in float32 at least when the model is cast: a narrower type loses small steps, and
    Adam divides by zero in float16.

    Args:
        kinds: kinds of special tokens, in the order of their vectors.
        layers: number of layers.
        width: number of channels of the hidden states.
        token_dim: token dimension of the hidden states, 0 or 1.
        dropout: probability of dropping an added number in training.
    """

    #: ``sepnorm.save`` skips the vectors; ``sepnorm.tuning.save`` writes them.
    saved_apart = True

    def __init__(self, kinds: tuple[Kind, ...], layers: int, width: int, token_dim: int, dropout: float) -> None:
        super().__init__()
        self.kinds, self.layers, self.width, self.token_dim, self.dropout = kinds, layers, width, token_dim, dropout
        self.positions = Positions(kinds)
        self.in_use: str | tuple[str | None, ...] | None = None

    @property
    def names(self) -> list[str]:
        """Names of the sets."""
        return [name.removeprefix(_PREFIX) for name, _ in self.named_parameters()]

    def vectors(self, name: str) -> nn.Parameter:
        """The parameter of one set.

        Args:
            name: name of the set.

        Returns:
            The vectors (layers, kinds, width).

        Raises:
            SepNormError: if there is no such set.
        """
        found: nn.Parameter = getattr(self, _PREFIX + self._known(name))  # a tensor within functional_call
        return found

    def add(self, name: str, like: Tensor) -> None:
        """Adds a set of zeros.

        Args:
            name: name of the new set.
            like: tensor whose device the set takes. Its dtype is float64 if that of ``like`` is, else float32.

        Raises:
            SepNormError: if there is a set of this name.
        """
        if name in self.names:
            raise SepNormError(
                f"there is a set {name!r} already: give another name, or use it by set_special({name!r})."
            )
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        zeros = torch.zeros(self.layers, len(self.kinds), self.width, device=like.device, dtype=dtype)
        self.register_parameter(_PREFIX + name, nn.Parameter(zeros))

    def use(self, sets: str | Iterable[str | None] | None) -> None:
        """Selects the set for the next forward passes. ``model.set_special`` is this method.

        Only selected sets require a gradient, so that none waits for one in vain. None leaves this as it is.

        Args:
            sets: a name for all samples, a list with one name (or None) per sample, or None for no vectors.

        Raises:
            SepNormError: if there is no such set.
        """
        if sets is None or isinstance(sets, str):
            self.in_use = sets if sets is None else self._known(sets)
        elif isinstance(sets, list | tuple):
            self.in_use = tuple(None if name is None else self._known(name) for name in sets)
        else:
            raise SepNormError(
                f"a set is chosen by its name, a list of names, one for each sample, or None, found {sets!r}."
            )
        used = {self.in_use} if isinstance(self.in_use, str) else set(self.in_use or ()) - {None}
        for name in self.names if used else ():
            self.vectors(name).requires_grad_(name in used)

    def _known(self, name: Any) -> str:
        if name not in self.names:
            raise SepNormError(f"unknown set {name!r}: choose from {', '.join(self.names)}.{nearest(name, self.names)}")
        return str(name)

    def sets(self) -> str | tuple[str | None, ...] | None:
        """The sets in use: a name, one name per sample, or None."""
        return self.in_use

    def added(self, hidden: Tensor, layer: int) -> Tensor | None:
        """The vectors to add to the hidden states before a layer. Hooks on the layers call this.

        Args:
            hidden: hidden states (batch, tokens, width), or (tokens, batch, width) with ``token_dim=0``.
            layer: number of the layer, from 0.

        Returns:
            A tensor of the shape and dtype of ``hidden``; None if no set is in use.
        """
        batch, tokens = hidden.shape[1 - self.token_dim], hidden.shape[self.token_dim]
        running = self.positions.current(batch, tokens)
        sets = self.in_use if running is None else running.sets
        if sets is None:
            return None
        kinds = None if running is None else running.kinds
        if kinds is None or (kinds.shape != (batch, tokens) and all(kind.token is None for kind in self.kinds)):
            kinds = self.positions.by_place(batch, tokens, hidden.device)
        if tuple(kinds.shape) != (batch, tokens):
            raise SepNormError(
                f"special tokens are known for {tuple(kinds.shape)} tokens as (batch, tokens), but layer {layer} is handed "
                f"{(batch, tokens)}: the model adds tokens or splits the batch before this layer. If it pads to a multiple of its "
                "window, pad as much before the call (pad_to_multiple_of= of the tokeniser). Otherwise call it with "
                "special_mask= for all of its tokens."
            )
        each = (sets,) * batch if isinstance(sets, str) else sets
        if len(each) != batch:
            raise SepNormError(
                f"set_special got names of sets for {len(each)} samples, and this batch has {batch}: give one for each sample."
            )
        distinct = [name for name in dict.fromkeys(each) if name is not None]
        rows = [self._of_layer(name, layer) for name in distinct]
        table = torch.cat([hidden.new_zeros(1, self.width, dtype=torch.float32), *rows])
        if not isinstance(sets, str):
            start = {name: number * len(self.kinds) for number, name in enumerate(distinct)}
            offset = torch.tensor([start.get(name, 0) for name in each], device=kinds.device)[:, None]
            chosen = torch.tensor([name is not None for name in each], device=kinds.device)[:, None]
            kinds = torch.where((kinds > 0) & chosen, kinds + offset, 0)
        found = F.embedding(kinds if self.token_dim == 1 else kinds.T, table)
        found = F.dropout(found, self.dropout, self.training).to(hidden.dtype)
        if found.stride() != hidden.stride():  # keep the memory layout: rounding of matrix products depends on it
            found = torch.empty_like(hidden).copy_(found)
        return found

    def _of_layer(self, name: str, layer: int) -> Tensor:
        """The vectors (kinds, width) of a set before a layer. Torch would drop their gradient if another set is selected."""
        vectors = self.vectors(name)
        found = vectors[layer]
        if found.requires_grad and not torch.compiler.is_compiling() and not transforms_active():
            found.register_hook(lambda gradient: _require_gradient(vectors, name))
        return found

    def attach(self, model: nn.Module, modules: list[nn.Module]) -> None:
        """Registers the hooks on the model and its layers.

        Args:
            model: the whole model.
            modules: the layers in order. A module that is used as several layers occurs several times.
        """
        self.positions.attach(model, modules, self.sets)
        for module in dict.fromkeys(modules):
            numbers = [number for number, each in enumerate(modules) if each is module]
            module.register_forward_pre_hook(_Add(self, numbers), with_kwargs=True)

    def detach(self, model: nn.Module) -> None:
        """Removes the hooks of ``attach``.

        Args:
            model: the whole model.
        """
        self.positions.detach(model)
        for module in model.modules():
            remove_hooks(module, lambda hook: isinstance(hook, _Add) and hook.special is self)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        def wide(tensor: Tensor) -> Tensor:
            new: Tensor = fn(tensor)
            narrow = new.is_floating_point() and new.dtype.itemsize < 4
            return tensor.to(new.device, torch.promote_types(tensor.dtype, torch.float32)) if narrow else new

        return super()._apply(wide, recurse)

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.kinds))}; {self.layers} layers of width {self.width}"


class _Add:
    """Forward pre-hook that adds vectors to the input of a layer."""

    def __init__(self, special: SpecialTokens, numbers: list[int]) -> None:
        self.special, self.numbers = special, numbers
        self.serial, self.calls = -1, 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handed: list[tuple[Any, Any]] = [*enumerate(args), *kwargs.items()]
        for key, value in handed:
            if not isinstance(value, Tensor) or value.dim() != 3 or value.shape[-1] != self.special.width:
                continue
            added = self.special.added(value, self._number())
            if added is None:
                return None
            if isinstance(key, int):
                return (*args[:key], value + added, *args[key + 1 :]), kwargs
            return args, {**kwargs, key: value + added}
        raise SepNormError(
            f"a {type(module).__name__} is handed no tokens as (batch, tokens, {self.special.width}): special tokens cannot be "
            "found in packed sequences."
        )

    def _number(self) -> int:
        """Number of the layer in this call: a module with shared weights can be several layers, called in turn."""
        if len(self.numbers) == 1:
            return self.numbers[0]
        if in_backward():
            raise SepNormError(
                "gradient checkpointing cannot tell apart the layers of a model that share their weights: switch it off."
            )
        if self.serial != self.special.positions.serial:
            self.serial, self.calls = self.special.positions.serial, 0
        self.calls += 1
        return self.numbers[(self.calls - 1) % len(self.numbers)]


def _require_gradient(vectors: Tensor, name: str) -> None:
    if not vectors.requires_grad:
        raise SepNormError(
            f"the set {name!r} was in use in the forward pass, and another one is selected before the backward pass: call "
            "backward before set_special, or put the samples of both into one batch, with a list of names."
        )


def require_name(name: Any) -> str:
    """A valid name of a set. It becomes a part of a parameter name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SepNormError(f"a set of vectors is named by letters, digits, - and _, found {name!r}.")
    return name
