"""Small files that unpack to much more than memory: read within bounds, or refused in one sentence."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from whole_files import IMAGES, MOLECULES, TEXT, copy, settings

MEMORY = 3 * 2**29  # bytes that a process may take at most, libraries included
ROOM = 12 * 2**30  # bytes of addresses, so that a failing test does not take the machine along
PATIENCE = 240  # seconds after which a command hangs
SIDE = 13_000  # pixels: fewer in all than Pillow refuses by itself
MEBI = 2**20

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peaks of memory are read from /proc")


# ---- one command, watched -----------------------------------------------------------------------------------------------


def refused_or_read(folder: Path, words: list[str], code: int | None = None, patience: int = PATIENCE) -> str:
    """Runs a command in a process of its own, which is ended where it takes too much; gives what it said."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "several.py")],
        stdin=subprocess.PIPE,
        stdout=(folder / "answer").open("wb"),
        stderr=(folder / "said").open("wb"),
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    resource.prlimit(process.pid, resource.RLIMIT_AS, (ROOM, ROOM))
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (patience, patience))  # also where this process is ended
    assert process.stdin is not None
    process.stdin.write(json.dumps([(str(folder), words)]).encode())
    process.stdin.close()
    deadline, peak = time.monotonic() + patience, 0
    try:
        while process.poll() is None and peak < MEMORY and time.monotonic() < deadline:
            time.sleep(0.02)
            peak = max(peak, peak_of(process.pid))
        ended = process.poll() is not None
    finally:
        process.kill()
        process.wait()
    assert peak < MEMORY, f"{words} took {peak / 2**30:.2f} GiB"
    assert ended, f"{words} was not done after {patience} seconds"
    crash = (folder / "said").read_text(errors="replace")
    assert process.returncode == 0, f"{words} ended the process with {process.returncode}: {crash[:2000]}"
    (result,) = json.loads((folder / "answer").read_bytes())
    said = result["said"]
    assert result["peak"] < MEMORY, f"{words} took {result['peak'] / 2**30:.2f} GiB"
    assert "Traceback" not in said and result["code"] in (0, 1), (words, said)
    if result["code"]:
        assert said.strip().split("\n")[-1].startswith("Error: "), (words, said)
    if code is not None:
        assert result["code"] == code, (words, said)
    return said


def peak_of(process: int) -> int:
    """Of memory, in bytes, so far; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def embed(model: str, data: str) -> list[str]:
    return ["embed", model, data, "--out", "out.npy", "--quiet"]


def diagnose(model: str, data: str) -> list[str]:
    return ["diagnose", model, "--data", data, "--out", "out", "--quiet"]


def pretrain(domain: str, data: str, *more: str) -> list[str]:
    own = {"text": TEXT, "images": IMAGES, "molecules": MOLECULES}[domain]
    return ["pretrain", domain, "--data", data, "--max-steps", "1", *settings(*own, *more), "--out", "run", "--quiet"]


def text_commands(data: str) -> dict[str, list[str]]:
    return {
        "embed": embed("bert", data),
        "diagnose": diagnose("bert", data),
        "pretrain": pretrain("text", data),
        "stream": pretrain("text", data, "stream=16"),
    }


def long(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.faults)


COMMANDS = ["embed", "diagnose", "pretrain", "stream"]


# ---- small files --------------------------------------------------------------------------------------------------------


def one_row(path: Path, size: int, packing: str, column: str = "text", letter: bytes = b"a") -> None:
    """A parquet file with one text of so many bytes."""
    ends = pyarrow.py_buffer(struct.pack("<ii", 0, size))
    texts = pyarrow.StringArray.from_buffers(1, ends, pyarrow.py_buffer(letter * size))
    options = {"compression": packing, "use_dictionary": False, "write_statistics": False}
    pyarrow.parquet.write_table(pyarrow.table({column: texts}), path, **options)


def the_same_rows(path: Path, size: int, times: int) -> None:
    """A parquet file that has a text of so many bytes once, and says so many times that it is that."""
    rows = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * times, pyarrow.int32()), pyarrow.array(["a" * size]))
    options = {"store_schema": False, "write_statistics": False, "dictionary_pagesize_limit": 2**31 - 1}
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path, compression="zstd", **options)


def one_text_again(path: Path, short: int, size: int, times: int) -> None:
    """A parquet file of short texts, then of one long text that it holds once and names so many times."""
    order = pyarrow.array([0] * short + [1] * times, pyarrow.int32())
    rows = pyarrow.DictionaryArray.from_arrays(order, pyarrow.array(["short", "a b " * (size // 4)]))
    options = {"store_schema": False, "write_statistics": False, "dictionary_pagesize_limit": 2**31 - 1}
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path, compression="zstd", **options)


def long_among_short(path: Path, size: int) -> None:
    """Short rows, then a long one that is held once and named again, beside a column that makes the file no small one."""
    order = pyarrow.array([n % 2 for n in range(300)] + [2] * 200, pyarrow.int32())
    rows = pyarrow.DictionaryArray.from_arrays(order, pyarrow.array(["the cat", "a dog", "a" * size]))
    table = pyarrow.table({"text": rows, "pad": [os.urandom(1500) for _ in range(500)]})
    pyarrow.parquet.write_table(table, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=2**30)


def a_long_list(path: Path, count: int) -> None:
    """A column of lists that nobody asks for, beside texts."""
    ends = pyarrow.array([*range(30), 30 + count], pyarrow.int32())
    lists = pyarrow.ListArray.from_arrays(ends, pyarrow.array(np.zeros(30 + count, np.int8)))
    table = pyarrow.table({"text": ["the cat", "a dog"] * 15, "other": lists})
    pyarrow.parquet.write_table(table, path, compression="zstd")


def packed(path: Path, start: bytes, part: bytes, times: int, end: bytes = b"") -> None:
    """A packed file with a part that comes again and again: streams of .xz and of .gz can follow one another."""
    pack: Callable[[bytes], bytes] = (
        gzip.compress if path.suffix == ".gz" else lambda data: lzma.compress(data, preset=0)
    )
    path.write_bytes(pack(start) + pack(part) * times + (pack(end) if end else b""))


def hole(path: Path, size: int = 3 * 2**30) -> None:
    """A file of zeros that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(size)


def black(path: Path, kind: str, side: int = SIDE) -> None:
    """A PNG file of a square without light, written without having its pixels in memory."""
    depth, colour, bits = {"1": (1, 0, 1), "L": (8, 0, 8), "RGBA": (8, 6, 32)}[kind]
    size = side * (1 + (side * bits + 7) // 8)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    part = packer.compress(bytes(MEBI)) + packer.flush(zlib.Z_FULL_FLUSH)  # can be repeated
    pixels = b"\x78\xda" + part * (size // MEBI) + packer.compress(bytes(size % MEBI)) + packer.flush()
    pixels += struct.pack(">I", (size % 65521) << 16 | 1)  # the checksum of zeros
    head = struct.pack(">IIBBBBB", side, side, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", pixels), (b"IEND", b"")]
    content = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Files that take seconds to make, each made once."""
    folder = tmp_path_factory.mktemp("made")

    def get(name: str, make: Callable[[Path], None]) -> Path:
        if not (folder / name).exists():
            make(folder / name)
        return folder / name

    return get


# ---- texts --------------------------------------------------------------------------------------------------------------

TEXTS: dict[str, Callable[[Path], None]] = {
    "one100.parquet": lambda path: one_row(path, 100 * MEBI, "zstd"),
    "one600.parquet": lambda path: one_row(path, 600 * MEBI, "zstd"),
    "one600-snappy.parquet": lambda path: one_row(path, 600 * MEBI, "snappy"),
    "forty-of-50.parquet": lambda path: the_same_rows(path, 50 * MEBI, 40),
    "short-first.parquet": lambda path: one_text_again(path, 1, 20 * MEBI, 63),
    "short-at-first.parquet": lambda path: one_text_again(path, 500, 20 * MEBI, 63),
    "short-beside-large.parquet": lambda path: long_among_short(path, 40 * MEBI),
    "lists.parquet": lambda path: a_long_list(path, 60 * MEBI),
    "many-of-1.parquet": lambda path: the_same_rows(path, MEBI, 2000),
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("one100.parquet", "embed"),
        ("short-first.parquet", "embed"),
        ("lists.parquet", "embed"),
        *(long("lists.parquet", command) for command in COMMANDS[1:]),
        *(long("short-beside-large.parquet", command) for command in COMMANDS),
        *(long("short-first.parquet", command) for command in COMMANDS[1:]),
        *(long("short-at-first.parquet", command) for command in COMMANDS),
        *(long("one600.parquet", command) for command in COMMANDS),
        long("one600-snappy.parquet", "embed"),
        *(long("forty-of-50.parquet", command) for command in COMMANDS[1:]),
        *(long("many-of-1.parquet", command) for command in COMMANDS),
    ],
)
def test_long_texts_in_a_small_table_do_not_fill_the_memory(made, whole, tmp_path, name, command):
    copy(whole, ["bert"], tmp_path)
    shutil.copy(made(name, TEXTS[name]), tmp_path / name)
    # two gigabytes of text may take their time, where they are read
    refused_or_read(tmp_path, text_commands(name)[command], patience=1000 if name.startswith("many") else PATIENCE)


# ---- JSON ---------------------------------------------------------------------------------------------------------------

ROW = b',{"text": "the cat sat on the mat"}'


@pytest.mark.parametrize("command", ["embed", *map(long, COMMANDS[1:])])
def test_a_json_text_without_an_end_is_refused(made, whole, tmp_path, command):
    copy(whole, ["bert"], tmp_path)
    start = b'[{"text": "'
    file = made("endless.json.xz", lambda path: packed(path, start, b"a" * (100 * MEBI), 100))
    assert file.stat().st_size < 2 * MEBI
    shutil.copy(file, tmp_path / "t.json.xz")
    refused_or_read(tmp_path, text_commands("t.json.xz")[command], code=1)


@pytest.mark.faults
@pytest.mark.parametrize("command", COMMANDS[1:])
def test_a_json_list_of_gigabytes_is_read_in_parts_or_refused(made, whole, tmp_path, command):
    """Each of these commands needs its first rows only."""
    copy(whole, ["bert"], tmp_path)
    file = made("list.json.xz", lambda path: packed(path, b'[{"text": "a b c"}', ROW * 3_000_000, 50, b"]"))
    shutil.copy(file, tmp_path / "t.json.xz")
    words = text_commands("t.json.xz")[command]
    refused_or_read(tmp_path, [*words, "--set", "sentences=100"] if command == "pretrain" else words)


@pytest.mark.parametrize(
    ("name", "start", "part", "end"),
    [
        long("blanks-before.json.xz", b"", b" ", b"["),
        long("blanks-inside.json.xz", b"[", b" ", b"]"),
        long("a-list-in-a-list.json.xz", b'[{"text": "a", "more": [0', b",0", b"]}]"),
        long("open-lists.json.xz", b"", b"[", b""),
        long("names.json.xz", b'[{"text": "a", "', b"b", b'": 1}]'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_json_that_goes_on_and_on_is_refused(whole, tmp_path, name, start, part, end):
    copy(whole, ["bert"], tmp_path)
    packed(tmp_path / name, start, part * (100 * MEBI // len(part)), 20, end)
    refused_or_read(tmp_path, embed("bert", name), code=1)


@pytest.mark.faults
@pytest.mark.parametrize("command", COMMANDS)
def test_blank_lines_without_end_are_refused(whole, tmp_path, command):
    copy(whole, ["bert"], tmp_path)
    packed(tmp_path / "t.jsonl.xz", b"\n", b"\n" * (20 * MEBI), 1)
    assert "empty lines in a row" in refused_or_read(tmp_path, text_commands("t.jsonl.xz")[command], code=1)


@pytest.mark.parametrize("command", ["embed", *map(long, COMMANDS[1:])])
def test_a_json_list_of_millions_of_objects_does_not_fill_the_memory(whole, tmp_path, command):
    copy(whole, ["bert"], tmp_path)
    packed(tmp_path / "t.json.xz", b"[", b"{}," * (7 * MEBI), 3, b'{"text": "the cat"}]')
    refused_or_read(tmp_path, text_commands("t.json.xz")[command], code=1)


# ---- vectors --------------------------------------------------------------------------------------------------------------


def test_an_array_of_many_labels_for_each_embedding_is_refused(tmp_path):
    labels = np.zeros((2, 2**27 - 200), np.uint8)
    np.savez_compressed(tmp_path / "n.npz", embedding=np.ones((2, 4), np.float32), label=labels)
    said = refused_or_read(tmp_path, ["diagnose", "n.npz", "--out", "out", "--quiet"], code=1)
    assert "have the shape (2, 134217528)" in said


def test_a_few_wide_embeddings_do_not_fill_the_memory(tmp_path):
    rows = np.ones((4, 16_384), np.float32) * np.arange(4)[:, None] * (np.arange(16_384) % 3)
    np.savez_compressed(tmp_path / "n.npz", embedding=rows)
    refused_or_read(tmp_path, ["diagnose", "n.npz", "--out", "out", "--quiet"], code=0)


# ---- CSV ----------------------------------------------------------------------------------------------------------------

CELLS = {
    "quoted.csv.xz": (b'text,label\n"', b"a" * (100 * MEBI), b'",1\n'),
    "plain.csv.xz": (b"text,label\n", b"a" * (100 * MEBI), b",1\n"),
    "of-many-lines.csv.xz": (b'text,label\n"', b"a" * 99 + b"\n", b'",1\n'),
    "plain.tsv.xz": (b"text\tlabel\n", b"a" * (100 * MEBI), b"\t1\n"),
    "header.csv.xz": (b"text,", b"a" * (100 * MEBI), b"\nthe cat,1\n"),
    "columns.csv.xz": (b"text", b",a", b"\nthe cat,1\n"),
    "quoted.csv.gz": (b'text,label\n"', b"a" * (100 * MEBI), b'",1\n'),
}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("quoted.csv.xz", "embed"),
        *(long("quoted.csv.xz", command) for command in COMMANDS[1:]),
        *(long("of-many-lines.csv.xz", command) for command in COMMANDS),
        *(long("plain.csv.xz", command) for command in ("embed", "stream")),
        *(long("plain.tsv.xz", command) for command in ("embed", "stream")),
        *(long(name, "embed") for name in ("header.csv.xz", "columns.csv.xz", "quoted.csv.gz")),
    ],
)
def test_a_cell_of_gigabytes_does_not_fill_the_memory(made, whole, tmp_path, name, command):
    copy(whole, ["bert"], tmp_path)
    start, part, end = CELLS[name]
    part *= 100 * MEBI // len(part)
    shutil.copy(made(name, lambda path: packed(path, start, part, 20, end)), tmp_path / name)
    refused_or_read(tmp_path, text_commands(name)[command], code=1)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["quoted.csv.xz", "of-many-lines.csv.xz", "plain.tsv.xz"])
def test_an_evaluation_set_with_a_cell_of_gigabytes_is_refused(whole, tmp_path, kind):
    copy(whole, ["bert"], tmp_path)
    mark = b"\t" if ".tsv" in kind else b","
    start = mark.join([b"score", b"sentence1", b"sentence2"]) + b"\n" + mark.join([b"1", b"a", b""])
    _, part, _ = CELLS[kind]
    quote = b"" if ".tsv" in kind else b'"'
    name = f"stsb{kind[kind.index('.') :]}"
    packed(tmp_path / name, start + quote, part * (100 * MEBI // len(part)), 20, quote + b"\n")
    words = ["evaluate", "bert", "--data", name, "--on", "stsb", "--out", "out", "--quiet"]
    refused_or_read(tmp_path, words, code=1)


# ---- images -------------------------------------------------------------------------------------------------------------


def image_folder(folder: Path, kind: str, count: int) -> None:
    """Large images among small ones, of each class and of each split, so that every command comes to them."""
    for split in ("train", "test"):
        for name in ("even", "odd"):
            place = folder / split / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(6):
                black(place / f"{number:02}.png", "L", side=8)
    (one, *others) = [folder / split / name for split in ("train", "test") for name in ("even", "odd")][:count]
    black(one / "00-large.png", kind)
    for number in range(1, count):
        place = others[number % len(others)] if others else one
        shutil.copy(one / "00-large.png", place / f"00-large-{number}.png")


def image_table(path: Path, kind: str, count: int) -> None:
    large, small = path.with_suffix(".large"), path.with_suffix(".small")
    black(large, kind)
    black(small, "L", side=8)
    contents = [large.read_bytes()] * count + [small.read_bytes()] * 24
    rows = [{"image": {"bytes": content, "path": None}, "label": n % 2} for n, content in enumerate(contents)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def image_commands(data: str) -> dict[str, list[str]]:
    return {
        "embed": embed("vit", data),
        "diagnose": diagnose("vit", data),
        "evaluate": ["evaluate", "vit", "--data", data, "--on", "knn", "--out", "out", "--quiet"],
        "pretrain": pretrain("images", data),
        "stream": pretrain("images", data, "stream=16"),
    }


@pytest.mark.parametrize(
    ("kind", "count", "form", "command"),
    [
        ("1", 8, "folder", "embed"),
        *(long("L", 8, form, command) for form in ("folder", "table") for command in ("embed", "diagnose", "pretrain")),
        *(long("RGBA", 1, "folder", command) for command in ("embed", "diagnose", "evaluate", "pretrain", "stream")),
        *(long("RGBA", 1, "table", command) for command in ("embed", "diagnose", "evaluate", "pretrain")),
        long("L", 8, "folder", "stream"),
    ],
)
def test_images_of_many_pixels_do_not_fill_the_memory(whole, tmp_path, kind, count, form, command):
    copy(whole, ["vit"], tmp_path)
    data = "images" if form == "folder" else "images.parquet"
    (image_folder if form == "folder" else image_table)(tmp_path / data, kind, count)
    refused_or_read(tmp_path, image_commands(data)[command])


# ---- molecules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command"),
    [
        long("s.smi", "embed"),
        *(long(name, command) for name in ("s.csv", "s.csv.gz", "s.parquet") for command in ("embed", "pretrain")),
    ],
)
def test_a_long_smiles_does_not_fill_the_memory(whole, tmp_path, name, command):
    copy(whole, ["graphormer"], tmp_path)
    if name == "s.smi":  # one that is short enough for a line of text
        (tmp_path / name).write_bytes(b"CCO ethanol\n" + b"C" * 9_000_000 + b" long\n")
    elif name == "s.parquet":
        one_row(tmp_path / name, 100 * MEBI, "zstd", "smiles", b"C")
    else:
        content = b"smiles,y\n" + b"CCO,1\n" * 10 + b"C" * (100 * MEBI) + b",2\n"
        (tmp_path / name).write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    words = {"embed": embed("graphormer", name), "pretrain": pretrain("molecules", name)}
    refused_or_read(tmp_path, words[command])


# ---- files with holes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("e.csv", ["diagnose", "e.csv", "--out", "out", "--quiet"]),
        *(long(name, embed("bert", name)) for name in ("t.txt", "t.csv", "t.tsv", "t.json", "t.jsonl", "t.parquet")),
        *(long(name, embed("graphormer", name)) for name in ("s.smi", "s.csv", "s.tsv", "s.parquet")),
        *(long(name, pretrain("text", name, "stream=16")) for name in ("t.txt", "t.csv", "t.tsv", "t.jsonl")),
        long("t.tar", pretrain("text", "t.tar", "stream=16")),
        long("idx/train-images-idx3-ubyte", embed("vit", "idx")),
        long("pictures/even/00.png", embed("vit", "pictures")),
        long(
            "senteval/STS/STS13-en-test/STS.input.FNWN.txt", ["evaluate", "bert", "--data", "senteval", "--on", "sts13"]
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_gigabytes_of_zeros_do_not_fill_the_memory(whole, tmp_path, name, words):
    """Of data: such a file takes no room on the disk."""
    copy(whole, ["bert", "graphormer", "vit", "idx", "pictures", "senteval"], tmp_path)
    hole(tmp_path / name)
    refused_or_read(tmp_path, words, code=0 if name.endswith(".png") else 1)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        long("converted/sepnorm.json", "lines.txt"),
        long("bert/config.json", "lines.txt"),
        long("bert/tokenizer.json", "lines.txt"),
        long("bert/tokenizer_config.json", "lines.txt"),
        long("bert/model.safetensors", "lines.txt"),
        long("bert/model.safetensors.index.json", "lines.txt"),
        long("sentences/modules.json", "lines.txt"),
        long("sentences/config_sentence_transformers.json", "lines.txt"),
        long("vit/preprocessor_config.json", "pictures"),
    ],
)
def test_gigabytes_of_zeros_in_a_model_do_not_fill_the_memory(whole, tmp_path, name, data):
    model = name.split("/")[0]
    copy(whole, [model, data], tmp_path)
    hole(tmp_path / name)
    # parts of weights are not looked for where they are in one file
    refused_or_read(tmp_path, embed(model, data), code=None if "index" in name else 1)
