"""The layer: separate norms for [CLS] and tokens, its fused path, its statistics, and the kinds of norms."""

from sepnorm.layer.kinds import ScaleShift
from sepnorm.layer.sep_norm import Origin, SepNorm, SharedNorm, TokenNorm

__all__ = ["Origin", "ScaleShift", "SepNorm", "SharedNorm", "TokenNorm"]
