"""The kinds of norms, one record each, and the notation: ``"bn+ln"`` is [CLS] then tokens, ``"ln"`` one shared norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.arguments import flag, number, whole
from sepnorm.errors import SepNormError, nearest, one_line
from sepnorm.layer.batch_rules import BatchRules, ScaleShift
from sepnorm.layer.kernels import BatchKernel, Kernel, LayerKernel, ScaleKernel
from sepnorm.layer.mixture import MOST_COMPONENTS, MixtureNorm, MixtureRules
from sepnorm.layer.mixture_scales import MixtureScales
from sepnorm.layer.statistics import MOST_CHANNELS, checked_momentum

Kind = str | Callable[[int], nn.Module]


@dataclass(frozen=True)
class NormKind:
    """One kind of norm: its names, how it is built and recognised. To add a kind, add it to ``KINDS``.

    Args:
        short: name in a pair, as in the paper: ``"bn"``.
        build: builds a norm from ``dim``, ``eps``, ``momentum``, ``affine``, ``device`` and ``dtype``.
        types: module classes of this kind.
        acts: reference function of a norm and ``x`` (..., channels). Classes of other libraries that compute the same
            are recognised as this kind.
        batch: rules for the batch statistics; None for a kind without them.
        options: integer options of this kind, with their largest values. ``build`` takes them and norms have them as
            attributes.
        kernel: implementation on the fast path; kinds without one take the plain path.
    """

    short: str
    build: Callable[..., nn.Module]
    types: tuple[type[nn.Module], ...]
    acts: Callable[[Any, Tensor], Tensor] | None = None
    batch: BatchRules | None = None
    options: Mapping[str, int] = field(default_factory=dict)
    kernel: type[Kernel] | None = None

    @property
    def uses_batch(self) -> bool:
        """Whether the kind keeps batch statistics."""
        return self.batch is not None


class DynamicTanh(nn.Module):
    """``weight * tanh(alpha * x) + bias`` on (..., dim): a norm without statistics (Zhu et al., CVPR 2025)."""

    def __init__(self, dim: int, alpha: float = 0.5, affine: bool = True, **factory: Any) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), alpha, **factory))
        self.weight = nn.Parameter(torch.ones(dim, **factory)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dim, **factory)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        out = torch.tanh(self.alpha * x)
        return out if self.weight is None or self.bias is None else out * self.weight + self.bias


def _batch(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    norm = nn.BatchNorm1d(dim, eps=eps, momentum=momentum, affine=affine, **factory)
    for name, buffer in list(norm.named_buffers()):
        if buffer.dtype in (torch.bfloat16, torch.float16):  # running averages need float32
            setattr(norm, name, buffer.float())
    return norm


def _layer(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    return nn.LayerNorm(dim, eps=eps, elementwise_affine=affine, **factory)


def _rms(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    return nn.RMSNorm(dim, eps=eps, elementwise_affine=affine, **factory)


def _tanh(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    return DynamicTanh(dim, affine=affine, **factory)


def _mixture(dim: int, *, components: int = 3, **options: Any) -> nn.Module:
    return MixtureNorm(dim, components, **options)


def _acts_layer(norm: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight, getattr(norm, "bias", None))


def _acts_rms(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight)


KINDS = {
    "batch": NormKind("bn", _batch, (nn.BatchNorm1d, nn.SyncBatchNorm), batch=BatchRules(), kernel=BatchKernel),
    "layer": NormKind("ln", _layer, (nn.LayerNorm,), _acts_layer, kernel=LayerKernel),
    "rms": NormKind("rms", _rms, (nn.RMSNorm,), _acts_rms),
    "tanh": NormKind("dyt", _tanh, (DynamicTanh,)),
    "mixture": NormKind("mix", _mixture, (MixtureNorm,), batch=MixtureRules(), options={"components": MOST_COMPONENTS}),
}
#: Buffers that stay in float32 at least in a half-precision model, because running averages lose small updates.
WIDE_BUFFERS = ("running_mean", "running_var", "running_prior", *MixtureScales.BUFFERS)
#: Module classes with batch statistics.
BATCH_NORMS = tuple(norm for kind in KINDS.values() if kind.uses_batch for norm in kind.types)
#: Kernels by forward function, not by class, so that classes which torch derives (for parametrizations) are fused too.
KERNELS: dict[Any, type[Kernel]] = {ScaleShift.forward: ScaleKernel} | {
    norm.forward: kind.kernel for kind in KINDS.values() if kind.kernel is not None for norm in kind.types
}
_LONG = {kind.short: name for name, kind in KINDS.items()}


def kind_of(module: nn.Module) -> str | None:
    """Name of the kind that the module's class belongs to, or None."""
    return next((name for name, kind in KINDS.items() if isinstance(module, kind.types)), None)


def batch_rules(module: nn.Module | None) -> BatchRules | None:
    """Rules for the batch statistics of a module, or None if it keeps none."""
    kind = None if module is None else kind_of(module)
    return None if kind is None else KINDS[kind].batch


def wraps_batch_norm(module: nn.Module) -> bool:
    """Whether a module of another class contains a batch norm, as wrappers of adapter libraries do."""
    return kind_of(module) is None and any(isinstance(part, BATCH_NORMS) for part in module.modules())


def token_norm_kind(module: nn.Module) -> str | None:
    """Name of the kind if the module normalises each token over its channels, else None.

    Classes of other libraries are recognised by what they compute, not by name: T5's "LayerNorm" is an RMS norm.
    """
    name = kind_of(module)
    weight: Any = getattr(module, "weight", None)
    if name is not None and KINDS[name].uses_batch:
        return None
    testable = isinstance(weight, Tensor) and weight.dim() == 1 and not weight.is_meta
    # a subclass with a forward of its own may normalise another dimension, or scale by 1 + weight
    if name is not None and not (
        testable and all(type(module).forward is not each.forward for each in KINDS[name].types)
    ):
        return name
    if not testable or any(True for _ in module.children()):
        return None
    x = torch.linspace(-1, 2, 3 * len(weight), device=weight.device).sin().view(1, 3, -1).to(weight.dtype)
    try:
        with torch.no_grad():
            out = module(x)
            alike = (
                name for name, kind in KINDS.items() if kind.acts is not None and _is_close(out, kind.acts(module, x))
            )
            return next(alike, None)
    except Exception:  # a module that is no norm may raise anything here
        return None


def _is_close(a: Any, b: Tensor) -> bool:
    return (
        isinstance(a, Tensor)
        and a.shape == b.shape
        and torch.allclose(a.float(), b.float(), 0.02, 0.02, equal_nan=True)
    )


def kind_name(kind: str) -> str:
    """Long name of a kind, given by its long or short name.

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
    """Short name of a kind, ``"ln"`` for ``"layer"``; other strings unchanged."""
    return KINDS[kind].short if kind in KINDS else kind


def build_norm(kind: Kind, dim: int, **options: Any) -> nn.Module:
    """Builds one norm over ``dim`` channels, from the name of a kind or a callable that takes ``dim``."""
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
    momentum = checked_momentum(momentum)
    try:
        return KINDS[kind].build(dim, eps=eps, momentum=momentum, affine=flag(affine, "affine"), **factory)
    except (RuntimeError, AssertionError) as error:  # unknown device, integer dtype, too little memory
        given = ", ".join(f"{name}={value}" for name, value in factory.items() if value is not None)
        raise SepNormError(
            f"a {kind} norm of {dim} channels cannot be built{f' with {given}' if given else ''}: {one_line(error)}."
        ) from error


@dataclass(frozen=True)
class NormSpec:
    """Kinds of norm for [CLS] and for tokens. ``cls=None`` is one shared norm.

    >>> NormSpec.parse("bn+ln")
    NormSpec(tokens='layer', cls='batch')
    >>> str(NormSpec.parse("Batch + Layer"))
    'bn+ln'
    """

    tokens: str
    cls: str | None = None

    @classmethod
    def parse(cls, text: str | NormSpec) -> NormSpec:
        """Parses ``"ln"``, ``"bn+ln"`` and so on, with any of ``ln``, ``bn``, ``rms``, ``dyt`` and ``mix``."""
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
        """Whether either norm keeps batch statistics."""
        return any(KINDS[place].uses_batch for place in (self.cls, self.tokens) if place is not None)

    def __str__(self) -> str:
        places = [self.tokens] if self.cls is None else [self.cls, self.tokens]
        return "+".join(KINDS[place].short for place in places)
