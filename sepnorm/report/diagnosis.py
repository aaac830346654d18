"""What a diagnosis found, as numbers, vectors for figures, and plain values for JSON."""

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
    """Some of the embeddings (count, dim) themselves, for figures: with labels and names where there are some."""

    rows: Tensor
    labels: list[str] | None
    names: list[str]


@dataclass(eq=False)
class Diagnosis:
    """What was found out about one target; ``as_dict`` is for machines, ``points`` and ``tokens`` are for figures.

    ``embeddings`` are those of the file, or the model's [CLS] after its last layer; ``mean_of_tokens`` is the pooling that
    one would use instead. ``layers`` has every norm of a model. ``lidar`` is there where the samples have labels.
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
        """Plain numbers, strings, lists and dictionaries; a figure that is not defined is None."""
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
    """The same with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
