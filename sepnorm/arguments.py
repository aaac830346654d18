"""Checks of arguments of public functions, before any work is done."""

from __future__ import annotations

import math
import operator
from typing import Any

from torch import Tensor, nn

from sepnorm.errors import SepNormError


def require_module(model: object) -> None:
    """Raises unless ``model`` is a torch module."""
    if not isinstance(model, nn.Module):
        raise SepNormError(f"a model is a torch module, found {_said(model)}: give the model itself.")


def require_floats(x: object, name: str) -> None:
    """Raises unless ``x`` is a floating-point tensor; ``name`` is used in the message."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise SepNormError(f"{name} is a tensor of floating-point numbers, found {_said(x)}.")


def whole(value: Any, name: str, least: int | None = None, most: int | None = None) -> int:
    """``value`` as an int within the limits. Accepts NumPy integers and tensors of one element."""
    try:
        found = operator.index(value)
    except TypeError:
        raise SepNormError(f"{name} is a whole number, found {_said(value)}.") from None
    if (least is not None and found < least) or (most is not None and found > most):
        limits = [f"at least {least}"] * (least is not None) + [f"at most {most}"] * (most is not None)
        raise SepNormError(f"{name} is a whole number, {' and '.join(limits)}, found {found}.")
    return found


def number(value: Any, name: str, least: float = -math.inf) -> float:
    """``value`` as a finite float of at least ``least``."""
    try:
        found = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        found = math.nan
    if not math.isfinite(found) or found < least:
        limit = "" if least == -math.inf else f" of at least {least:g}"
        raise SepNormError(f"{name} is a finite number{limit}, found {_said(value)}.")
    return found


def flag(value: Any, name: str) -> bool:
    """``value`` as a bool; raises for tensors, strings and the like, whose truth value is probably a mistake."""
    if isinstance(value, Tensor) or (type(value).__module__ == "builtins" and not isinstance(value, int)):
        raise SepNormError(f"{name} is True or False, found {_said(value)}.")
    return bool(value)


def _said(value: Any) -> str:
    """A short description of a value of any size, for messages."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} and shape {tuple(value.shape)}"
    shown = repr(value)
    return shown if len(shown) < 60 and "\n" not in shown else f"a {type(value).__name__}"
