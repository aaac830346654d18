"""CIFAR-10, Oxford 102 Flowers, Fashion-MNIST."""

from __future__ import annotations

import gzip
import io
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError, one_line
from sepnorm.files import DAMAGE
from sepnorm.sources.archives import tar_files, tar_named
from sepnorm.sources.records import Original, Progress, Rows, Source

_SIDE = 32  # pixels of a side of CIFAR-10
_BATCHES = {f"train{n}": f"data_batch_{n}.bin" for n in range(1, 6)} | {"test": "test_batch.bin"}
_ROWS = 5000  # per row group of a parquet file
_PIXELS = 2**24  # at most per photograph; those of Flowers have half a million

#: The classes of the tables, numbered from 1 as by the authors, in the order of their labels.
FIFTY_ONE = (
    *(2, 3, 4, 5, 6, 7, 8, 9, 14, 16, 17, 18, 19, 23, 25, 27, 28, 31, 34, 39, 41, 42, 43, 44, 46, 49, 52, 54, 55, 56, 57),
    *(61, 62, 63, 67, 69, 74, 75, 76, 77, 80, 81, 83, 85, 90, 92, 93, 94, 95, 96, 102),
)  # fmt: skip


@contextmanager
def _parquet(path: Path, **columns: str) -> Iterator[Any]:
    """Opens a parquet file for rows of these columns, given with their types."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in columns.items()])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        yield lambda rows: writer.write_table(pyarrow.Table.from_pylist(rows, schema))


def _jpeg(image: Any, **settings: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **settings)
    return file.getvalue()


def write_cifar10(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Writes JPEGs of quality 75, as in the tables, from the binary archive, which needs no pickle."""
    import numpy
    from PIL import Image

    (archive,) = originals.values()
    batches = tar_named(archive, _BATCHES, progress)
    record = 1 + 3 * _SIDE * _SIDE
    rows, places = [], Counter[tuple[str, int]]()
    for key, content in sorted(batches.items()):  # train1 to train5 in order
        if not content or len(content) % record:
            raise SepNormError(f"{archive} is no archive of CIFAR-10: {_BATCHES[key]} has {len(content):,} bytes.")
        split = key.rstrip("12345")
        for image in numpy.frombuffer(content, numpy.uint8).reshape(-1, record):
            label = int(image[0])
            if label > 9:
                raise SepNormError(
                    f"{archive} is no archive of CIFAR-10: {_BATCHES[key]} has an image of class {label}."
                )
            pixels = image[1:].reshape(3, _SIDE, _SIDE).transpose(1, 2, 0)
            packed = _jpeg(Image.fromarray(numpy.ascontiguousarray(pixels)), quality=75)
            rows.append({"split": split, "label": label, "index_in_class": places[split, label], "image": packed})
            places[split, label] += 1
    rows.sort(key=lambda row: (row["split"], row["label"], row["index_in_class"]))
    with _parquet(
        folder / "cifar10_jpeg.parquet", split="string", label="int16", index_in_class="int16", image="binary"
    ) as write:
        for start in range(0, len(rows), _ROWS):
            write(rows[start : start + _ROWS])
    return {"cifar10_jpeg.parquet": Counter(str(row["split"]) for row in rows)}


def write_flowers(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Writes ``flowers51.parquet``, 51 classes at 64x64 with every fifth image for testing, and ``flowers102.parquet``.

    The latter holds the original photographs without the authors' validation split, which commands would test on.
    """
    archive = originals["102flowers.tgz"]
    labels = _numbers(originals["imagelabels.mat"], "labels")
    official = {
        number: split
        for split, name in (("train", "trnid"), ("test", "tstid"))
        for number in _numbers(originals["setid.mat"], name)
    }
    label_51 = {number: label for label, number in enumerate(FIFTY_ONE)}
    by_class: dict[int, list[int]] = {}
    for number, label in enumerate(labels, 1):
        by_class.setdefault(label, []).append(number)
    tested = {number for numbers in by_class.values() for number in numbers[4::5]}
    small: dict[int, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    whole = re.compile(r"(?:.*/)?image_(\d{5})\.jpg")
    columns = {"split": "string", "label": "int64", "image": "binary"}
    with _parquet(folder / "flowers102.parquet", **columns) as write:
        waiting: list[dict[str, Any]] = []
        for name, content in tar_files(archive, lambda name: whole.fullmatch(name) is not None, progress):
            found = whole.fullmatch(name)
            assert found is not None
            number = int(found[1])
            if not 1 <= number <= len(labels):
                raise SepNormError(f"{archive} has {name}, and imagelabels.mat has {len(labels)} labels.")
            label = labels[number - 1]
            if label in label_51:
                split = "test" if number in tested else "train"
                small[number] = {
                    "split": split,
                    "label": label_51[label],
                    "image": _square(content, f"{name} of {archive}"),
                }
            if number in official:
                waiting.append({"split": official[number], "label": label - 1, "image": content})
                counts[official[number]] += 1
            if len(waiting) >= 256:
                write(waiting)
                waiting = []
        if waiting:
            write(waiting)
    rows = [small[number] for label in FIFTY_ONE for number in by_class.get(label, ()) if number in small]
    with _parquet(folder / "flowers51.parquet", **columns) as write:
        write(rows)
    return {"flowers51.parquet": Counter(str(row["split"]) for row in rows), "flowers102.parquet": counts}


def _numbers(path: Path, name: str) -> Sequence[int]:
    """A row of integers from a ``.mat`` file."""
    import numpy
    from scipy.io import loadmat

    try:
        found = loadmat(path, variable_names=[name])[name]
    except DAMAGE as error:
        raise SepNormError(f"{path} has no numbers {name!r}: {one_line(error)}.") from error
    if not numpy.issubdtype(found.dtype, numpy.integer):
        raise SepNormError(f"{path} has no whole numbers under {name!r}, but {found.dtype}.")
    return [int(number) for number in found.reshape(-1)]


def _square(content: bytes, name: str) -> bytes:
    """The centre crop of a photograph at 64x64."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(content), formats=["JPEG"])
        if image.width * image.height > _PIXELS:
            raise SepNormError(f"{name} has {image.width}x{image.height} pixels, more than any photograph of Flowers.")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        cut = image.convert("RGB").crop((left, top, left + side, top + side))
        return _jpeg(cut.resize((64, 64), Image.Resampling.LANCZOS), quality=95, subsampling=0)
    except SepNormError:
        raise
    except DAMAGE as error:
        raise SepNormError(f"{name} is no image: {one_line(error)}.") from error


def write_fashion(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Copies the four IDX files, which ``--data FOLDER`` reads."""
    rows = {}
    for name, path in originals.items():
        try:
            with gzip.open(path) as file:
                head = file.read(8)
        except DAMAGE as error:
            raise SepNormError(f"{path} is no IDX file: {one_line(error)}.") from error
        if head[:3] != b"\0\0\x08" or len(head) < 8:
            raise SepNormError(f"{path} is no IDX file of bytes.")
        rows[name] = {"all": int.from_bytes(head[4:], "big")}
        shutil.copyfile(path, folder / name)
    return rows


_FLOWERS = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
IMAGES = (
    Source(
        "cifar10",
        "photographs of 10 classes, 32x32",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "none stated",
        "162 MB",
        "CIFAR-10, healing, studies at --scale small",
        (Original("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
        {"cifar10_jpeg.parquet": {"train": 50_000, "test": 10_000}},
        write_cifar10,
    ),
    Source(
        "flowers",
        "photographs of 102 flowers; 51 of them at 64x64",
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        "none stated",
        "345 MB",
        "healing, pooling, study pooling --scale small, table1 --scale paper",
        (
            Original(f"{_FLOWERS}102flowers.tgz", "md5:52808999861908f626f3c1f4e79d11fa"),
            Original(f"{_FLOWERS}imagelabels.mat", "md5:e0620be6f572b9609742df49c70aed4d"),
            Original(f"{_FLOWERS}setid.mat", "md5:a5357ecc9cb78c4bef273ce3793fc85c"),
        ),
        {"flowers51.parquet": {"train": 3336, "test": 816}, "flowers102.parquet": {"train": 1020, "test": 6149}},
        write_flowers,
    ),
    Source(
        "fashion-mnist",
        "articles of clothing in 10 classes, 28x28, grey",
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        "31 MB",
        "comparisons of your own",
        (
            Original(f"{_FASHION}train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Original(f"{_FASHION}train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe"),
            Original(f"{_FASHION}t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79"),
            Original(f"{_FASHION}t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        {
            "train-images-idx3-ubyte.gz": {"all": 60_000},
            "train-labels-idx1-ubyte.gz": {"all": 60_000},
            "t10k-images-idx3-ubyte.gz": {"all": 10_000},
            "t10k-labels-idx1-ubyte.gz": {"all": 10_000},
        },
        write_fashion,
    ),
)
