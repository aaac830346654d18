"""Images in memory at one size, from files, tables, IDX files, Hugging Face datasets, or scikit-learn's digits."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.pixels import cover
from sepnorm.data.records import Record, read_images
from sepnorm.domains.images.places import HELD_OUT, KNOWN, idx_files, is_for_training, open_idx, split_folders
from sepnorm.errors import SepNormError, tell_limit

_UNKNOWN = "the test images have classes that the training images do not have, such as {!r}."
_MOST_PACKED = 1032  # largest compression ratio of gzip


@dataclass(eq=False)
class ImageSet:
    """Images (count, channels, side, side) as bytes, and optionally labels (count,) with the names of the classes."""

    images: Tensor
    labels: Tensor | None
    classes: list[str]

    def __len__(self) -> int:
        return int(self.images.shape[0])

    def take(self, chosen: Tensor) -> ImageSet:
        return ImageSet(self.images[chosen], None if self.labels is None else self.labels[chosen], self.classes)


@dataclass(eq=False)
class ImageData:
    """Training and test images, and mean and deviation of each channel of the training images."""

    train: ImageSet
    test: ImageSet
    mean: list[float]
    std: list[float]


def load_images(
    source: str,
    image_size: int,
    channels: int,
    *,
    column: str | None = None,
    label: str | None = None,
    most: int | None = None,
) -> ImageData:
    """Reads a source whole, at the given size.

    A source is ``digits``; a folder, with or without ``train`` and ``test`` inside; a table, split by its column
    ``split`` if it has one; a folder of IDX files; a name in ``KNOWN``; or another Hugging Face dataset. Without a
    split, every fifth image is for testing. ``most``: use this many training images, evenly spaced.
    """
    if channels not in (1, 3, 4):
        raise SepNormError(f"images have 1, 3 or 4 channels, found {channels}.")
    train, test = _read(source, image_size, channels, column, label)
    if most is not None and most < len(train):
        tell_limit(most, f"{len(train):,} training images", "pretrain_images")
        train = train.take(torch.linspace(0, len(train) - 1, most).long())
    if len(train) < 2 or len(test) < 2:
        raise SepNormError(
            f"{source} gives {len(train)} images for training and {len(test)} for testing: more are needed."
        )
    return with_scale(train, test)


def with_scale(train: ImageSet, test: ImageSet) -> ImageData:
    """Both sets, with mean and deviation of each channel of the training images."""
    flat = train.images.transpose(0, 1).flatten(1)
    stride = max(1, flat.shape[1] // 2_000_000)
    while math.gcd(stride, train.images.shape[-1]) > 1:  # else only some columns of pixels would be used
        stride += 1
    some = flat[:, ::stride].float() / 255
    return ImageData(train, test, some.mean(1).tolist(), some.std(1).clamp(min=1e-3).tolist())


def _read(source: str, side: int, channels: int, column: str | None, label: str | None) -> tuple[ImageSet, ImageSet]:
    path = Path(source)
    if source == "digits":
        return _digits(side, channels)
    if path.is_dir() and (idx := idx_files(path)):
        train = _from_idx(*idx[0], side, channels)
        return train, _from_idx(*idx[1], side, channels, train.classes)
    if (parts := split_folders(path)) is not None:
        train = _collect(read_images(parts[0]), side, channels)
        return train, _collect(read_images(parts[1]), side, channels, train.classes)
    known = KNOWN.get(source)
    if not path.exists():  # an existing file or folder takes precedence over a name
        known = known or {"name": source, "train": "train", "test": "test"}
        label = label or known.get("label")
        train = _collect(read_images(known["name"], column, known["train"], label), side, channels)
        return train, _collect(read_images(known["name"], column, known["test"], label), side, channels, train.classes)
    return _split(read_images(source, column, label=label), side, channels)


def is_held_whole(source: str) -> bool:
    """Whether a source is read whole rather than as records: scikit-learn's digits, or a folder of IDX files."""
    return source == "digits" or (Path(source).is_dir() and idx_files(Path(source)) is not None)


def _digits(side: int, channels: int) -> tuple[ImageSet, ImageSet]:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels. A fixed half of them is for testing.

    A smaller test set would add more to the spread over seeds than fewer training images do (``study seeds``).
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images * 255 / 16).round().to(torch.uint8)[:, None]
    if side != 8:
        images = (
            torch.nn.functional.interpolate(images.float(), size=(side, side), mode="bilinear").round().to(torch.uint8)
        )
    whole = ImageSet(
        images.expand(-1, channels, -1, -1).contiguous(), torch.from_numpy(bunch.target).long(), [*map(str, range(10))]
    )
    numbers = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    return whole.take(numbers[:900]), whole.take(numbers[900:])


def _collect(records: Iterator[Record], side: int, channels: int, classes: list[str] | None = None) -> ImageSet:
    images, labels = [], []
    for record in records:
        images.append(to_bytes(record.content, side, channels))
        labels.append(record.label)
    return assemble(images, labels, classes)


def _split(records: Iterator[Record], side: int, channels: int) -> tuple[ImageSet, ImageSet]:
    """Splits records by the split that they name, else one in five for testing."""
    images, labels, splits = [], [], []
    for record in records:
        images.append(to_bytes(record.content, side, channels))
        labels.append(record.label)
        splits.append(record.split)
    whole = assemble(images, labels, None)
    if any(split is not None for split in splits):
        test = torch.tensor([not is_for_training(split) for split in splits])
    else:
        test = torch.arange(len(whole)) % HELD_OUT == HELD_OUT - 1
    return whole.take((~test).nonzero()[:, 0]), whole.take(test.nonzero()[:, 0])


def assemble(images: list[Tensor], labels: list[str | None], classes: list[str] | None) -> ImageSet:
    """A set of images, with labels if all images have one. Without ``classes``, the labels' own names are used."""
    if not images:
        raise SepNormError("there are no images.")
    if any(label is None for label in labels):
        return ImageSet(torch.stack(images), None, [])
    names = classes or class_names(labels)
    number = {name: i for i, name in enumerate(names)}
    unknown = sorted({str(label) for label in labels} - number.keys())
    if unknown:
        raise SepNormError(_UNKNOWN.format(unknown[0]))
    return ImageSet(torch.stack(images), torch.tensor([number[str(label)] for label in labels]), names)


def class_names(labels: Iterable[str | None]) -> list[str]:
    """Distinct labels, sorted; numbers are sorted as numbers."""
    return sorted({str(label) for label in labels}, key=lambda name: (not name.isdigit(), name.zfill(9)))


def to_bytes(image: Any, side: int, channels: int) -> Tensor:
    """A Pillow image as bytes (channels, side, side): the shorter side is scaled to ``side``, the centre cropped."""
    image = cover(image, side, side)
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    image = image if image.mode == mode else image.convert(mode)
    return (
        torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(side, side, channels).permute(2, 0, 1)
    )


def _from_idx(images: Path, labels: Path, side: int, channels: int, classes: list[str] | None = None) -> ImageSet:
    pixels, numbers = _idx(images), _idx(labels).long()
    if pixels.dim() != 3 or numbers.dim() != 1 or len(pixels) != len(numbers):
        raise SepNormError(
            f"{images} and {labels} do not belong together: {tuple(pixels.shape)} and {tuple(numbers.shape)}."
        )
    scaled = pixels[:, None]
    if scaled.shape[-2:] != (side, side):
        scaled = torch.cat(
            [
                torch.nn.functional.interpolate(part.float(), size=(side, side), mode="bilinear", antialias=True)
                .round()
                .clamp(0, 255)
                .to(torch.uint8)
                for part in scaled.split(4096)
            ]
        )
    classes = classes or [*map(str, range(int(numbers.max()) + 1))]
    if int(numbers.max()) >= len(classes):
        raise SepNormError(_UNKNOWN.format(str(int(numbers.max()))))
    return ImageSet(scaled.expand(-1, channels, -1, -1).contiguous(), numbers, classes)


def _idx(path: Path) -> Tensor:
    """Reads an IDX file: two zero bytes, type, number of dimensions, dimensions, values."""
    try:
        with open_idx(path) as file:
            head = file.read(4)
            if len(head) < 4 or head[:3] != b"\0\0\x08":
                raise SepNormError(f"{path} is no IDX file of bytes.")
            shape = [int.from_bytes(file.read(4), "big") for _ in range(head[3])]
            count = math.prod(shape)
            if count > path.stat().st_size * _MOST_PACKED:
                raise SepNormError(f"{path} is cut short: it promises {count} values in {path.stat().st_size} bytes.")
            values = file.read(count)
    except (OSError, EOFError, zlib.error) as error:
        raise SepNormError(f"{path} cannot be read: {error}.") from error
    if len(values) != count or 0 in shape:
        raise SepNormError(f"{path} is cut short: {len(values)} of {count} values are there.")
    return torch.frombuffer(bytearray(values), dtype=torch.uint8).reshape(shape)
