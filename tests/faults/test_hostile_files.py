"""Files that are made to do harm: none is run, none fills the memory, each is refused in one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from whole_files import RUN_IMAGES, TEXT, copy, settings

from sepnorm.files import settle

MEMORY = 2**30  # bytes that a process may take at most, libraries included
EVIL = "import os\nos.mkdir('MARK')\nclass Evil: ...\n"


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def bomb(mark: Path) -> bytes:
    return pickle.dumps(Bomb(mark))


def torch_bomb(mark: Path) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save({"state": Bomb(mark)}, file)
    return file.getvalue()


def embed(model: str, data: str = "lines.txt") -> list[str]:
    return ["embed", model, data, "--out", "out/e.npy", "--quiet"]


# ---- each prepares a folder and gives commands that read from it --------------------------------------------------------


def pickled_weights(mark: Path) -> list[list[str]]:
    Path("bert/model.safetensors").unlink()
    Path("bert/pytorch_model.bin").write_bytes(torch_bomb(mark))
    Path("sentences/model.safetensors").unlink()
    Path("sentences/pytorch_model.bin").write_bytes(torch_bomb(mark))
    return [embed("bert"), ["convert", "bert", "--data", "lines.txt", "--out", "new"], embed("sentences")]


def pickles_by_any_name(mark: Path) -> list[list[str]]:
    for name in ("b.pt", "b.bin", "b.pkl", "b.npy", "b.npz", "b.parquet", "b.csv", "b.txt", "b.jsonl", "b.txt.gz"):
        Path(name).write_bytes(torch_bomb(mark) if name in ("b.pt", "b.bin", "b.npz") else bomb(mark))
    words = [["diagnose", name, "--out", "out"] for name in ("b.npy", "b.npz", "b.parquet", "b.csv", "b.pt", "b.pkl")]
    words += [embed("bert", name) for name in ("b.pt", "b.bin", "b.pkl", "b.parquet", "b.csv", "b.jsonl", "b.txt.gz")]
    return [*words, embed("b.pt"), ["pretrain", "text", "--data", "b.pkl", "--out", "r", *settings(*TEXT)]]


def objects_in_arrays(mark: Path) -> list[list[str]]:
    rows = np.array([[Bomb(mark), 1], [2, 3]], dtype=object)
    np.save("o.npy", rows, allow_pickle=True)
    np.savez("o.npz", cls=rows, allow_pickle=True)
    return [["diagnose", "o.npy"], ["diagnose", "o.npz"], ["diagnose", "o.npz", "--column", "cls"]]


def weights_of_a_petabyte(mark: Path) -> list[list[str]]:
    whole = Path("bert/model.safetensors").read_bytes()
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**48], "data_offsets": [0, 2**50]}}).encode()
    Path("bert/model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(100))
    Path("sentences/model.safetensors").write_bytes(struct.pack("<Q", 2**50) + whole[8:])
    Path("converted/sepnorm.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return [embed("bert"), embed("sentences"), embed("converted")]


def arrays_of_a_petabyte(mark: Path) -> list[list[str]]:
    head = {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**10)}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, head)
    Path("p.npy").write_bytes(file.getvalue() + bytes(1000))
    packed_zip(Path("p.npz"), "cls.npy", file.getvalue() + bytes(1000), 1)
    return [["diagnose", "p.npy"], ["diagnose", "p.npz"]]


def zip_bomb(mark: Path) -> list[list[str]]:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (980_000, 1024)})
    packed_zip(Path("z.npz"), "cls.npy", file.getvalue(), 3800)
    assert Path("z.npz").stat().st_size < 2**23
    return [["diagnose", "z.npz"]]


def packed_zip(path: Path, name: str, head: bytes, zeros: int) -> None:
    """A zip file with one member: ``head`` and so many mebibytes of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    part = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)  # can be repeated
    data = packed + part * zeros + packer.flush()
    sizes = (0, len(data), len(head) + zeros * 2**20)
    label = name.encode()
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 8, 0, 0, *sizes, len(label), 0) + label
    entry = (
        struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 8, 0, 0, *sizes, len(label), 0, 0, 0, 0, 0, 0) + label
    )
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 1, 1, len(entry), len(local) + len(data), 0)
    path.write_bytes(local + data + entry + end)


def code_beside_a_model(mark: Path) -> list[list[str]]:
    """Code that a config names, in the folder of a model or of data."""
    evil = EVIL.replace("MARK", str(mark))
    for folder in ("bert", "converted", "sentences", "graphormer", "pictures"):
        for name in ("evil.py", f"{folder}.py"):
            (Path(folder) / name).write_text(evil)
    config = json.loads(Path("bert/config.json").read_text())
    remote = {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}
    for folder in ("bert", "converted"):
        changed = config | {"auto_map": remote, "model_type": "evil" if folder == "bert" else "bert"}
        Path(folder, "config.json").write_text(json.dumps(changed))
    modules = json.loads(Path("sentences/modules.json").read_text())
    modules[1]["type"] = "evil.Evil"
    Path("sentences/modules.json").write_text(json.dumps(modules))
    return [embed("bert"), embed("sentences"), embed("vit", "nothing.parquet")]


def names_that_lead_out(mark: Path) -> list[list[str]]:
    """Names of files and classes in metadata that point elsewhere."""
    outside = Path("outside")
    outside.mkdir()
    shutil.move("bert/model.safetensors", outside / "model.safetensors")
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": "../outside/model.safetensors"}}
    Path("bert/model.safetensors.index.json").write_text(json.dumps(index))
    modules = json.loads(Path("sentences/modules.json").read_text())
    modules[1]["path"] = "../outside"
    Path("sentences/modules.json").write_text(json.dumps(modules))
    description = json.loads(Path("converted/sepnorm.json").read_text())
    for name in ("../outside", "os.system", "/etc/hostname"):
        shutil.copytree("converted", f"converted-{len(name)}")
        Path(f"converted-{len(name)}/sepnorm.json").write_text(json.dumps(description | {"class": name}))
    return [embed("bert"), embed("sentences"), *(embed(f"converted-{len(n)}") for n in ("../outside", "os.system"))]


def archives(mark: Path) -> list[list[str]]:
    """Members of a tar file that would be written elsewhere, or unpickled."""
    with tarfile.open("t.tar", "w") as tar:
        for number in range(4):
            for name, content in (
                ("../../out.txt", b"text"),
                ("/tmp/out.txt", b"text"),
                (f"{number}.pth", torch_bomb(mark)),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return [["pretrain", "text", "--data", "t.tar", "--out", "r", "--max-steps", "1", *settings(*TEXT, "stream=16")]]


def data_of_a_petabyte(mark: Path) -> list[list[str]]:
    """A header that promises more than there is, and a packed line without an end."""
    Path("idx").mkdir()
    for part in ("train", "t10k"):
        head = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (2**32 - 1, 2**12, 2**6))
        Path(f"idx/{part}-images-idx3-ubyte").write_bytes(head + bytes(1000))
        Path(f"idx/{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1]))
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = packer.compress(b"the cat ") + packer.flush(zlib.Z_FULL_FLUSH)
    part = packer.compress(b"a" * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    Path("b.txt.gz").write_bytes(start + part * 1000)
    return [embed("vit", "idx"), embed("bert", "b.txt.gz")]


KINDS = [pickled_weights, pickles_by_any_name, objects_in_arrays, weights_of_a_petabyte, arrays_of_a_petabyte, zip_bomb]
KINDS += [code_beside_a_model, names_that_lead_out]
LONG = [archives, data_of_a_petabyte]  # in this order, since the peak of memory stays
NEEDED = ["bert", "lines.txt", "sentences", "converted", "graphormer", "pictures", "vit"]


def outcomes(kinds, whole, factory) -> dict:
    """What became of every command, by kind; all are run in one process, since starting one takes the longest."""
    jobs = []
    folders = {}
    for kind in kinds:
        folder = folders[kind] = factory.mktemp(kind.__name__)
        copy(whole, NEEDED, folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            jobs += [(kind, words) for words in kind(folder / "mark")]
    process = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "several.py")],
        input=json.dumps([(str(folders[kind]), words) for kind, words in jobs]),
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    assert process.returncode == 0, process.stderr
    results = list(zip(jobs, json.loads(process.stdout), strict=True))
    return {kind: ([(words, r) for (k, words), r in results if k is kind], folders[kind]) for kind in kinds}


@pytest.fixture(scope="module")
def done(whole, tmp_path_factory):
    return outcomes(KINDS, whole, tmp_path_factory)


@pytest.fixture(scope="module")
def done_long(whole, tmp_path_factory):
    return outcomes(LONG, whole, tmp_path_factory)


def refused_without_harm(results: list, folder: Path) -> None:
    for words, result in results:
        last = result["said"].strip().split("\n")[-1]
        assert result["code"] == 1 and last.startswith("Error: "), (words, result)
        assert "Traceback" not in result["said"], (words, result)
        assert result["peak"] < MEMORY, (words, result)
    assert not (folder / "mark").exists()
    assert not (folder.parent / "out.txt").exists() and not (folder.parent.parent / "out.txt").exists()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_harmful_files_are_refused_and_do_nothing(done, kind):
    refused_without_harm(*done[kind])


@pytest.mark.faults
def test_members_of_archives_are_neither_unpickled_nor_written_elsewhere(done_long):
    refused_without_harm(*done_long[archives])


@pytest.mark.faults
def test_data_that_promise_a_petabyte_are_refused(done_long):
    refused_without_harm(*done_long[data_of_a_petabyte])


def resumed(whole: Path, tmp_path: Path, name: str, content: bytes) -> None:
    """A run that was stopped, with a file of its newest checkpoint replaced, and the note of its checksum too."""
    copy(whole, ["pictures", "begun"], tmp_path)
    newest = tmp_path / "begun" / "checkpoints" / "checkpoint-3"
    (newest / name).write_bytes(content)
    note = json.loads((newest / "complete").read_text())
    note["checksums"][name] = settle(newest / name)
    (newest / "complete").write_text(json.dumps(note))


CHECKPOINT = ["optimizer.pt", *(pytest.param(n, marks=pytest.mark.faults) for n in ("scheduler.pt", "rng_state.pth"))]


@pytest.mark.parametrize("name", CHECKPOINT)
def test_a_pickle_in_a_checkpoint_is_refused(run, whole, tmp_path, name):
    resumed(whole, tmp_path, name, torch_bomb(tmp_path / "mark"))
    code, _, err = run(*RUN_IMAGES, "--out", "begun", "--resume")
    assert code == 1 and "contains pickled objects, which are not loaded for safety" in err
    assert not (tmp_path / "mark").exists()


class Bytes:
    """Unpickled, it takes as many bytes as it says."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __reduce__(self):
        return bytearray, (self.count,)


def test_a_checkpoint_of_a_few_bytes_takes_no_memory(run, whole, tmp_path):
    import torch

    file = io.BytesIO()
    torch.save({"state": Bytes(2**33)}, file)
    resumed(whole, tmp_path, "optimizer.pt", file.getvalue())
    code, _, err = run(*RUN_IMAGES, "--out", "begun", "--resume")
    assert code == 1 and "which are not loaded for safety: optimizer.pt: __builtin__.bytearray" in err
