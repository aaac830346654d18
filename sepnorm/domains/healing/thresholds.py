"""The cosine that unrelated pairs exceed once in 100, 1,000 and 10,000 times, with an interval."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

#: Once in this many pairs.
RATES = (100, 1_000, 10_000)
_ROWS = 2048
_RESAMPLES = 200
_EXPECTED = 10  # pairs above a threshold; with fewer there is none


@dataclass(frozen=True)
class Threshold:
    """The cosine that one in ``rate`` unrelated pairs exceeds, and its 95 % interval."""

    rate: int
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def thresholds(rows: Tensor, labels: Tensor | None = None, seed: int = 0) -> list[Threshold]:
    """Thresholds for vectors (samples, dim).

    Pairs are unrelated if their labels differ, or without labels their vectors. The interval comes from resampled
    vectors, since pairs that share one are not independent. A rate that fewer than ten pairs would exceed is left out.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(rows), generator=generator)[:_ROWS]
    unit = F.normalize(rows[chosen].double(), dim=1)
    first, second = torch.triu_indices(len(unit), len(unit), 1)
    cosines = (unit @ unit.T)[first, second]
    if labels is not None:
        related = labels[chosen][first] == labels[chosen][second]
    else:
        related = cosines > 1 - 1e-9
    cosines, first, second = cosines[~related], first[~related], second[~related]
    count = len(cosines)
    kept = min(count, 4 * count // RATES[0] + 1)
    top, order = cosines.topk(kept)
    first, second = first[order], second[order]
    drawn = torch.stack(
        [
            torch.bincount(torch.randint(len(unit), (len(unit),), generator=generator), minlength=len(unit))
            for _ in range(_RESAMPLES)
        ]
    ).double()
    found = []
    for rate in RATES:
        if count < _EXPECTED * rate:
            continue
        values = []
        for weight in drawn:
            above = (weight[first] * weight[second]).cumsum(0)
            number = int(torch.searchsorted(above, torch.tensor(count / rate, dtype=torch.float64)))
            values.append(top[min(number, kept - 1)])
        spread = torch.stack(values).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
        found.append(Threshold(rate, float(top[count // rate]), float(spread[0]), float(spread[1])))
    return found
