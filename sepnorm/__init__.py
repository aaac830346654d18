"""Separate normalisation of [CLS] and tokens in transformers: the layer, the surgery, the statistics."""

from sepnorm._version import __version__
from sepnorm.calibrate import calibrate, freeze
from sepnorm.convert import ConversionReport, convert, revert
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.inspect import Inspection, inspect
from sepnorm.layer import SepNorm, SharedNorm
from sepnorm.store import load, save

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
    "inspect",
    "load",
    "revert",
    "save",
]
