"""Finds the layers of an encoder by running it: the blocks in which [CLS] attends to other tokens, once each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sepnorm.errors import SepNormError
from sepnorm.layer import MixtureNorm, TokenNorm
from sepnorm.layer.torch_internals import in_backward
from sepnorm.surgery.dependence import ATTENTION, spread
from sepnorm.surgery.families import is_transformers
from sepnorm.surgery.sites import Site, Sites, survey


@dataclass(eq=False)
class Call:
    """One call of a module: its inputs, its outputs, and the calls inside it that contain attention."""

    path: str
    module: nn.Module
    parent: Call | None
    inputs: list[Tensor]  #: inputs of rank 3, which may be tokens
    outputs: list[Tensor] = field(default_factory=list)
    returned: list[Tensor] = field(default_factory=list)  #: all that it returned; only of the outermost call
    attends: bool = False
    width: int = 0  #: number of channels of the tokens; 0 if unknown
    inner: list[Call] = field(default_factory=list)

    @property
    def input(self) -> Tensor | None:
        """The input tokens."""
        return next((x for x in self.inputs if not self.width or x.shape[-1] == self.width), None)

    @property
    def output(self) -> Tensor | None:
        """The output tokens."""
        return next((x for x in self.outputs if not self.width or x.shape[-1] == self.width), None)

    @property
    def keeps_shape(self) -> bool:
        """Whether input and output tokens have the same shape."""
        return self.input is not None and self.output is not None and self.input.shape == self.output.shape

    @property
    def stacks(self) -> bool:
        """Whether the output of one inner call is the input of another: it is a stack of layers, not a layer."""
        return any(_same(a.output, b.input) for a in self.inner for b in self.inner if a is not b)


@dataclass(eq=False)
class Layers:
    """The calls of an encoder's layers in order, and what else was found out about the model."""

    calls: list[Call]
    sites: Sites
    all_calls: list[Call] = field(repr=False)

    @property
    def width(self) -> int:
        """Number of channels of the hidden states."""
        return int(self._first.shape[-1])

    @property
    def token_dim(self) -> int:
        """The token dimension of a layer's input."""
        return next(
            site.token_dim for site in self.sites.all if site.sees_cls and _below(site.path, self.calls[0].path)
        )

    @property
    def constant(self) -> int:
        """Number of leading tokens that are the same for every sample at the input of the first layer."""
        varies = (spread(self._first, self.token_dim) > 1e-6).tolist()
        return varies.index(True) if True in varies else len(varies)

    @property
    def _first(self) -> Tensor:
        """The input of the first layer."""
        assert self.calls[0].input is not None
        return self.calls[0].input

    def norms_before(self) -> list[Site | None]:
        """For each layer, the norm whose output is its input; None if there is none, as in pre-norm blocks."""
        by_id = {id(site.module): site for site in self.sites.all if site.sees_cls}
        found = []
        for layer in self.calls:
            earlier = self.all_calls[: self.all_calls.index(layer)]
            norm = next((c for c in reversed(earlier) if id(c.module) in by_id and _same(c.output, layer.input)), None)
            found.append(None if norm is None else by_id[id(norm.module)])
        return found

    def head(self, model: nn.Module) -> list[str]:
        """Names of the parameters outside the encoder: heads, decoders, projections."""
        inside = self._encoder(model)
        if inside is not None:
            return [name for name, _ in model.named_parameters() if not _below(name, inside)]
        # The encoder is unknown: assume that it ends with its last layer and the norms over tokens that follow.
        ends = max(self.all_calls.index(call) for call in self.calls)
        before = {id(p) for call in self.all_calls[: ends + 1] for p in call.module.parameters(recurse=False)}
        before |= {id(p) for call in self.calls for p in call.module.parameters()}
        before |= {id(p) for site in self.sites.all if site.sees_cls for p in site.module.parameters()}
        later = {id(p) for call in self.all_calls[ends + 1 :] for p in call.module.parameters(recurse=False)}
        return [name for name, p in model.named_parameters() if id(p) in later - before]

    def _encoder(self, model: nn.Module) -> str | None:
        """Path of the encoder of a transformers model; None if it is not known."""
        if self.sites.encoder:
            return self.sites.encoder
        found = next(
            (
                path
                for path, module in model.named_modules()
                if is_transformers(module) and all(_below(call.path, path) for call in self.calls)
            ),
            None,
        )
        return None if found == "" and not self._returns_tokens else found

    @property
    def _returns_tokens(self) -> bool:
        """Whether the model returns tokens first, as an encoder does, possibly with a pooler, and not logits."""
        first = next(iter(self.run.returned), None)
        return first is not None and first.dim() == 3 and first.shape[-1] == self.width

    @property
    def run(self) -> Call:
        """The call of the model, or of the part of it that was run."""
        return self.all_calls[0]


def find_layers(model: nn.Module, example: Any = None) -> Layers:
    """Runs a model as ``convert`` does, with the same errors, and finds its layers.

    A layer is the outermost module that takes tokens, returns tokens of the same shape, and contains attention, but is
    not a stack of such modules. Modules in a list or sequence take precedence. A layer has a norm that ``convert``
    would select, which excludes decoders.
    """
    with _watched(model) as passes:
        sites = survey(model, example)
    calls = passes[-1]
    known = [site for site in sites.all if site.sees_cls and (site.usual or site.degenerate)]
    for call in calls:
        call.width = next((site.dim for site in known if _below(site.path, call.path)), 0)
    blocks = [call for call in calls if call.attends and call.width and call.keeps_shape]
    for call in blocks:
        if (outer := _nearest(call, blocks)) is not None:
            outer.inner.append(call)
    listed = {
        id(child)
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        for child in module.children()
    }
    plain = [call for call in blocks if not call.stacks]
    found = _outermost([call for call in plain if id(call.module) in listed]) or _outermost(plain)
    if not found:
        raise SepNormError(
            f"no layers were found in {type(model).__name__}: no module takes all tokens, attends over them and returns as "
            "many. A vector can be added only before a layer that is a module."
        )
    covered = {id(each) for call in found for each in (*_around(call), *_inside(call, calls))}
    outside = next((call for call in calls if call.attends and call.width and id(call) not in covered), None)
    if outside is not None or len({call.width for call in found}) > 1:
        raise SepNormError(
            f"the layers of {type(model).__name__} are not alike: {(outside or found[-1]).path} has tokens of another width or "
            f"number than {found[0].path}. Vectors of special tokens are for encoders whose layers are."
        )
    return Layers(found, sites, calls)


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[list[Call]]]:
    """Records every call of every module within this context, pass by pass."""
    passes: list[list[Call]] = []
    stack: list[Call] = []

    def enter(path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if in_backward():  # gradient checkpointing runs parts of the model again
            return
        if not stack:
            passes.append([])
        call = Call(path, module, stack[-1] if stack else None, _tokens((*args, *kwargs.values())))
        passes[-1].append(call)
        stack.append(call)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if not in_backward():
            call = stack.pop()
            call.outputs = _tokens(output.values() if isinstance(output, Mapping) else output)
            if not stack:
                call.returned = list(_numbers(output))

    class Attention(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # the responsibilities of a mixture norm are a softmax too
            if func in ATTENTION and not any(isinstance(call.module, TokenNorm | MixtureNorm) for call in stack):
                for call in stack:
                    call.attends = True
            return func(*args, **(kwargs or {}))

    handles: list[Any] = []
    for path, module in model.named_modules():
        hook = lambda module, args, kwargs, path=path: enter(path, module, args, kwargs)  # noqa: E731
        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with Attention():
            yield passes
    finally:
        for handle in handles:
            handle.remove()


def _tokens(values: Any) -> list[Tensor]:
    """The values that may be tokens: floating-point tensors of rank 3."""
    if isinstance(values, Tensor):
        values = (values,)
    if not isinstance(values, Iterable):
        return []
    return [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.dim() == 3]


def _numbers(values: Any) -> Iterator[Tensor]:
    """All floating-point tensors in an output, however nested."""
    if isinstance(values, Tensor):
        if values.is_floating_point():
            yield values.detach()
    elif isinstance(values, Mapping | list | tuple):
        for each in values.values() if isinstance(values, Mapping) else values:
            yield from _numbers(each)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape and bool((one == other).all())


def _nearest(call: Call, among: list[Call]) -> Call | None:
    """The innermost call in ``among`` that contains ``call``."""
    outer = call.parent
    while outer is not None and outer not in among:
        outer = outer.parent
    return outer


def _outermost(calls: list[Call]) -> list[Call]:
    return [call for call in calls if _nearest(call, calls) is None]


def _around(call: Call) -> Iterator[Call]:
    """The call itself, and the calls that contain it."""
    each: Call | None = call
    while each is not None:
        yield each
        each = each.parent


def _inside(call: Call, calls: list[Call]) -> list[Call]:
    return [each for each in calls if any(outer is call for outer in _around(each))]


def _below(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")
