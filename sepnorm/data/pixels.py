"""Pillow images to the pixel tensor that a vision transformer takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SETTINGS = "preprocessor_config.json"
_MOST_SCALED = 2**24  # pixels of an image that is scaled whole, before it is cropped


class Picture:
    """Resizes an image to cover ``size``, crops the centre, and standardises each channel with ``mean`` and ``std``."""

    def __init__(
        self, size: tuple[int, int], mean: Sequence[float], std: Sequence[float], name: str | None = None
    ) -> None:
        self.size, self.name = size, name
        self.mean, self.std = (torch.tensor(list(values)).reshape(-1, 1, 1) for values in (mean, std))

    def __call__(self, images: list[Any]) -> Tensor | dict[str, Tensor]:
        """Pixels (images, channels, height, width); in a dictionary under ``name`` if the model has a named input."""
        pixels = torch.stack([self._pixels(image) for image in images])
        return pixels if self.name is None else {self.name: pixels}

    def save(self, folder: Path) -> None:
        """Writes size, mean and deviation to the file from which transformers reads them."""
        settings: dict[str, Any] = {
            "image_mean": self.mean.flatten().tolist(),
            "image_std": self.std.flatten().tolist(),
        }
        settings |= {"do_normalize": True, "size": {"height": self.size[0], "width": self.size[1]}}
        (folder / SETTINGS).write_text(json.dumps(settings, indent=1), encoding="utf-8")

    def _pixels(self, image: Any) -> Tensor:
        height, width = self.size
        image = cover(image, height, width)
        image = image.convert("L" if len(self.mean) == 1 else "RGB")
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(height, width, -1)
        return (pixels.permute(2, 0, 1).float() / 255 - self.mean) / self.std


def cover(image: Any, height: int, width: int) -> Any:
    """Scales a Pillow image so that it just covers the size, and crops the centre.

    Of an image so long that it would be very large when scaled, the centre alone is scaled: the same to within half a pixel.
    """
    from PIL import Image

    scale = max(height / image.height, width / image.width)
    scaled = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    if scaled[0] * scaled[1] > _MOST_SCALED:
        sides = min(image.width, width / scale), min(image.height, height / scale)
        left, top = (image.width - sides[0]) / 2, (image.height - sides[1]) / 2
        box = (left, top, min(image.width, left + sides[0]), min(image.height, top + sides[1]))
        return image.resize((width, height), Image.Resampling.BICUBIC, box=box)
    image = image.resize(scaled, Image.Resampling.BICUBIC) if scaled != image.size else image
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height)) if image.size != (width, height) else image
