"""Data that is read while a model is trained on it: every sample once a round, each process its part, and going on exactly."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sepnorm import SepNormError
from sepnorm.data.streams import Stream, open_rows, some_rows
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.recipe import ImageRecipe
from sepnorm.domains.images.streaming import ImageStream
from sepnorm.domains.text.config import TextConfig
from sepnorm.domains.text.recipe import TextRecipe
from sepnorm.domains.text.streaming import TextStream
from sepnorm.training.batching import Samples, StreamedSteps

TINY = PRESETS["demo"].changed(
    dict(width=16, depth=1, heads=2, decoder_width=8, decoder_depth=1, decoder_heads=2, batch_size=8, max_steps=8)
)
TEXT = TextConfig(
    data="lee", model="scratch", width=16, depth=1, heads=2, vocabulary=120, batch_size=8, learning_rate=1e-3
)


@pytest.fixture
def lines(tmp_path) -> Path:
    """Three files of ten lines each, one of them empty."""
    for shard in range(3):
        content = "\n".join(f"{shard} {line}" if line else "" for line in range(10)).encode()
        if shard:
            (tmp_path / f"{shard}.txt.gz").write_bytes(gzip.compress(content))
        else:
            (tmp_path / "0.txt").write_bytes(content)
    return tmp_path


def stream(folder: Path, seed: int = 0) -> Stream:
    return Stream(str(folder), open_rows(str(folder)), lambda row: [row["text"]] if row["text"] else None, seed)


def test_every_sample_comes_once_a_round_in_another_order_of_the_files(lines):
    source = stream(lines)
    rounds = [source.take(27) for _ in range(4)]
    assert all(sorted(each) == sorted(rounds[0]) and len(set(each)) == 27 for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1
    assert stream(lines).take(60) == [*rounds[0], *rounds[1], *rounds[2][:6]]
    assert any(stream(lines, seed).take(27) != rounds[0] for seed in range(1, 5))


@pytest.mark.parametrize("taken", [0, 3, 9, 10, 27, 40])
def test_a_stream_goes_on_where_it_was(lines, taken):
    source = stream(lines)
    source.take(taken)
    state = json.loads(json.dumps(source.state()))
    expected = source.take(50)
    other = stream(lines)
    other.restore(state)
    assert other.state() == state
    assert other.take(50) == expected


@pytest.mark.parametrize("world", [2, 3, 5, 7])
def test_processes_share_the_samples(lines, monkeypatch, world):
    """Also of shards that differ in length, where the number of a row depends on which shards come before."""
    with open(lines / "0.txt", "a") as file:
        file.write("".join(f"\n0 {line}" for line in range(10, 14)))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    found: list[str] = []
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        source = stream(lines)
        seen: list[str] = []
        while source.state()["epoch"] == 0:
            seen += source.take(1)
        found += seen[:-1]  # the last is the first of the second round
    assert sorted(found) == sorted(stream_of_one(lines, monkeypatch))


def stream_of_one(folder: Path, monkeypatch) -> list[str]:
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    return stream(folder).take(31)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "names no file of a kind that can be streamed"),
        ({"a.docx": b"x"}, "names no file of a kind that can be streamed"),
        ({"a.txt": b"one\n", "b.csv": b"text\none\n"}, "are of different kinds, .csv and .txt"),
        ({"a.parquet": b"PAR1 but no more"}, "cannot be read as a stream"),
        ({"a.txt": b"\n\n"}, r"holds nothing to train on \(2 rows were left out\)"),
        ({"a.txt": b"\n" * 30 + b"one\n"}, r"11 of the first 11 rows of .* cannot be used, such as text: ''"),
    ],
)
def test_what_cannot_be_streamed_is_refused_in_one_sentence(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SepNormError, match=message) as caught:
        stream(tmp_path).take(1)
    assert "\n" not in str(caught.value)


def test_rows_to_look_at_are_of_all_shards(lines):
    rows = some_rows(str(lines), open_rows(str(lines / "*.txt*")), 6)
    assert [row["text"][:1] for row in rows if row["text"]] == ["0", "1", "2"]
    (lines / "empty.txt").write_text("")
    with pytest.raises(SepNormError, match="holds no rows"):
        some_rows("empty", open_rows(str(lines / "empty.txt")), 6)


class Numbers:
    """A source of the numbers from 0 on."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    def state(self) -> dict:
        return {"next": self.next}

    def restore(self, state: dict) -> None:
        self.next = state["next"]


def numbers(**changes) -> StreamedSteps:
    def read(found: list[int]) -> Samples:
        return Samples(len(found), lambda chosen, own, generator: {"found": torch.tensor(found)[chosen][own]})

    return StreamedSteps(TINY.changed(changes), 24, Numbers(), read)


def test_a_buffer_is_shuffled_and_used_up_before_the_next(tmp_path):
    steps = numbers(max_steps=7)
    found = torch.stack([steps[number]["found"] for number in range(len(steps))])
    assert [found[start : start + 3].flatten().sort()[0].tolist() for start in (0, 3)] == [
        [*range(24)],
        [*range(24, 48)],
    ]
    assert found[:3].flatten().tolist() != list(range(24))
    steps.save(tmp_path)
    again = numbers(max_steps=7)
    again.resume(tmp_path)
    assert again[6]["found"].tolist() == found[6].tolist()
    with pytest.raises(SepNormError, match="cannot go back from its buffer 2 to 1"):
        again[5]
    assert again.named(5) == "samples of buffer 1 of the stream"


def test_settings_that_a_stream_cannot_have_are_refused(tmp_path, monkeypatch):
    with pytest.raises(SepNormError, match="a stream has no end: say how long to train by --set max_steps=STEPS"):
        numbers(max_steps=None)
    with pytest.raises(SepNormError, match="stream=24 is smaller than a batch of 32"):
        numbers(batch_size=32)
    with pytest.raises(SepNormError, match="--set sentences=null"):
        TEXT.changed({"stream": 64, "sentences": 100})
    with pytest.raises(SepNormError, match="--set pretrain_images=null"):
        TINY.changed({"stream": 64, "pretrain_images": 100})
    with pytest.raises(SepNormError, match="lee is small and is read whole"):
        TextStream(TEXT)
    with pytest.raises(SepNormError, match="digits are few and are read whole"):
        ImageStream(TINY)
    steps = numbers()
    steps[0]
    steps.save(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SepNormError, match="written by 1 processes that shared a stream, and now there are 2"):
        numbers().resume(tmp_path)


# ---- sentences ----------------------------------------------------------------------------------------------------------


def sentences(folder: Path, triples: bool = False) -> str:
    words = "the cat dog sat on mat and number a b c d e".split()
    texts = [" ".join(words[(n * (i + 3) + i * i) % 13] for i in range(2 + n % 7)) + f" {n}" for n in range(130)]
    folder.mkdir()
    for shard in range(3):
        part = texts[shard * 40 : shard * 40 + 40]
        rows = [f"{text},{text} so,{text[::-1]}" for text in part] if triples else part
        kind, head = ("csv", ["anchor,positive,negative"]) if triples else ("txt", [])
        (folder / f"{shard}.{kind}").write_text("\n".join([*head, *rows]))
    return str(folder)


@pytest.mark.parametrize("triples", [False, True])
def test_a_run_on_a_stream_of_text_goes_on_bit_by_bit_and_leaves_out_what_is_held_out(tmp_path, triples):
    config = TEXT.changed(
        {"data": sentences(tmp_path / "data", triples), "stream": 32, "max_steps": 18, "checkpoints": 1}
    )
    recipe = TextRecipe(config)
    assert recipe.corpus.supervised == triples and len(recipe.held_out) == 24
    whole, _ = recipe.pretrain(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole" / "checkpoint-9", tmp_path / "part" / "checkpoint-9")
    resumed, trained = recipe.pretrain(config, tmp_path / "part")
    assert trained.resumed_from == 9
    assert all(torch.equal(value, resumed.state_dict()[key]) for key, value in whole.state_dict().items())
    assert recipe.stream is not None
    seen = {parts[0] for parts in recipe.stream.open(0).take(200)}
    assert len(seen) == 96 and not seen & set(recipe.corpus.held_out)


# ---- images -------------------------------------------------------------------------------------------------------------


def encoded(number: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 255, (9, 11, 3), dtype=np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(noise).save(file, "PNG")
        return file.getvalue()


def image_shards(folder: Path, kind: str) -> str:
    """Two shards of 16 images for training and one for testing, of two classes."""
    import pyarrow
    import pyarrow.parquet

    for split, first in (("train", 0), ("train", 16), ("test", 32)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        images = {number: encoded(number) for number in range(first, first + 16)}
        if kind == "parquet":
            column = [{"bytes": content, "path": None} for content in images.values()]
            table = pyarrow.table({"image": column, "label": [number % 2 for number in images]})
            pyarrow.parquet.write_table(table, folder / split / f"{first}.parquet")
        elif kind == "tar":
            with tarfile.open(folder / split / f"{first}.tar", "w") as file:
                for number, content in images.items():
                    for name, data in ((f"{number}.png", content), (f"{number}.cls", b"%d" % (number % 2))):
                        member = tarfile.TarInfo(name)
                        member.size = len(data)
                        file.addfile(member, io.BytesIO(data))
        else:
            for number, content in images.items():
                (folder / split / str(number % 2)).mkdir(exist_ok=True)
                (folder / split / str(number % 2) / f"{number}.png").write_bytes(content)
    return str(folder)


@pytest.mark.parametrize("kind", ["parquet", "tar", "folder"])
def test_a_run_on_a_stream_of_images_goes_on_bit_by_bit(tmp_path, kind):
    config = TINY.changed(
        {"data": image_shards(tmp_path / "data", kind), "channels": 3, "stream": 24, "checkpoints": 1}
    )
    recipe = ImageRecipe(config)
    assert recipe.data.train.classes == ["0", "1"] and recipe.data.train.labels is not None
    assert len(recipe.data.train) == 32 and sorted(recipe.data.train.labels.tolist()) == [0] * 16 + [1] * 16
    whole, _ = recipe.pretrain(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "part" / "checkpoint-4")
    resumed, trained = ImageRecipe(config).pretrain(config, tmp_path / "part")
    assert trained.resumed_from == 4
    assert all(torch.equal(value, resumed.state_dict()[key]) for key, value in whole.state_dict().items())


def test_a_stream_has_the_images_that_were_stored(tmp_path):
    config = TINY.changed({"data": image_shards(tmp_path / "data", "parquet"), "channels": 3, "stream": 16})
    source = ImageStream(config)
    found = source.decode(source.open(0).take(32))
    distances = (found[:, None].int() - source.data.train.images[None].int()).abs().sum((2, 3, 4))
    assert sorted(distances.argmin(1).tolist()) == list(range(32)) and int(distances.amin(1).max()) == 0
    good = source.open(0).take(2)
    damaged = {"bytes": encoded(1)[:60], "path": None}
    assert torch.equal(*source.decode([good[0], damaged])) and torch.equal(*source.decode([damaged, good[1]]))
    with pytest.raises(SepNormError, match=r"12 of 46 images of .*train are damaged"):
        source.decode([damaged] * 10)


def test_images_without_a_part_for_testing_are_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(0))
    with pytest.raises(
        SepNormError, match="does not say which images are for testing: put what is streamed in a folder"
    ):
        ImageStream(TINY.changed({"data": str(tmp_path), "stream": 16}))
