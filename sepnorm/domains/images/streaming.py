"""Images that are read while a model is trained on them: kept as files are, and decoded for the batch that has them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.records import image_columns, place_of, said, to_image
from sepnorm.data.streams import Stream, open_rows, some_rows
from sepnorm.domains.images.config import ImageConfig
from sepnorm.domains.images.data import ImageData, assemble, class_names, to_bytes, with_scale
from sepnorm.domains.images.places import KNOWN, split_folders
from sepnorm.errors import SepNormError

_SOME = 10_000  # images for training and for testing that a model is measured by
_FEW, _MOST_BROKEN = 10, 0.1  # so many images, or this share of them, may be damaged


class ImageStream:
    """The stream of a config, and ``data``, some of its images for training and for testing, by which a model is measured."""

    def __init__(self, config: ImageConfig) -> None:
        self._config = config
        if config.data == "digits":
            raise SepNormError("digits are few and are read whole: leave stream out, or name other data.")
        self._source, train, test = _parts(config)
        self._rows = train
        first = some_rows(self._source, train, 1)[0]
        self._column, self._label = image_columns(first, config.column, config.label, self._source)
        self._read = self._damaged = 0
        self._pool = ThreadPoolExecutor()  # Pillow decodes without holding Python's lock
        self.data = self._look(some_rows(self._source, train, _SOME), some_rows(self._source, test, _SOME))

    def open(self, seed: int) -> Stream:
        """From its beginning; a sample is an image as its file has it."""
        return Stream(self._source, self._rows, self._samples, seed)

    def decode(self, encoded: Iterable[Any]) -> Tensor:
        """(images, channels, side, side) as bytes; for a damaged image the one before it is taken."""
        found = list(self._pool.map(self._decoded, encoded))
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
            return to_bytes(to_image(encoded), self._config.image_size, self._config.channels)
        except Exception:  # whatever damage makes Pillow raise
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
    """What the source is called, and its rows for training and for testing."""
    path = Path(config.data)
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
