"""Powers of symmetric matrices with bounded gradients: by eigenvalues, or inverse roots by Newton-Schulz steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sepnorm.errors import SepNormError

#: The smallest eigenvalue that counts, in units of eps times the trace. With less, Newton-Schulz steps lose precision
#: on rank-deficient matrices: in float32 and on equal tokens, the root is off by 1 % with 8 and by 0.1 % with 64. In
#: float64 they take twice as many steps, through which rounding grows in the backward pass: with 64, gradients are wrong.
_NOISE = {torch.float32: 2.0**6, torch.float64: 2.0**20}


def _floor(dtype: torch.dtype) -> float:
    """The smallest eigenvalue that counts, as a share of the trace."""
    return _NOISE[dtype] * torch.finfo(dtype).eps


def shift_of(matrix: Tensor) -> Tensor:
    """(..., 1, 1): the shift that makes all eigenvalues of positive matrices (..., n, n) nonzero. No gradient."""
    trace = matrix.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    return (_floor(matrix.dtype) * trace.clamp(min=1.0))[..., None, None]


class EigenPower(torch.autograd.Function):
    """``(A + shift)^power`` of symmetric positive semidefinite matrices A (..., n, n).

    Autograd through ``eigh`` divides by differences of eigenvalues, which fails where two are equal. The gradient of a
    matrix function f needs only the quotients (f(a) - f(b)) / (a - b). For a power these have a limit at a = b, and are
    computed here without cancellation from the logarithm of a / b.

    Second derivatives need quotients of quotients. Those of the inverse root are taken through ``inverse_root`` instead;
    other powers have none.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, shift: Tensor, power: float) -> Tensor:
        broken = ~matrix.isfinite().all(dim=-1).all(dim=-1)[..., None, None]  # else eigh fails for all of them
        values, vectors = torch.linalg.eigh(matrix.masked_fill(broken, 0))
        values = values.clamp(min=0).masked_fill(broken[..., 0], torch.nan) + shift[..., 0]
        ctx.save_for_backward(values, vectors, matrix, shift)
        ctx.power = power
        return (vectors * values.pow(power)[..., None, :]) @ vectors.mT

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        values, vectors, matrix, shift = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            return _differentiable_slope(matrix, shift, ctx.power, slope), None, None
        logs = values.log()
        gap = logs[..., :, None] - logs[..., None, :]
        ratio = torch.where(gap == 0, ctx.power, torch.expm1(ctx.power * gap) / torch.expm1(gap))
        quotients = ratio * values.pow(ctx.power - 1)[..., None, :]
        inner = quotients * (vectors.mT @ slope @ vectors)
        return vectors @ inner @ vectors.mT, None, None


def _differentiable_slope(matrix: Tensor, shift: Tensor, power: float, slope: Tensor) -> Tensor:
    if power != -0.5:
        raise SepNormError(
            f"moment pooling of power {power + 1:g} has no second derivatives (create_graph=True): use power=0.5."
        )
    return torch.autograd.grad(inverse_root(matrix, shift), matrix, slope, create_graph=True)[0]


def inverse_root(matrix: Tensor, shift: Tensor) -> Tensor:
    """``(A + shift)^(-1/2)`` by matrix products alone: coupled Newton-Schulz steps, scaled so that they converge fast.

    Each scale is optimal for eigenvalues between a lower bound and 1 (Chen and Chow, 2014). The bound follows from
    ``shift_of``, so the number of steps is fixed: 10 in float32.
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    matrix = matrix + shift * eye
    size = torch.linalg.matrix_norm(matrix, keepdim=True)
    root, inverse = matrix / size, eye.expand_as(matrix)
    for scale in _scales(matrix.dtype):
        step = 0.5 * scale * (3 * eye - scale**2 * (inverse @ root))
        root, inverse = root @ step, step @ inverse
    return inverse / size.sqrt()


def _scales(dtype: torch.dtype) -> list[float]:
    """Scales of the steps that take every number between the root of ``_floor`` and 1 to 1."""
    eps = torch.finfo(dtype).eps
    low, scales = _floor(dtype) ** 0.5, []
    while 1 - low > eps:
        scales.append((3 / (1 + low + low**2)) ** 0.5)
        low = 0.5 * scales[-1] * low * (3 - (scales[-1] * low) ** 2)
    return scales
