"""Separate normalisation of [CLS] and tokens in transformers: the layer, the surgery, the statistics."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sepnorm._version import __version__
from sepnorm.errors import SepNormError, SepNormWarning

if TYPE_CHECKING:
    from sepnorm import geometry, losses
    from sepnorm.calibration import calibrate, freeze
    from sepnorm.inspection import Inspection, inspect
    from sepnorm.layer import SepNorm, SharedNorm
    from sepnorm.store import load, save
    from sepnorm.surgery import ConversionReport, convert, revert

__all__ = [
    "ConversionReport",
    "Inspection",
    "SepNorm",
    "SepNormError",
    "SepNormWarning",
    "SharedNorm",
    "__version__",
    "calibrate",
    "convert",
    "freeze",
    "geometry",
    "inspect",
    "load",
    "losses",
    "revert",
    "save",
]

#: What is loaded when it is first asked for, torch included: who only asks for help does not wait for it.
_LATER = {
    "calibration": ("calibrate", "freeze"),
    "inspection": ("Inspection", "inspect"),
    "layer": ("SepNorm", "SharedNorm"),
    "store": ("load", "save"),
    "surgery": ("ConversionReport", "convert", "revert"),
}
_HOME = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("geometry", "losses"):
        return import_module(f"sepnorm.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'sepnorm' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"sepnorm.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
