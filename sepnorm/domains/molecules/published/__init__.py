"""Graphormer as in published checkpoints, of transformers 4 and of Microsoft's repository."""

from sepnorm.domains.molecules.published.model import GraphormerForGraphClassification

Graphormer = GraphormerForGraphClassification

__all__ = ["Graphormer"]
