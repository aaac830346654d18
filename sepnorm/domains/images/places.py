"""Where images are found: names of Hugging Face datasets, folders for training and testing, IDX files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError
from sepnorm.files import require_file

#: Short names of Hugging Face datasets: repository, splits for training and test, column of labels if unusual.
#: ``size`` is the size of all images, if they share one.
KNOWN: dict[str, dict[str, Any]] = {
    "stl10": {"name": "tanganke/stl10", "train": "train", "test": "test", "size": (96, 96)},
    "aircraft": {"name": "HuggingFaceM4/FGVC-Aircraft", "train": "train", "test": "test", "label": "variant"},
    "svhn": {"name": "ufldl-stanford/svhn:cropped_digits", "train": "train", "test": "test", "size": (32, 32)},
    "flowers": {"name": "nkirschi/oxford-flowers", "train": "train", "test": "test"},
    "cifar10": {"name": "uoft-cs/cifar10", "train": "train", "test": "test", "size": (32, 32)},
    "cifar100": {
        "name": "uoft-cs/cifar100",
        "train": "train",
        "test": "test",
        "label": "fine_label",
        "size": (32, 32),
    },
}
HELD_OUT = 5  # one sample in this many is for testing if the data has no split


def is_for_training(split: str | None) -> bool:
    """Whether rows of this split are for training."""
    return split in ("train", "training", "unlabeled")


def split_folders(path: Path) -> tuple[str, str] | None:
    """The folders for training and testing in a folder; None without a folder ``train``."""
    if not (path / "train").is_dir():
        return None
    test = next((path / name for name in ("test", "val", "valid") if (path / name).is_dir()), None)
    if test is None:
        raise SepNormError(f"{path} has a folder train, but neither test nor val beside it.")
    return str(path / "train"), str(test)


def idx_files(folder: Path) -> list[tuple[Path, Path]] | None:
    """Image and label files for training and test, named as for MNIST; None if one is missing."""
    found = []
    for part in ("train", "t10k"):
        pair = []
        for kind in ("images-idx3", "labels-idx1"):
            files = [f for f in folder.iterdir() if f.name.startswith(f"{part}-{kind}-ubyte")]
            if not files:
                return None
            pair.append(files[0])
        found.append((pair[0], pair[1]))
    return found


def open_idx(path: Path) -> Any:
    """Opens an IDX file, compressed or not, for reading bytes."""
    require_file(path)
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


def one_class(count: int | None, name: str) -> str:
    """The error message for images that all have one class."""
    return (
        f"all {count} training images have one class, {name!r}, and a probe needs two: add another, or leave the labels out to "
        "train without a probe."
    )
