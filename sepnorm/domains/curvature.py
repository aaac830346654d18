"""Coordinates for linear heads in which their objective has a curvature near 1, so that L-BFGS needs few steps.

Weights belong to scaled features, with the bias as last row: (heads, dim + 1, outputs). Several outputs are classes.
Adding a number to all classes changes no probability, and at the minimum the mean over classes is 0; the coordinates
keep it 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

_UNDECIDED = 4  # number of samples on which an output's curvature is measured, as a multiple of its size
_AT_ONCE = 2**24  # bytes of samples at a time
_ATTEMPTS = 8  # attempts to make a matrix positive definite, with growing numbers added to its diagonal


class Axes:
    """Principal axes of the scaled features, along which the curvature is ``p (1 - p) variance + penalty``.

    Args:
        products: (dim, dim) sums of products of the centred features.
        scales: (heads, dim) factors of the features.
        weight: (heads, outputs) mean of p (1 - p) over the samples.
        penalties: (heads,) strengths of the penalty.
        count: number of samples.
        dtype: of the coordinates.
    """

    def __init__(
        self, products: Tensor, scales: Tensor, weight: Tensor, penalties: Tensor, count: int, dtype: torch.dtype
    ) -> None:
        forms, self.form = scales.unique(dim=0, return_inverse=True)
        spread, axes = torch.linalg.eigh(torch.stack([products * scale * scale[:, None] for scale in forms]))
        self.axes = axes.to(dtype)  # (forms, dim, dim)
        along = weight[:, None] * spread.clamp(min=0)[self.form, :, None] + penalties[:, None, None]
        self.stretch = torch.cat([along, count * weight[:, None]], dim=1).rsqrt().to(dtype)

    def weights(self, points: Tensor, which: Tensor) -> Tensor:
        """Weights at these points, for the heads ``which``."""
        return centred(self._turned(points * self.stretch[which], which, back=False))

    def slopes(self, slopes: Tensor, which: Tensor) -> Tensor:
        """Gradients in these coordinates, from gradients by weights."""
        return self._turned(centred(slopes), which, back=True) * self.stretch[which]

    def _turned(self, values: Tensor, which: Tensor, back: bool) -> Tensor:
        found = values.clone()
        for number, axes in enumerate(self.axes):
            own = self.form[which] == number
            found[own, :-1] = torch.einsum("de,heo->hdo", axes.T if back else axes, values[own, :-1])
        return found


class Blocks:
    """Coordinates in which the curvature of each single output is the identity.

    With a weak penalty, most of an output's curvature comes from the few samples on which it is undecided. These are
    used one by one; all others are treated as if they had the covariance of all samples.
    """

    def __init__(self, heads: int, outputs: int, samples: Tensor, products: Tensor) -> None:
        """``samples`` (count, dim) are centred features; ``products`` (dim, dim) are the sums of their products."""
        self.samples, self.products = samples, products
        size = samples.shape[1] + 1
        self.roots = samples.new_empty(heads, outputs, size, size)

    @staticmethod
    def passes(count: int, dim: int) -> int:
        """The cost of measuring, as a number of passes over ``count`` rows."""
        return (min(count, _UNDECIDED * (dim + 1)) * dim + dim**2) // (2 * count)

    def measure(self, head: int, scale: Tensor, weights: Tensor, penalty: Tensor) -> None:
        """Measures a head for features times ``scale`` (dim,), with ``weights`` (count, outputs) ~ p (1 - p)."""
        count, size = len(self.samples), self.roots.shape[-1]
        common = torch.zeros(size, size, dtype=torch.float64, device=scale.device)
        common[:-1, :-1] = self.products * scale * scale[:, None] / count
        common[-1, -1] = 1.0
        common, scale = common.to(self.samples), scale.to(self.samples)
        identity = torch.eye(size, dtype=scale.dtype, device=scale.device)
        some = min(count, _UNDECIDED * size)
        at_once = max(1, _AT_ONCE // (scale.element_size() * some * size))
        for columns in torch.arange(weights.shape[1]).split(at_once):
            own, numbers = weights[:, columns].T.topk(some, dim=1)  # (columns, some)
            rows = self.samples[numbers] * scale
            rows = torch.cat([rows, torch.ones_like(rows[..., :1])], dim=2)
            rest = (weights[:, columns].sum(0) - own.sum(1)).clamp(min=0)
            curvature = torch.baddbmm(rest[:, None, None] * common, (rows * own[..., None]).transpose(1, 2), rows)
            curvature.diagonal(dim1=1, dim2=2)[:, :-1] += penalty.to(scale)
            self.roots[head, columns] = torch.linalg.solve_triangular(_root(curvature), identity, upper=False)

    def weights(self, points: Tensor, which: Tensor) -> Tensor:
        """Weights at these points, for the heads ``which``."""
        found = [torch.einsum("oed,eo->do", self.roots[i], own) for i, own in zip(which.tolist(), points, strict=True)]
        return centred(torch.stack(found))

    def slopes(self, slopes: Tensor, which: Tensor) -> Tensor:
        """Gradients in these coordinates, from gradients by weights."""
        pairs = zip(which.tolist(), centred(slopes), strict=True)
        return torch.stack([torch.einsum("oed,do->eo", self.roots[i], own) for i, own in pairs])


def _root(curvature: Tensor) -> Tensor:
    """Cholesky factors of matrices (count, size, size) whose eigenvalues rounding may have made negative."""
    diagonal = curvature.diagonal(dim1=1, dim2=2)
    more = torch.finfo(curvature.dtype).eps * diagonal.sum(1, keepdim=True)
    for _ in range(_ATTEMPTS):
        diagonal += more
        root, failed = torch.linalg.cholesky_ex(curvature)
        if not bool(failed.any()):
            break
        more = 10 * more
    return root


def centred(weights: Tensor) -> Tensor:
    """Weights minus their mean over classes, which changes no probability; a single output is left as it is."""
    return weights - weights.mean(2, keepdim=True) if weights.shape[2] > 1 else weights
