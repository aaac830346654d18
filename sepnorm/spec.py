"""How a norm is written: ``"bn+ln"`` ([CLS] first), or ``"ln"`` for one norm shared by all tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from sepnorm.arguments import flag, number, whole
from sepnorm.errors import SepNormError, nearest


def _batch(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    return nn.BatchNorm1d(dim, eps=eps, momentum=momentum, affine=affine, **factory)


def _layer(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    return nn.LayerNorm(dim, eps=eps, elementwise_affine=affine, **factory)


def _rms(dim: int, *, eps: float, momentum: float | None, affine: bool, **factory: Any) -> nn.Module:
    return nn.RMSNorm(dim, eps=eps, elementwise_affine=affine, **factory)


#: Every kind of norm by its long name. A further kind is one more entry here and in ``SHORT``.
KINDS: dict[str, Callable[..., nn.Module]] = {"batch": _batch, "layer": _layer, "rms": _rms}
#: The paper's short names.
SHORT: dict[str, str] = {"bn": "batch", "ln": "layer", "rms": "rms"}
_SHORT_OF = {long: short for short, long in SHORT.items()}

Kind = str | Callable[[int], nn.Module]


def kind_name(kind: str) -> str:
    """The long name of a kind given by either of its names.

    >>> kind_name("bn"), kind_name("layer")
    ('batch', 'layer')
    """
    long = SHORT.get(kind, kind)
    if long not in KINDS:
        raise SepNormError(
            f"unknown norm {kind!r}: the kinds are {', '.join(KINDS)} (short: {', '.join(SHORT)})."
            + nearest(kind, [*KINDS, *SHORT])
        )
    return long


def short_name(kind: str) -> str:
    """The paper's name of a kind, ``"ln"`` for ``"layer"``; anything else as it is."""
    return _SHORT_OF.get(kind, kind)


def build_norm(kind: Kind, dim: int, **options: Any) -> nn.Module:
    """One norm over ``dim`` channels, from a kind's name or from a callable that takes ``dim``."""
    if isinstance(kind, str):
        return _built(kind_name(kind), whole(dim, "dim", 1), **options)
    if not callable(kind):
        raise SepNormError(f"a norm is a name or a callable that builds a module from dim, found {kind!r}.")
    module = kind(dim)
    if not isinstance(module, nn.Module):
        raise SepNormError(f"the callable {kind!r} must build a torch module from dim, but returned {module!r}.")
    return module


def _built(kind: str, dim: int, *, eps: Any, momentum: Any, affine: Any, **factory: Any) -> nn.Module:
    eps = eps if eps is None else number(eps, "eps", 0)
    momentum = momentum if momentum is None else number(momentum, "momentum")
    try:
        return KINDS[kind](dim, eps=eps, momentum=momentum, affine=flag(affine, "affine"), **factory)
    except RuntimeError as error:  # a device or dtype that is none, or more channels than fit into memory
        raise SepNormError(f"a {kind} norm of {dim} channels cannot be built: {str(error).splitlines()[0]}.") from error


@dataclass(frozen=True)
class NormSpec:
    """Which norm [CLS] gets and which the other tokens get; ``cls is None`` means one norm for all.

    >>> NormSpec.parse("bn+ln")
    NormSpec(tokens='layer', cls='batch')
    >>> str(NormSpec.parse("bn"))
    'bn'
    """

    tokens: str
    cls: str | None = None

    @classmethod
    def parse(cls, text: str | NormSpec) -> NormSpec:
        """Reads ``"ln"``, ``"bn"``, ``"bn+ln"``, ``"bn+bn"``, ``"ln+bn"``, ``"ln+ln"``, also with ``rms``."""
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
        return "batch" in (self.cls, self.tokens)

    def __str__(self) -> str:
        places = [self.tokens] if self.cls is None else [self.cls, self.tokens]
        return "+".join(_SHORT_OF[place] for place in places)
