"""Measures of collapse: how embeddings are spread in space, each with its definition and paper.

Every function takes embeddings (samples, dimensions) as a torch tensor, a NumPy array (also memory-mapped) or lists of
numbers. It reads them once, in parts, and computes in double precision. Measures over *pairs* use all pairs of a random
sample of 8,192 embeddings where there are more, and return their standard error. Embeddings with NaN or infinity are
left out with a warning. Zero vectors have no direction and are left out of cosines and distances.
"""

from sepnorm.geometry.measures import (
    Dominance,
    Variance,
    alignment,
    anisotropy,
    dominance,
    effective_rank,
    isoscore,
    participation_ratio,
    rankme,
    singular_values,
    uniform_uniformity,
    uniformity,
    variance,
)
from sepnorm.geometry.overview import Summary, summarise, summary
from sepnorm.geometry.pairs import Anisotropy, Estimate
from sepnorm.geometry.spectra import alpha_req, lidar
from sepnorm.geometry.spread import epps_pulley, high_norm_share, koleo

__all__ = [
    "Anisotropy",
    "Dominance",
    "Estimate",
    "Summary",
    "Variance",
    "alignment",
    "alpha_req",
    "anisotropy",
    "dominance",
    "effective_rank",
    "epps_pulley",
    "high_norm_share",
    "isoscore",
    "koleo",
    "lidar",
    "participation_ratio",
    "rankme",
    "singular_values",
    "summarise",
    "summary",
    "uniform_uniformity",
    "uniformity",
    "variance",
]
