"""The layer: separate norms for [CLS] and tokens, its fast path, its batch statistics, and the kinds of norms."""

from sepnorm.layer.batch_rules import ScaleShift
from sepnorm.layer.mixture import MixtureNorm
from sepnorm.layer.sep_norm import Origin, SepNorm, SharedNorm, TokenNorm

__all__ = ["MixtureNorm", "Origin", "ScaleShift", "SepNorm", "SharedNorm", "TokenNorm"]
