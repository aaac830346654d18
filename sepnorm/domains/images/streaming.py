"""Streams of images during training: buffered as encoded files, decoded per batch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.pictures import to_image
from sepnorm.data.places import is_address
from sepnorm.data.records import image_columns, place_of, said
from sepnorm.data.streams import Stream, open_rows, some_rows
from sepnorm.domains.images.config import ImageConfig
from sepnorm.domains.images.data import ImageData, assemble, class_names, to_bytes, with_scale
from sepnorm.domains.images.places import KNOWN, split_folders
from sepnorm.errors import SepNormError

_SOME = 10_000  # images per split for measuring a model
_FEW, _MOST_BROKEN = 10, 0.1  # number and share of images that may be damaged


class ImageStream:
    """The image stream of a config. ``data`` holds some training and test images for measuring a model."""

    def __init__(self, config: ImageConfig) -> None:
        self._config = config
        if config.data == "digits":
            raise SepNormError("digits are few and are read whole: leave stream out, or name other data.")
        self._source, train, test = _parts(config)
        self._rows = train
        first = some_rows(self._source, train, 1)[0]
        self._column, self._label = image_columns(first, config.column, config.label, self._source)
        self._read = self._damaged = 0
        self.data = self._look(some_rows(self._source, train, _SOME), some_rows(self._source, test, _SOME))

    def open(self, seed: int, worker: int = 0, workers: int = 1) -> Stream:
        """Opens the stream at its beginning. Samples are encoded images."""
        return Stream(self._source, self._rows, self._samples, seed, worker, workers)

    def decode(self, encoded: Iterable[Any]) -> Tensor:
        """Images as bytes (images, channels, side, side). A damaged image is replaced by the one before it."""
        found = [self._decoded(each) for each in encoded]
        good = [image for image in found if image is not None]
        self._read += len(found)
        self._damaged += len(found) - len(good)
        if not good or self._damaged > max(_FEW, _MOST_BROKEN * self._read):
            raise SepNormError(
                f"{self._damaged} of {self._read} images of {self._source} are damaged: check the files."
            )
        last, whole = good[0], []
        for image in found:
            last = last if image is None else image
            whole.append(last)
        return torch.stack(whole)

    def _decoded(self, encoded: Any) -> Tensor | None:
        try:
            side = self._config.image_size
            return to_bytes(to_image(encoded, side), side, self._config.channels)
        except Exception:  # Pillow can raise anything for a damaged image
            return None

    def _samples(self, row: dict[str, Any]) -> list[Any] | None:
        encoded = self._encoded(row)
        return None if encoded is None else [encoded]

    def _encoded(self, row: dict[str, Any]) -> Any:
        return place_of(row.get(self._column), Path(self._source) / "shard")

    def _look(self, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> ImageData:
        sets, labels = [], []
        for rows in (train, test):
            found = [(self._decoded(self._encoded(row)), said(row, self._label)) for row in rows]
            sets.append([(image, label) for image, label in found if image is not None])
            labels += [label for _, label in sets[-1]]
            if len(sets[-1]) < 2:
                raise SepNormError(f"{self._source} gives {len(sets[-1])} images that can be read: more are needed.")
        classes = None if None in labels else class_names(labels)
        parts = [assemble([image for image, _ in part], [label for _, label in part], classes) for part in sets]
        return with_scale(parts[0], parts[1])


def _parts(config: ImageConfig) -> tuple[str, Any, Any]:
    """The name of the source, its training rows and its test rows."""
    path = Path(config.data)
    if is_address(config.data):
        base = config.data.rstrip("/")
        return base, open_rows(f"{base}/train"), open_rows(f"{base}/test")
    if not path.exists():
        known = KNOWN.get(config.data, {"name": config.data, "train": "train", "test": "test"})
        return config.data, *(open_rows(known["name"], known[part]) for part in ("train", "test"))
    parts = split_folders(path)
    if parts is None:
        raise SepNormError(
            f"{config.data} does not say which images are for testing: put what is streamed in a folder train, and some for "
            "testing in a folder test beside it, and name the folder that holds both."
        )
    return parts[0], open_rows(parts[0]), open_rows(parts[1])
