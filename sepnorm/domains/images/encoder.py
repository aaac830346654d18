"""Image encoders: timm and transformers models, from Pillow images to [CLS] and patches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.data.pictures import to_image
from sepnorm.data.pixels import SETTINGS, Picture
from sepnorm.data.records import IMAGES, LeftOut, Record, label_and_name, read_images, refuse_broken
from sepnorm.domains.encoders import Body, Encoded, Encoder, Exportable
from sepnorm.domains.images.data import ImageSet, is_held_whole, load_images
from sepnorm.domains.images.places import KNOWN
from sepnorm.errors import SepNormError
from sepnorm.files import regular_files
from sepnorm.surgery import model_call
from sepnorm.surgery.families import encoder_of, is_timm, is_transformers
from sepnorm.surgery.opening.settings import read_named, shown, vet_size

_LARGEST_FIGURE, _LEAST_STD = 1e6, 1e-6  # of the mean and deviation of pixels
_MOST_VALUES = 2**26  # of pixels in a batch


def wrap(target: str, model: Any, source: Path) -> ImageEncoder | None:
    """Wraps a vision transformer with the size, mean and deviation of its pixels; None if the model takes no images."""
    if is_timm(model):
        config = model.pretrained_cfg
        size = getattr(model.patch_embed, "img_size", None) or config["input_size"][1:]
        for side in size:
            vet_size("image_size", side, source, largest=0)
        return ImageEncoder(target, model, Picture(tuple(size), config["mean"], config["std"]))
    if is_transformers(model) and model.main_input_name == "pixel_values":
        return ImageEncoder(target, model, _picture(source, model))
    return None


def _picture(folder: Path, model: Any) -> Picture:
    """Size, mean and deviation from the model's image processor, else the usual ones."""
    settings = read_named(folder / SETTINGS) or {}
    size = model.config.image_size
    size = (size, size) if isinstance(size, int) else tuple(size)
    channels = getattr(model.config, "num_channels", 3)
    usual = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]) if channels == 3 else ([0.5] * channels, [0.5] * channels)
    mean, std = (
        _figures(settings.get(key) or default, key, channels, folder / SETTINGS)
        for key, default in zip(("image_mean", "image_std"), usual, strict=True)
    )
    return Picture(size, mean, std, name="pixel_values")


def _figures(values: Any, key: str, channels: int, where: Path) -> list[float]:
    """A number for each channel; raises for others, and for deviations of about zero."""
    least = _LEAST_STD if key == "image_std" else -_LARGEST_FIGURE
    fitting = isinstance(values, list) and len(values) == channels
    if not fitting or not all(isinstance(v, int | float) and least <= v <= _LARGEST_FIGURE for v in values):
        raise SepNormError(
            f"{where} has {key}={shown(values)}, and one {'number above 0' if least > 0 else 'finite number'} is needed for "
            f"each channel, of which the model has {channels}."
        )
    return list(values)


def in_order(encoder: Any, count: int) -> Tensor:
    """Noise (count, patches) that keeps a masked autoencoder's tokens in order."""
    return torch.arange(encoder.embeddings.patch_embeddings.num_patches).float().expand(count, -1)


def _masked(model: Any) -> bool:
    """Whether a model is a masked autoencoder, which shuffles and drops patches by default."""
    return getattr(getattr(model, "config", None), "mask_ratio", None) is not None


class ImageEncoder(Encoder):
    """Encodes whole images; masked autoencoders get all patches in order. The mean of tokens is over patches."""

    kind = "images"

    def read(
        self, data: str, column: str | None = None, split: str = "train", left_out: LeftOut | None = None
    ) -> Iterator[Record]:
        return read_images(data, column, split, left_out=left_out)

    def read_in_order(self, data: str, column: str | None, split: str, left_out: LeftOut) -> Iterator[Record]:
        """Reads all images in order; the data may also be a name such as ``digits`` or ``cifar10``."""
        path = Path(data)
        if is_held_whole(data):
            found = load_images(data, self.prepare.size[0], len(self.prepare.mean))
            return _loaded(found.test if split == "test" else found.train, split)
        if path.is_dir():
            return _folder(path, left_out)
        known = KNOWN.get(data, {}) if not path.exists() else {}
        return read_images(known.get("name", data), column, split, known.get("label"), left_out=left_out)

    def batches(self, records: Iterator[Record], size: int = 32) -> Iterator[tuple[list[Record], Any]]:
        """Makes batches of records: smaller ones where images are large.

        Args:
            records: the records.
            size: most samples in a batch.

        Yields:
            The records of a batch, and the batch.
        """
        values = len(self.prepare.mean) * prod(self.prepare.size)
        return super().batches(records, max(1, min(size, _MOST_VALUES // values)))

    def pixels(self, images: Tensor) -> Any:
        """The model's batch from images as bytes (count, channels, height, width)."""
        pixels = (images.float() / 255 - self.prepare.mean) / self.prepare.std
        return pixels if is_timm(self.model) else {"pixel_values": pixels}

    @cached_property
    def has_cls(self) -> bool:  # type: ignore[override]
        """Whether there are more tokens than patches, found by running the model on a grey image."""
        grey = torch.full((1, len(self.prepare.mean), *self.prepare.size), 127, dtype=torch.uint8)
        with self.evaluating(), self.working(), torch.no_grad():
            return self._states(self.pixels(grey))[1] > 0

    def hidden(self, batch: Any) -> Encoded:
        hidden, first = self._states(batch)
        patches = hidden[:, first:]
        return Encoded(hidden[:, 0] if first else None, patches, torch.ones(patches.shape[:2], dtype=torch.bool))

    def _states(self, batch: Any) -> tuple[Tensor, int]:
        """Last hidden states (batch, tokens, dim), and the number of leading tokens that are no patches."""
        model = self.model
        if is_timm(model):
            hidden = model.forward_features(batch.to(next(model.parameters()).device))
            leading = int(getattr(model, "num_prefix_tokens", 1))
            return hidden, 0 if getattr(model, "cls_token", model) is None else leading
        if _masked(model) and "noise" not in batch:
            batch = batch | {"noise": in_order(encoder_of(model), len(batch["pixel_values"]))}
        hidden = model_call.call(encoder_of(model), batch)["last_hidden_state"]
        leading = 1 + int(getattr(model.config, "num_register_tokens", 0) or 0)
        patch = getattr(model.config, "patch_size", None)
        if hidden.dim() == 3 and patch is not None and not _masked(model):  # masked autoencoders may drop patches
            height, width = (patch, patch) if isinstance(patch, int) else patch
            pixels = batch["pixel_values"].shape[-2:]
            if hidden.shape[1] <= (pixels[0] // height) * (pixels[1] // width):
                leading = 0
        return hidden, leading

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with super().evaluating(), unmasked(self.model):
            yield

    def views(self, content: Any) -> tuple[Any, Any]:
        """Two crops of a Pillow image, three quarters of each side, from opposite corners."""
        width, height = content.size
        right, low = max(width * 3 // 4, 1), max(height * 3 // 4, 1)
        return content.crop((0, 0, right, low)), content.crop((width - right, height - low, width, height))

    def exportable(self) -> Exportable:
        generator = torch.Generator().manual_seed(0)
        shape = (len(self.prepare.mean), *self.prepare.size)
        example, other = ({"pixel_values": torch.randn(count, *shape, generator=generator)} for count in (2, 3))
        return Exportable(ImageBody(self.model), example, other, {0: "batch"})


@contextmanager
def unmasked(model: Any) -> Iterator[None]:
    """Switches the mask of a masked autoencoder off within the context."""
    if not _masked(model):
        yield
        return
    ratio, model.config.mask_ratio = model.config.mask_ratio, 0.0
    try:
        yield
    finally:
        model.config.mask_ratio = ratio


class ImageBody(Body):
    """Takes ``pixel_values`` (batch, channels, height, width)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.masked = _masked(self.inner)
        if self.masked:
            self.inner.config.mask_ratio = 0.0

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        if is_timm(self.inner):
            hidden = self.inner.forward_features(pixel_values)
        else:
            order = {"noise": in_order(self.inner, len(pixel_values)).to(pixel_values.device)} if self.masked else {}
            hidden = self.inner(pixel_values, **order).last_hidden_state
        return hidden[:, 0], hidden


def _folder(path: Path, left_out: LeftOut) -> Iterator[Record]:
    """Yields the images below a folder, sorted by path; the folder of each is its label."""
    files, others = regular_files(path, IMAGES)
    for file in others:
        left_out.add(label_and_name(file, path)[1])
    for file in files:
        label, name = label_and_name(file, path)
        try:
            image = to_image(file)
        except Exception:  # Pillow raises many kinds of errors at damaged files
            left_out.add(name)
            continue
        yield Record(image, label, name)
    if left_out.count == len(files) + len(others):
        reason = f"{left_out.first} cannot be read" if left_out.first else f"it has no {', '.join(IMAGES)} files"
        raise SepNormError(f"{path} holds no image: {reason}.")
    refuse_broken(str(path), left_out.count, len(files) + len(others), [str(left_out.first)])


def _loaded(images: ImageSet, split: str) -> Iterator[Record]:
    from PIL import Image

    for number, pixels in enumerate(images.images):
        image = Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy())
        label = None if images.labels is None else images.classes[int(images.labels[number])]
        yield Record(image, label, f"{split} {number + 1}")
