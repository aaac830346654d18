"""Shards that lie elsewhere, at an address that the user names: read as a stream, going on exactly, and nothing else is fetched."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sepnorm import SepNormError
from sepnorm.data.places import require_here
from sepnorm.data.streams import Stream, open_rows
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.streaming import ImageStream
from sepnorm.domains.text.config import TextConfig
from sepnorm.domains.text.streaming import TextStream


@pytest.fixture
def bucket() -> Iterator[str]:
    """Texts in parquet files, and images in tar files as WebDataset has them, in memory: three shards each."""
    system = fsspec.filesystem("memory")
    for shard in range(3):
        table = pa.table({"text": [f"text {number} of shard {shard}" for number in range(8)]})
        with system.open(f"/bucket/text/{shard}.parquet", "wb") as file:
            pq.write_table(table, file)
        for part in ("train", "test"):
            with (
                system.open(f"/bucket/images/{part}/{shard}.tar", "wb") as file,
                tarfile.open(fileobj=file, mode="w") as tar,
            ):
                for number in range(8):
                    picture = io.BytesIO()
                    Image.fromarray(np.full((8, 8), 30 * number + shard, dtype=np.uint8)).save(picture, "PNG")
                    for suffix, content in (("png", picture.getvalue()), ("cls", str(number % 2).encode())):
                        entry = tarfile.TarInfo(f"{shard}{number}.{suffix}")
                        entry.size = len(content)
                        tar.addfile(entry, io.BytesIO(content))
    yield "memory://bucket"
    system.rm("/bucket", recursive=True)


def text_of(row: dict) -> list[str]:
    return [row["text"]]


@pytest.mark.parametrize("place", ["text", "text/*.parquet", "text/1.parquet"])
def test_shards_at_an_address_are_read_and_going_on_is_exact(bucket, place):
    source = f"{bucket}/{place}"
    stream = Stream(source, open_rows(source), text_of, 0)
    count = 8 if place.startswith("text/1") else 24
    assert len(set(stream.take(count))) == count
    state = json.loads(json.dumps(stream.state()))
    other = Stream(source, open_rows(source), text_of, 0)
    other.restore(state)
    assert other.take(30) == stream.take(30)


def test_domains_stream_from_an_address(bucket):
    text = TextStream(TextConfig(data=f"{bucket}/text", stream=16, batch_size=8, learning_rate=1e-3))
    assert text.open(0).take(1)[0][0].startswith("text")
    images = ImageStream(PRESETS["demo"].changed({"data": f"{bucket}/images", "stream": 64}))
    assert images.data.train.classes == ["0", "1"] and len(images.data.train) == 24
    decoded = images.decode(images.open(0).take(24))
    assert decoded.shape == (24, 1, 8, 8) and len({int(image[0, 0, 0]) for image in decoded}) == 24


def test_an_image_that_names_an_address_is_still_not_fetched(bucket):
    for part in ("train", "test"):
        table = pa.table({"image": ["http://example.org/1.png", "http://example.org/2.png"]})
        with fsspec.filesystem("memory").open(f"/bucket/linked/{part}/0.parquet", "wb") as file:
            pq.write_table(table, file)
    with pytest.raises(SepNormError, match="images are not fetched"):
        ImageStream(PRESETS["demo"].changed({"data": f"{bucket}/linked", "stream": 64}))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("memory://bucket/none", "neither of .parquet and .tar"),
        ("memory://bucket", "both of .parquet and .tar"),
        ("nothing://bucket", "cannot be read as a stream: Protocol not known"),
    ],
)
def test_what_cannot_be_streamed_is_refused_in_a_sentence(bucket, address, said):
    with pytest.raises(SepNormError, match=said):
        open_rows(address)


def test_an_address_is_only_for_streams():
    with pytest.raises(SepNormError, match="add --set stream=SAMPLES"):
        require_here("s3://bucket/images")
