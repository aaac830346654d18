"""Mixture Normalisation with fixed components: K scales and shifts, weighted by the responsibilities of the input."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.layer.batch_rules import ScaleShift
from sepnorm.layer.mixture_fit import Components, Density
from sepnorm.layer.torch_internals import WideStatistics


class MixtureScales(WideStatistics, ScaleShift):
    """A frozen ``MixtureNorm``: K scales and shifts per channel, weighted by responsibilities under a fixed mixture.

    ``weight`` and ``bias`` are (K, dim); buffers hold the density of the mixture. Shapes: (..., dim) in and out.
    """

    BUFFERS = ("density_centre", "density_quadratic", "density_linear", "density_offset")
    density_centre: Tensor
    density_quadratic: Tensor
    density_linear: Tensor
    density_offset: Tensor

    def __init__(self, centre: Tensor, density: Density, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight, bias)
        for name, part in zip(self.BUFFERS, (centre, *density), strict=True):
            self.register_buffer(name, part)

    @property
    def components(self) -> int:
        return self.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        centre, *density = (self.get_buffer(name).to(wide) for name in self.BUFFERS)
        with full_precision(x):
            out = piecewise(x.to(wide), centre, Density(*density), self.weight.to(wide), self.bias.to(wide))
        return out.to(x.dtype)

    def _keeps_wide(self) -> list[nn.Module]:
        return [self]

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, components={self.components}"


def blank_scales(dim: int, components: int) -> ScaleShift:
    """A frozen norm to load a state dict into: a ``ScaleShift`` for ``components=0``, else a ``MixtureScales``."""
    if not components:
        return ScaleShift(torch.ones(dim), torch.zeros(dim))
    many = torch.zeros(components, dim)
    return MixtureScales(torch.zeros(dim), Density(many, many.clone(), many[:, 0].clone()), many.clone(), many.clone())


def scales_of(
    found: Components, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The centre (dim,) to subtract, and then the scale and shift of each component (K, dim).

    Subtracting the centre first keeps numbers small; it cancels out.
    """
    centre = (found.prior @ found.mean).detach()
    share = torch.where(found.prior > 0, found.prior, 1.0).unsqueeze(1)  # where it is zero, any finite number will do
    scale = (share * (found.var + eps)).rsqrt()
    scale = scale if weight is None else scale * weight.to(scale.dtype)
    shift = (centre - found.mean) * scale
    return centre, scale, shift if bias is None else shift + bias.to(scale.dtype)


def piecewise(x: Tensor, centre: Tensor, density: Density, scale: Tensor, shift: Tensor) -> Tensor:
    """Applies scales and shifts (K, dim) to (..., dim), weighted by responsibilities."""
    rows = x.reshape(-1, x.shape[-1]) - centre
    shares = density.shares(rows, rows.square())
    return (rows * (shares @ scale) + shares @ shift).view(x.shape)


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Switches autocast off: it would run the matrix products in half precision."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
