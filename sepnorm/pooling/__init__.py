"""Pooling: one vector per sample from [CLS], the mean of tokens, both, or first and second moments of tokens."""

from sepnorm.pooling.moments import MomentPool, moment_matrix
from sepnorm.pooling.registry import cls_mean, mean, pool

__all__ = ["MomentPool", "cls_mean", "mean", "moment_matrix", "pool"]
