"""Shards of a server that speaks S3's protocol, by s3fs: moto's, on this machine alone, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".s3" / "moto").is_dir(), reason="moto and s3fs are not installed: make .s3"),
]

FILL = """
import fsspec, io, tarfile
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from PIL import Image

system = fsspec.filesystem("s3")
system.mkdir("bucket")
for part, shards in (("train", 4), ("test", 1)):
    for shard in range(shards):
        encoded = []
        for number in range(16):
            with io.BytesIO() as file:
                noise = np.random.default_rng(100 * shard + number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(noise).save(file, "PNG")
                encoded.append(file.getvalue())
        with system.open(f"bucket/tar/{part}/{shard}.tar", "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            for number, picture in enumerate(encoded):
                for suffix, content in (("png", picture), ("cls", b"%d" % (number % 2))):
                    entry = tarfile.TarInfo(f"{number:03}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
        table = pa.table({"image": [{"bytes": each, "path": None} for each in encoded], "label": [n % 2 for n in range(16)]})
        with system.open(f"bucket/parquet/{part}/{shard}.parquet", "wb") as file:
            pq.write_table(table, file)
system.chmod("bucket/tar/train/0.tar", "public-read")
words = "the cat dog sat on mat and number a b c d e".split()
for shard in range(3):
    texts = [" ".join(words[(n * 7 + i * (shard + 2)) % 13] for i in range(3 + n % 5)) + f" {shard} {n}" for n in range(50)]
    with system.open(f"bucket/text/{shard}.parquet", "wb") as file:
        pq.write_table(pa.table({"text": texts}), file)
for shard in range(3):
    smiles = [f"{a}1{'C' * (n + 2)}{b}1{'O' * shard}" for n in range(12) for a in "CN" for b in "CN"]
    with system.open(f"bucket/molecules/{shard}.parquet", "wb") as file:
        pq.write_table(pa.table({"smiles": smiles, "y": [float(len(each)) for each in smiles]}), file)
"""

GOES_ON = """
import shutil, sys, torch
from pathlib import Path
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.recipe import ImageRecipe

small = dict(width=16, depth=1, heads=2, decoder_width=8, decoder_depth=1, decoder_heads=2, batch_size=8, max_steps=8)
config = PRESETS["demo"].changed(
    small | {"data": sys.argv[1], "channels": 3, "stream": 32, "checkpoints": 1, "monitor": 0, "workers": 2}
)
whole, _ = ImageRecipe(config).pretrain(config, Path("whole"))
shutil.copytree("whole/checkpoint-4", "part/checkpoint-4")
resumed, trained = ImageRecipe(config).pretrain(config, Path("part"))
assert trained.resumed_from == 4
assert all(torch.equal(value, resumed.state_dict()[key]) for key, value in whole.state_dict().items())
"""

TINY = ["width=16", "depth=1", "heads=2", "batch_size=8", "threads=1"]
IMAGES = [*TINY, "decoder_width=8", "decoder_depth=1", "decoder_heads=2", "channels=3", "stream=32"]
MOLECULES = [*TINY, "feed_forward=16", "stream=32"]
TEXT = [*TINY, "model=scratch", "vocabulary=120", "stream=32", "sentences=null"]


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The environment of a client of a server with shards in it."""
    port = free_port()
    paths = os.pathsep.join([str(ROOT), str(ROOT / ".s3")])
    address = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"PYTHONPATH": paths, "AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"}
    environment |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, **quiet) as process:
        try:
            wait_for(address)
            python(environment, Path.cwd(), "-c", FILL)
            yield environment
        finally:
            process.kill()


def wait_for(address: str) -> None:
    until = time.monotonic() + 60
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            direct.open(f"{address}/moto-api/", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.2)


def python(environment: dict[str, str], folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pretrain(domain: str, data: str, *settings: str) -> list[str]:
    words = ["-m", "sepnorm", "pretrain", domain, "--data", data, "--norm", "bn+ln", "--max-steps", "6", "--out", "run"]
    return words + [word for each in settings for word in ("--set", each)]


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_images_are_streamed_from_s3(server, tmp_path, kind):
    python(server, tmp_path, *pretrain("images", f"s3://bucket/{kind}", *IMAGES))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert 0 < metrics["loss"] < 10 and "cls_linear_top1" in metrics


def test_text_is_streamed_from_s3(server, tmp_path):
    python(server, tmp_path, *pretrain("text", "s3://bucket/text/*.parquet", *TEXT))
    assert (tmp_path / "run" / "model").is_dir()


def test_molecules_are_streamed_from_s3(server, tmp_path):
    python(server, tmp_path, *pretrain("molecules", "s3://bucket/molecules", *MOLECULES))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert 0 < metrics["loss"] < 10 and "test_mae" in metrics


def test_a_run_that_streams_from_s3_goes_on_bit_by_bit(server, tmp_path):
    python(server, tmp_path, "-c", GOES_ON, "s3://bucket/tar")


def test_a_public_file_needs_no_credentials(server, tmp_path):
    code = "from sepnorm.data.streams import open_rows; print(sorted(next(iter(open_rows('s3://bucket/tar/train/0.tar')))))"
    unnamed = {name: value for name, value in server.items() if "KEY" not in name} | {"FSSPEC_S3_ANON": "true"}
    assert python(unnamed, tmp_path, "-c", code).strip() == "['cls', 'png']"


@pytest.mark.parametrize(
    ("data", "change", "said"),
    [
        ("s3://nowhere/images", {}, "s3://nowhere/images/train"),
        ("s3://bucket/tar", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Could not connect to the endpoint URL"),
        ("s3://bucket/tar", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "credentials"),
    ],
)
def test_what_cannot_be_reached_is_refused_in_a_sentence(server, tmp_path, data, change, said):
    environment = {name: value for name, value in (server | change).items() if value}
    words = pretrain("images", data, *IMAGES)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert said in done.stderr.replace("\n", " "), done.stderr
