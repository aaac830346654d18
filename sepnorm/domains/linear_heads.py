"""Linear heads on frozen features that are read in chunks, and ridge regression in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sepnorm.errors import SepNormError

_RESIDENT = 2**30  # bytes of features kept in memory; more are read again in every pass
_CHUNK = {"cpu": 2**21, "cuda": 2**27}  # bytes of logits at a time
_ROWS = (512, 2**14)  # fewest and most rows at a time
_WORTH_THREADS = 2**35  # floating-point operations of a pass, about one second of work
_CONSTANT = 1e-10  # a deviation this small relative to the mean is rounding


@contextmanager
def few_threads(operations: int) -> Iterator[None]:
    """Uses one thread for short passes, in which several threads would wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if operations > _WORTH_THREADS else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Rows:
    """Centred features (count, dim), in chunks on the fastest device.

    Features may be a memory-mapped file (``torch.from_numpy`` of a ``numpy.memmap``): more than 1 GiB is read again in
    every pass. ``mean`` and ``deviation`` (dim,) are of each dimension, ``size`` is the root mean square of all
    numbers, and ``products`` (dim, dim) are the sums of products of centred features; all in float64.
    """

    def __init__(self, features: Tensor) -> None:
        if features.dim() != 2 or 0 in features.shape:
            raise SepNormError(
                f"the training features have the shape {tuple(features.shape)}: a probe needs (count, dim), neither of them 0."
            )
        self.features = features.detach()
        self.count, self.dim = features.shape
        self.dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.mean = torch.zeros(self.dim, dtype=torch.float64, device=self.device)
        self._ready: Tensor | None = None
        total, squares = torch.zeros_like(self.mean), torch.zeros_like(self.mean)
        for part, _ in self.chunks():
            total += part.sum(0, dtype=torch.float64)
            squares += part.double().square().sum(0)
        if not bool(total.isfinite().all()):
            raise SepNormError(
                "the training features hold NaN or infinity: the encoder is broken, nothing can be probed."
            )
        self.mean = total / self.count
        self.size = float((squares / self.count).mean().sqrt())
        if self.count * self.dim * self.dtype.itemsize <= _RESIDENT:
            ready = torch.empty(self.count, self.dim, dtype=self.dtype, device=self.device)
            for part, where in self.chunks():
                ready[where] = part
            self._ready = ready
        self.products = torch.zeros(self.dim, self.dim, dtype=torch.float64, device=self.device)
        for part, _ in self.chunks():
            part = part / max(self.size, 1e-30)  # squares of tiny or huge numbers are out of the range of float32
            self.products += part.T @ part
        self.products *= self.size**2
        self.deviation = (self.products.diagonal() / max(1, self.count - 1)).sqrt()

    def chunks(self, kept: Tensor | None = None, columns: int = 1) -> Iterator[tuple[Tensor, slice]]:
        """Yields centred rows (some, dim), and their slice of ``kept``.

        ``kept`` are the ascending indices of the rows to use; None for all. ``columns`` is how many numbers the caller
        computes for each row.
        """
        bytes_a_row = max(columns, self.dim) * self.dtype.itemsize
        size = min(max(_CHUNK[self.device.type] // bytes_a_row, _ROWS[0]), _ROWS[1])
        for start in range(0, self.count if kept is None else len(kept), size):
            numbers = None if kept is None else kept[start : start + size]
            first, end = (start, start + size) if numbers is None else (int(numbers[0]), int(numbers[-1]) + 1)
            part = (self.features if self._ready is None else self._ready)[first:end]
            if numbers is not None and len(numbers) < len(part):
                part = part[(numbers - first).to(part.device)]
            if self._ready is None:
                part = (part.to(self.device, torch.float64) - self.mean).to(self.dtype)
            yield part, slice(start, start + len(part))

    def overall_scale(self) -> Tensor:
        """(dim,) One factor for all dimensions, which makes the mean square of all features 1."""
        return torch.full_like(self.mean, 1 / max(self.size, 1e-12)) * self._varies()

    def own_scale(self) -> Tensor:
        """(dim,) Factors that give each dimension the deviation 1, as in BatchNorm; 0 for a constant dimension."""
        return self._varies() / self.deviation.clamp(min=1e-8)

    def _varies(self) -> Tensor:
        return (self.deviation > _CONSTANT * self.mean.abs()).double()


@dataclass(eq=False)
class Heads:
    """Linear heads on centred features: ``weight`` (heads, dim, outputs), ``bias`` (heads, outputs), in float64.

    ``objective`` (heads,) is the minimum reached, a sum over outputs, and ``steps`` (heads,) the number of steps.
    """

    mean: Tensor
    weight: Tensor
    bias: Tensor
    objective: Tensor
    steps: Tensor

    def __getitem__(self, which: Sequence[int]) -> Heads:
        chosen = torch.tensor(which, device=self.weight.device)
        return Heads(self.mean, self.weight[chosen], self.bias[chosen], self.objective[chosen], self.steps[chosen])

    def outputs(self, features: Tensor) -> Tensor:
        """Outputs (count, heads, outputs) of features (count, dim), on the CPU. Pass large sets in parts."""
        heads, dim, outputs = self.weight.shape
        dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
        centred = (features.detach().to(self.mean) - self.mean).to(dtype)
        flat = self.weight.permute(1, 0, 2).reshape(dim, -1).to(dtype)
        found = torch.addmm(self.bias.flatten().to(dtype), centred, flat).view(-1, heads, outputs).cpu()
        if not bool(found.isfinite().all()):
            raise SepNormError(
                "features to be probed hold NaN or infinity: the encoder is broken, nothing can be probed."
            )
        return found


def fit_ridge(rows: Rows, targets: Tensor, scale: Tensor, penalties: Sequence[float]) -> Heads:
    """Ridge regression of each column of ``targets`` (count, outputs), with NaN for unknown values, for each penalty.

    The objective is that of scikit-learn's ``Ridge``: the sum of squared errors plus ``alpha |weights|^2`` for features
    times ``scale`` (dim,), without penalty on the bias.
    """
    alphas = torch.tensor(penalties, dtype=torch.float64, device=rows.device)
    weight = torch.empty(len(alphas), rows.dim, targets.shape[1], dtype=torch.float64, device=rows.device)
    bias, objective = torch.empty_like(weight[:, 0]), torch.empty_like(weight[:, 0])
    scale, known = scale.to(rows.device), targets.isfinite()
    for pattern in known.unique(dim=1).T:  # outputs that are known for the same rows share a matrix
        kept, columns = pattern.nonzero()[:, 0], (known == pattern[:, None]).all(0).nonzero()[:, 0].to(rows.device)
        if not len(kept):
            raise SepNormError(
                "a probe needs a known value of every target among the training samples, and one has none."
            )
        values = targets[kept][:, columns.cpu()].to(rows.device, torch.float64)
        middle = values.mean(0)
        values = values - middle
        total, products = torch.zeros_like(scale), torch.zeros_like(rows.products)
        sides = torch.zeros_like(weight[0, :, columns])
        for part, where in rows.chunks(kept):
            part = part.double() * scale
            total += part.sum(0)
            products += part.T @ part
            sides += part.T @ values[where]
        mean = total / len(kept)
        spread, axes = torch.linalg.eigh(products - len(kept) * mean * mean[:, None])
        turned = axes.T @ sides / (spread.clamp(min=0)[:, None] + alphas[:, None, None])
        found = axes @ turned
        weight[:, :, columns] = scale[:, None] * found
        bias[:, columns] = middle - torch.einsum("d,hdo->ho", mean, found)
        objective[:, columns] = values.square().sum(0) - (sides * found).sum(1)
    steps = torch.ones(len(alphas), dtype=torch.long, device=rows.device)
    return Heads(rows.mean, weight, bias, objective.sum(1), steps)
