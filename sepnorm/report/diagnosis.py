"""The result of a diagnosis: numbers, vectors for figures, and plain values for JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from sepnorm.geometry import Summary
from sepnorm.report.verdict import Verdict
from sepnorm.surgery.inspection import Inspection


@dataclass(eq=False)
class Points:
    """A sample of the embeddings (count, dim) for figures, with names and, if known, labels."""

    rows: Tensor
    labels: list[str] | None
    names: list[str]


@dataclass(eq=False)
class Diagnosis:
    """The result of ``diagnose`` for one target.

    Attributes:
        target: path of the file, or name of the model.
        data: the data that a model ran on; None for a file.
        verdict: whether the embeddings have collapsed, why, and what to try.
        embeddings: measures of the file's embeddings, or of the model's [CLS] after its last layer.
        mean_of_tokens: measures of the mean of tokens, for comparison; None without a [CLS].
        layers: statistics of every norm of the model; None without a [CLS].
        points: a sample of the embeddings, for figures.
        tokens: a sample of token vectors (count, dim), for figures.
        lidar: the LiDAR of the labelled samples; None if they have no labels.
    """

    target: str
    data: str | None
    verdict: Verdict
    embeddings: Summary
    mean_of_tokens: Summary | None = None
    layers: Inspection | None = None
    points: Points | None = field(default=None, repr=False)
    tokens: Tensor | None = field(default=None, repr=False)
    lidar: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dictionaries for JSON. Undefined measures are None."""
        return finite(
            {
                "target": self.target,
                "data": self.data,
                "verdict": asdict(self.verdict),
                "embeddings": self.embeddings.as_dict(),
                "lidar": self.lidar,
                "mean_of_tokens": self.mean_of_tokens and self.mean_of_tokens.as_dict(),
                "layers": self.layers and self.layers.as_dicts(),
            }
        )


def finite(value: Any) -> Any:
    """The same value with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
