"""How embeddings lie in space: measures of collapse, each with its definition.

All take embeddings (samples, dimensions) as a torch tensor or a NumPy array, also one that is mapped from a file, and compute
in double precision, reading the rows once in parts. What is computed over *pairs* of embeddings is computed over all pairs
of a sample of 8,192 rows, chosen by a seed, where there are more; the result says so and has its standard error. Rows that
hold NaN or infinity are left out with a warning; vectors of length zero have no direction and are left out of what compares
directions.
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
