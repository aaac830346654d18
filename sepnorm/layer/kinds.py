"""The kinds of norms, one record each, and how a pair of them is written: ``"bn+ln"`` ([CLS] first), or ``"ln"`` for one shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.arguments import flag, number, whole
from sepnorm.errors import SepNormError, nearest, one_line
from sepnorm.layer.kernels import BatchKernel, Kernel, LayerKernel, ScaleKernel

Kind = str | Callable[[int], nn.Module]
MOST_CHANNELS = 2**31 - 1


@dataclass(frozen=True)
class NormKind:
    """One kind of norm: how it is written, built and recognised, and what it needs. Another kind is another entry of ``KINDS``.

    Args:
        short: its name in a pair, as the paper writes it.
        build: makes one of ``dim`` channels, with ``eps``, ``momentum``, ``affine``, ``device`` and ``dtype``.
        types: the modules that are of this kind.
        acts: what a norm of this kind makes of ``x`` (..., channels), so that a library's own class is known by what it does.
        uses_batch: whether it keeps statistics of batches.
        kernel: what does it on the layer's fused path; kinds without one take the plain path.
    """

    short: str
    build: Callable[..., nn.Module]
    types: tuple[type[nn.Module], ...]
    acts: Callable[[Any, Tensor], Tensor] | None = None
    uses_batch: bool = False
    kernel: type[Kernel] | None = None


class DynamicTanh(nn.Module):
    """``weight * tanh(alpha * x) + bias``: a norm without statistics (Zhu et al., CVPR 2025). Any shape (..., dim)."""

    def __init__(self, dim: int, alpha: float = 0.5, affine: bool = True, **factory: Any) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), alpha, **factory))
        self.weight = nn.Parameter(torch.ones(dim, **factory)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dim, **factory)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        out = torch.tanh(self.alpha * x)
        return out if self.weight is None or self.bias is None else out * self.weight + self.bias


class ScaleShift(nn.Module):
    """``x * weight + bias`` per channel: what a batch norm is once its statistics are fixed (see ``freeze``)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x, self.weight)

    def extra_repr(self) -> str:
        return str(self.weight.numel())


def _batch(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    norm = nn.BatchNorm1d(dim, eps=eps, momentum=momentum, affine=affine, **factory)
    for name, buffer in list(norm.named_buffers()):
        if buffer.dtype in (torch.bfloat16, torch.float16):  # a sum of small steps needs more
            setattr(norm, name, buffer.float())
    return norm


def _layer(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    return nn.LayerNorm(dim, eps=eps, elementwise_affine=affine, **factory)


def _rms(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    return nn.RMSNorm(dim, eps=eps, elementwise_affine=affine, **factory)


def _tanh(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    return DynamicTanh(dim, affine=affine, **factory)


def _acts_layer(norm: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight, getattr(norm, "bias", None))


def _acts_rms(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight)


BATCH_NORMS = (nn.BatchNorm1d, nn.SyncBatchNorm)
KINDS = {
    "batch": NormKind("bn", _batch, BATCH_NORMS, uses_batch=True, kernel=BatchKernel),
    "layer": NormKind("ln", _layer, (nn.LayerNorm,), _acts_layer, kernel=LayerKernel),
    "rms": NormKind("rms", _rms, (nn.RMSNorm,), _acts_rms),
    "tanh": NormKind("dyt", _tanh, (DynamicTanh,)),
}
#: By what a module computes, so that classes which torch derives from a norm's, as for a parametrization, are fused too.
KERNELS: dict[Any, type[Kernel]] = {ScaleShift.forward: ScaleKernel} | {
    norm.forward: kind.kernel for kind in KINDS.values() if kind.kernel is not None for norm in kind.types
}
_LONG = {kind.short: name for name, kind in KINDS.items()}


def kind_of(module: nn.Module) -> str | None:
    """The name of the kind that a module's class is of, if any."""
    return next((name for name, kind in KINDS.items() if isinstance(module, kind.types)), None)


def wraps_batch_norm(module: nn.Module) -> bool:
    """Whether a module of another class has a batch norm inside, as libraries put one around a part that is trained apart."""
    return kind_of(module) is None and any(isinstance(part, BATCH_NORMS) for part in module.modules())


def token_norm_kind(module: nn.Module) -> str | None:
    """The name of the kind, if a module normalises the channels of one token at a time.

    Classes that libraries define are known by what they do, not by what they are called: T5's "LayerNorm" is an RMS norm.
    """
    name = kind_of(module)
    if name is not None:
        return None if KINDS[name].uses_batch else name
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1 or weight.is_meta or any(True for _ in module.children()):
        return None
    x = torch.linspace(-1, 2, 3 * len(weight), device=weight.device).sin().view(1, 3, -1).to(weight.dtype)
    try:
        with torch.no_grad():
            out = module(x)
            alike = (
                name for name, kind in KINDS.items() if kind.acts is not None and _is_close(out, kind.acts(module, x))
            )
            return next(alike, None)
    except Exception:  # whatever a module that is no norm raises at this
        return None


def _is_close(a: Any, b: Tensor) -> bool:
    return (
        isinstance(a, Tensor)
        and a.shape == b.shape
        and torch.allclose(a.float(), b.float(), 0.02, 0.02, equal_nan=True)
    )


def kind_name(kind: str) -> str:
    """The long name of a kind given by either of its names.

    >>> kind_name("bn"), kind_name("layer")
    ('batch', 'layer')
    """
    long = _LONG.get(kind, kind)
    if long not in KINDS:
        raise SepNormError(
            f"unknown norm {kind!r}: the kinds are {', '.join(KINDS)} (short: {', '.join(_LONG)})."
            + nearest(kind, [*KINDS, *_LONG])
        )
    return long


def short_name(kind: str) -> str:
    """The paper's name of a kind, ``"ln"`` for ``"layer"``; anything else as it is."""
    return KINDS[kind].short if kind in KINDS else kind


def build_norm(kind: Kind, dim: int, **options: Any) -> nn.Module:
    """One norm over ``dim`` channels, from a kind's name or from a callable that takes ``dim``."""
    if isinstance(kind, str):
        return _built(kind_name(kind), whole(dim, "dim", 1, MOST_CHANNELS), **options)
    if not callable(kind):
        raise SepNormError(f"a norm is a name or a callable that builds a module from dim, found {kind!r}.")
    module = kind(dim)
    if not isinstance(module, nn.Module):
        raise SepNormError(f"the callable {kind!r} must build a torch module from dim, but returned {module!r}.")
    return module


def _built(kind: str, dim: int, *, eps: Any, momentum: Any, affine: Any, **factory: Any) -> nn.Module:
    eps = eps if eps is None else number(eps, "eps", 0)
    momentum = momentum if momentum is None else number(momentum, "momentum", 0)
    if momentum is not None and momentum > 1:
        raise SepNormError(
            f"momentum is the share of a new batch in running statistics, from 0 to 1, or None for the mean of all batches, "
            f"found {momentum:g}."
        )
    try:
        return KINDS[kind].build(dim, eps=eps, momentum=momentum, affine=flag(affine, "affine"), **factory)
    except (RuntimeError, AssertionError) as error:  # no such device, no floating-point dtype, too little memory
        given = ", ".join(f"{name}={value}" for name, value in factory.items() if value is not None)
        raise SepNormError(
            f"a {kind} norm of {dim} channels cannot be built{f' with {given}' if given else ''}: {one_line(error)}."
        ) from error


@dataclass(frozen=True)
class NormSpec:
    """Which norm [CLS] gets and which the other tokens get; ``cls is None`` means one norm for all.

    >>> NormSpec.parse("bn+ln")
    NormSpec(tokens='layer', cls='batch')
    >>> str(NormSpec.parse("Batch + Layer"))
    'bn+ln'
    """

    tokens: str
    cls: str | None = None

    @classmethod
    def parse(cls, text: str | NormSpec) -> NormSpec:
        """Reads ``"ln"``, ``"bn"``, ``"bn+ln"``, ``"bn+bn"``, ``"ln+bn"``, ``"ln+ln"``, also with ``rms`` and ``dyt``."""
        if isinstance(text, NormSpec):
            return text
        if not isinstance(text, str):
            raise SepNormError(f"a norm is written like 'bn+ln' or 'ln', found {text!r}.")
        parts = [part.strip() for part in text.lower().split("+")]
        if len(parts) > 2 or not all(parts):
            raise SepNormError(f"a norm is written like 'bn+ln' ([CLS] first) or 'ln', found {text!r}.")
        kinds = [kind_name(part) for part in parts]
        return cls(kinds[-1], kinds[0] if len(kinds) == 2 else None)

    @property
    def uses_batch(self) -> bool:
        """Whether any place keeps batch statistics."""
        return any(KINDS[place].uses_batch for place in (self.cls, self.tokens) if place is not None)

    def __str__(self) -> str:
        places = [self.tokens] if self.cls is None else [self.cls, self.tokens]
        return "+".join(KINDS[place].short for place in places)
