"""Pillow images to the pixel tensor that a vision transformer takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SETTINGS = "preprocessor_config.json"


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
        from PIL import Image

        height, width = self.size
        scale = max(height / image.height, width / image.width)
        resized = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        image = image.resize(resized, Image.Resampling.BICUBIC)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
        image = image.convert("L" if len(self.mean) == 1 else "RGB")
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(height, width, -1)
        return (pixels.permute(2, 0, 1).float() / 255 - self.mean) / self.std
