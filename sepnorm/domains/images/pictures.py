"""Reconstructions of test images by a masked autoencoder, for the page of a comparison."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.experiment.comparison import Arm
from sepnorm.files import intact, read_arrays
from sepnorm.report.page import Section

#: File of a run with the arrays of ``reconstruct``, without its suffix.
FILE = "reconstructions"
_LARGEST = 96  # pixels of one image on the page
_GREY = 0.5  # value of masked pixels


@torch.no_grad()
def reconstruct(model: MaskedAutoencoder, images: Tensor, mean: Tensor, std: Tensor) -> dict[str, Tensor]:
    """Reconstructs masked images, given as bytes (count, channels, side, side).

    ``original`` and ``reconstructed`` are images from 0 to 1; ``mask`` (count, patches) is 1 for masked patches, the
    same for every model. With normalised pixels a model predicts patches up to mean and deviation; the true ones are
    put back.
    """
    model.eval()
    original = images.float() / 255
    pixels = (original - mean) / std
    noise = torch.rand(len(images), model.settings.patches, generator=torch.Generator().manual_seed(0))
    device = next(model.parameters()).device
    _, patches, mask = (part.float().cpu() for part in model.reconstruct(pixels.to(device), noise.to(device)))
    if model.settings.normalised_pixels:
        true = model.mae.patchify(pixels)
        patches = patches * (true.var(-1, keepdim=True) + 1e-6).sqrt() + true.mean(-1, keepdim=True)
    found = (model.mae.unpatchify(patches) * std + mean).clamp(0, 1)
    return {"original": original, "mask": mask, "reconstructed": found}


def reconstructions(arms: Sequence[Arm], seed: int) -> Section | None:
    """The section of a page: images, masked images, and one line for each arm; None if no arm has reconstructions."""
    lines: dict[str, Tensor] = {}
    normalised = False
    for arm in arms:
        path = arm.folders[seed] / f"{FILE}.npz"
        if not path.is_file():
            continue
        with intact(path):
            original, mask, found = (read_arrays(path)[key] for key in ("original", "mask", "reconstructed"))
            hidden = over_pixels(mask, original.shape[-1])
        if not lines:
            lines |= {"original": original, "masked": torch.where(hidden, _GREY, original)}
        lines[arm.name] = torch.where(hidden, found, original)
        normalised |= bool(getattr(arm.config, "normalised_pixels", False))
    if not lines:
        return None
    text = (
        f"Test images of seed {seed}. Patches that a model saw are shown as they were, the others as it predicted them."
    )
    if normalised:
        text += " A model predicts a patch up to its mean and deviation, so these two are those of the original patch."
    boxes = "".join(_line(name, images) for name, images in lines.items())
    return Section("Reconstructions", f'<p>{text}</p><div class="pictures">{boxes}</div>')


def over_pixels(mask: Tensor, side: int) -> Tensor:
    """From patches (count, patches) to pixels (count, 1, side, side), true where masked."""
    count = round(mask.shape[1] ** 0.5)
    grid = mask.reshape(-1, 1, count, count).bool()
    return grid.repeat_interleave(side // count, 2).repeat_interleave(side // count, 3)


def strip(images: Tensor) -> Any:
    """Images (count, channels, side, side) from 0 to 1 side by side, as one Pillow image."""
    from PIL import Image

    count, channels, side, _ = images.shape
    small = min(side, _LARGEST)
    gap = max(1, small // 16)
    picture = Image.new("RGBA", (count * (small + gap) - gap, small))
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    for number, image in enumerate((images * 255).round().to(torch.uint8)):
        values = image.permute(1, 2, 0).contiguous().numpy()
        part = Image.frombytes(mode, (side, side), values.tobytes())
        picture.paste(part.resize((small, small)), (number * (small + gap), 0))
    return picture


def _line(name: str, images: Tensor) -> str:
    kept = io.BytesIO()
    strip(images).save(kept, "PNG", optimize=True)
    data = base64.b64encode(kept.getvalue()).decode()
    said = html.escape(name, quote=True)
    return f'<span>{said}</span><img alt="{len(images)} test images: {said}" src="data:image/png;base64,{data}">'
