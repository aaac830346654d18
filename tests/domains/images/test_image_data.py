from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from sepnorm import SepNormError
from sepnorm.domains.images.data import ImageSet, load_images, to_bytes
from sepnorm.errors import LeftOutWarning


def grey(value: int, size: tuple[int, int] = (6, 6)) -> Image.Image:
    return Image.new("RGB", size, (value, value, value))


def fill(folder: Path, values: range | list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for value in values:
        grey(value).save(folder / f"{value}.png")


def values_of(images: ImageSet) -> list[int]:
    return images.images[:, 0, 0, 0].tolist()


def idx(values: Tensor) -> bytes:
    head = bytes([0, 0, 8, values.dim()]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return head + values.to(torch.uint8).numpy().tobytes()


def write_idx(
    folder: Path, train: int = 12, test: int = 6, packed: bool = False, classes: int = 3
) -> dict[str, Tensor]:
    written = {}
    for part, count in (("train", train), ("t10k", test)):
        written[f"{part}-images-idx3-ubyte"] = torch.randint(256, (count, 5, 5), dtype=torch.uint8)
        written[f"{part}-labels-idx1-ubyte"] = torch.arange(count) % classes
    for name, values in written.items():
        content = idx(values)
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return written


def test_half_of_the_digits_are_for_testing():
    data = load_images("digits", 8, 1)
    assert data.train.images.shape == (900, 1, 8, 8) and data.test.images.shape == (897, 1, 8, 8)
    assert data.train.images.dtype == torch.uint8 and int(data.train.images.max()) == 255
    assert data.train.classes == data.test.classes == [str(digit) for digit in range(10)]
    assert sorted(data.test.labels.unique().tolist()) == list(range(10))


@pytest.mark.parametrize(("side", "channels"), [(16, 3), (4, 1), (8, 4)])
def test_digits_come_in_other_sizes_and_channels(side, channels):
    data = load_images("digits", side, channels)
    assert data.train.images.shape == (900, channels, side, side)
    assert torch.equal(data.train.images, data.train.images[:, :1].expand_as(data.train.images))
    small = load_images("digits", 8, 1)
    assert data.mean == pytest.approx(small.mean * channels, abs=0.01)


def test_two_channels_are_refused():
    with pytest.raises(SepNormError, match="1, 3 or 4 channels, found 2"):
        load_images("digits", 8, 2)


def test_mean_and_deviation_are_those_of_the_training_images():
    data = load_images("digits", 16, 3)
    pixels = data.train.images.double() / 255
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-5)
    assert data.std == pytest.approx(pixels.std((0, 2, 3)).tolist(), abs=1e-5)


def test_mean_of_many_images_is_over_all_columns(tmp_path):
    write_idx(tmp_path)
    images = torch.full((250_000, 8, 8), 255, dtype=torch.uint8)  # every eighth of their 16 million pixels is looked at
    images[:, :, 0] = 0
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(torch.arange(250_000) % 3))
    data = load_images(str(tmp_path), 8, 1)
    assert data.mean == pytest.approx([7 / 8], abs=1e-3)


def test_constant_images_have_a_deviation_that_can_be_divided_by(tmp_path):
    for number in range(10):
        grey(100).save(tmp_path / f"{number}.png")
    data = load_images(str(tmp_path), 4, 1)
    assert data.mean == pytest.approx([100 / 255]) and data.std == pytest.approx([1e-3])


def test_a_folder_with_train_and_test(tmp_path):
    fill(tmp_path / "train" / "cat", range(5))
    fill(tmp_path / "train" / "dog", range(100, 104))
    fill(tmp_path / "test" / "dog", [200, 201])
    data = load_images(str(tmp_path), 4, 3)
    assert sorted(values_of(data.train)) == [0, 1, 2, 3, 4, 100, 101, 102, 103]
    assert sorted(values_of(data.test)) == [200, 201]
    assert data.train.classes == data.test.classes == ["cat", "dog"]
    assert data.test.labels.tolist() == [1, 1]  # numbered as in training, though there is no cat
    assert [value >= 100 for value in values_of(data.train)] == [label == 1 for label in data.train.labels.tolist()]


def test_a_folder_with_train_needs_a_test_beside_it(tmp_path):
    fill(tmp_path / "train" / "cat", range(5))
    with pytest.raises(SepNormError, match="neither test nor val"):
        load_images(str(tmp_path), 4, 3)
    fill(tmp_path / "val" / "cat", range(3))
    assert len(load_images(str(tmp_path), 4, 3).test) == 3


def test_a_class_that_only_the_test_images_have_is_refused(tmp_path):
    fill(tmp_path / "train" / "cat", range(5))
    fill(tmp_path / "test" / "newt", range(3))
    with pytest.raises(SepNormError, match="do not have, such as 'newt'"):
        load_images(str(tmp_path), 4, 3)


def test_a_folder_without_split_gives_every_fifth_for_testing(tmp_path):
    fill(tmp_path / "a", range(13))
    fill(tmp_path / "b", range(100, 110))
    data, again = load_images(str(tmp_path), 4, 1), load_images(str(tmp_path), 4, 1)
    assert len(data.train) == 19 and len(data.test) == 4
    assert len({*values_of(data.train), *values_of(data.test)}) == 23
    assert values_of(data.test) == values_of(again.test)
    for part in (data.train, data.test):
        assert part.labels.tolist() == [int(value >= 100) for value in values_of(part)]


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    for number in (10, 9, 2):
        fill(tmp_path / str(number), range(number, number + 30, 5))
    assert load_images(str(tmp_path), 4, 1).train.classes == ["2", "9", "10"]


def test_images_without_labels_have_none(tmp_path):
    fill(tmp_path, range(12))
    data = load_images(str(tmp_path), 4, 1, most=5)
    assert data.train.labels is None and data.test.labels is None and data.train.classes == []
    assert len(data.train) == 5 and len(data.test) == 2


def test_too_few_images_are_refused(tmp_path):
    fill(tmp_path, range(5))
    with pytest.raises(SepNormError, match="4 images for training and 1 for testing"):
        load_images(str(tmp_path), 4, 1)


def test_most_takes_training_images_evenly_and_leaves_the_rest():
    whole = load_images("digits", 8, 1)
    with pytest.warns(LeftOutWarning, match="^100 of 900 training images are used, because pretrain_images=100"):
        some = load_images("digits", 8, 1, most=100)
    assert len(some.train) == 100 and len(some.test) == 897
    assert torch.equal(some.train.images[0], whole.train.images[0])
    assert torch.equal(some.train.images[-1], whole.train.images[-1])
    assert len(load_images("digits", 8, 1, most=5000).train) == 900


def write_parquet(path: Path, splits: list[str] | None, labels: list[int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    contents = []
    for number in range(len(labels)):
        buffer = io.BytesIO()
        grey(number).save(buffer, "png")
        contents.append(buffer.getvalue())
    columns: dict[str, list] = {"image": contents, "label": labels}
    pq.write_table(pa.table(columns if splits is None else columns | {"split": splits}), path)


def test_a_parquet_is_split_by_its_column(tmp_path):
    splits = ["train", "test", "train", "train", "test", "train", "test", "train"]
    write_parquet(tmp_path / "images.parquet", splits, [3, 5, 5, 3, 3, 11, 11, 5])
    data = load_images(str(tmp_path / "images.parquet"), 4, 3)
    assert values_of(data.train) == [0, 2, 3, 5, 7] and values_of(data.test) == [1, 4, 6]
    assert data.train.classes == data.test.classes == ["3", "5", "11"]
    assert data.train.labels.tolist() == [0, 1, 0, 2, 1] and data.test.labels.tolist() == [1, 0, 2]


def test_a_parquet_without_split_gives_every_fifth_for_testing(tmp_path):
    write_parquet(tmp_path / "images.parquet", None, [0, 1] * 6)
    data = load_images(str(tmp_path / "images.parquet"), 4, 1)
    assert values_of(data.test) == [4, 9]


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read(tmp_path, packed):
    written = write_idx(tmp_path, packed=packed)
    data = load_images(str(tmp_path), 5, 3)
    for part, found in (("train", data.train), ("t10k", data.test)):
        assert torch.equal(found.images, written[f"{part}-images-idx3-ubyte"][:, None].expand(-1, 3, -1, -1))
        assert found.labels.tolist() == written[f"{part}-labels-idx1-ubyte"].tolist()
    assert data.train.classes == data.test.classes == ["0", "1", "2"]
    assert load_images(str(tmp_path), 10, 1).train.images.shape == (12, 1, 10, 10)


def test_idx_files_share_the_classes_of_the_training_images(tmp_path):
    write_idx(tmp_path, test=2)  # of classes 0 and 1 only
    data = load_images(str(tmp_path), 5, 1)
    assert data.test.classes == data.train.classes == ["0", "1", "2"]
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(torch.tensor([0, 7])))
    with pytest.raises(SepNormError, match="do not have, such as '7'"):
        load_images(str(tmp_path), 5, 1)


@pytest.mark.parametrize("kept", [20, 10, 5])
def test_an_idx_file_cut_short_is_refused(tmp_path, kept):
    write_idx(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SepNormError, match="train-images-idx3-ubyte is cut short"):
        load_images(str(tmp_path), 5, 1)


def test_a_damaged_gz_file_is_refused(tmp_path):
    write_idx(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for damaged in (whole[:60], b"no gz at all", whole[:10] + b"\xff" * 40 + whole[50:]):
        path.write_bytes(damaged)
        with pytest.raises(SepNormError, match=r"train-images-idx3-ubyte.gz (cannot be read|is cut short)"):
            load_images(str(tmp_path), 5, 1)


@pytest.mark.parametrize("head", [b"", b"\0\0", b"\0\0\x0d\x03", b"\x89PNG"])
def test_an_idx_file_with_another_beginning_is_refused(tmp_path, head):
    write_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(head)
    with pytest.raises(SepNormError, match="no IDX file of bytes"):
        load_images(str(tmp_path), 5, 1)


@pytest.mark.parametrize("labels", [torch.zeros(11), torch.zeros(12, 1)])
def test_idx_files_that_do_not_belong_together_are_refused(tmp_path, labels):
    write_idx(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    with pytest.raises(SepNormError, match="do not belong together"):
        load_images(str(tmp_path), 5, 1)


def test_of_an_oblong_image_the_middle_is_kept():
    image = Image.new("RGB", (12, 4), (255, 0, 0))
    image.paste((0, 0, 255), (4, 0, 8, 4))
    found = to_bytes(image, 4, 3)
    assert found.shape == (3, 4, 4)
    assert bool((found[2] == 255).all()) and bool((found[0] == 0).all())
    assert to_bytes(image, 7, 1).shape == (1, 7, 7) and to_bytes(image.rotate(90, expand=True), 3, 4).shape == (4, 3, 3)


def test_the_column_of_labels_is_the_one_asked_for(tmp_path):
    import io

    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    rows = []
    for i in range(20):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), (10 * i, 0, 0)).save(buffer, "PNG")
        rows.append({"image": buffer.getvalue(), "label": i % 2, "variant": f"kind {i % 5}"})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert load_images(str(tmp_path / "x.parquet"), 8, 3).train.classes == ["0", "1"]
    found = load_images(str(tmp_path / "x.parquet"), 8, 3, label="variant")
    assert found.train.classes == [f"kind {i}" for i in range(5)]
    with pytest.raises(SepNormError, match=r"no column 'varient' for labels.*Did you mean 'variant'"):
        load_images(str(tmp_path / "x.parquet"), 8, 3, label="varient")
