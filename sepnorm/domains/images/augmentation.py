"""Random resized crops and flips of a batch, in plain torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def augment(pixels: Tensor, draws: Tensor, smallest: float, flip: bool) -> Tensor:
    """Crops images (images, channels, side, side) to a share of their area from ``smallest`` to 1, and scales back.

    ``draws`` (5, images) are random numbers from 0 to 1. The aspect ratio is between 3/4 and 4/3, as in MAE. With
    ``flip``, half of the images are mirrored.
    """
    count = pixels.shape[0]
    area = smallest + (1 - smallest) * draws[0]
    ratio = torch.exp((2 * draws[1] - 1) * math.log(4 / 3)) if smallest < 1 else torch.ones(count)
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    mirror = torch.where(draws[4] < 0.5, -1.0, 1.0) if flip else torch.ones(count)
    grid = torch.zeros(count, 2, 3)
    grid[:, 0, 0], grid[:, 0, 2] = width * mirror, (2 * draws[2] - 1) * (1 - width)
    grid[:, 1, 1], grid[:, 1, 2] = height, (2 * draws[3] - 1) * (1 - height)
    places = F.affine_grid(grid, list(pixels.shape), align_corners=False).to(pixels.device)
    return F.grid_sample(pixels, places, mode="bilinear", padding_mode="reflection", align_corners=False)
