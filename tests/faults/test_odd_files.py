"""Links, pipes and devices where files are expected, and tables that name files elsewhere: no command hangs or reads those."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from whole_files import IMAGES, TEXT, copy, settings

PATIENCE = 120  # seconds after which a command hangs
ROOM = 12 * 2**30  # bytes of addresses, so that a failing test does not take the machine along
SCRATCH = 300 * 2**20  # bytes that a command may have in its folder for temporary files

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")


def long(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.faults)


def sepnorm(folder: Path, *words: object, **environment: str) -> tuple[int, str]:
    """The command as a process of its own: exit code, and what went to stderr. One that hangs or fills the disk fails."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "sepnorm", *map(str, words)],
        cwd=folder,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    resource.prlimit(process.pid, resource.RLIMIT_AS, (ROOM, ROOM))
    said: list[str] = []
    assert process.stderr is not None
    listener = threading.Thread(target=lambda: said.append(process.stderr.read()), daemon=True)
    listener.start()
    deadline, used = time.monotonic() + PATIENCE, 0
    try:
        while process.poll() is None and time.monotonic() < deadline and used < SCRATCH:
            time.sleep(0.02)
            used = size_of(scratch)
        ended = process.poll() is not None
    finally:
        process.kill()
        process.wait()
        listener.join(PATIENCE)
    assert used < SCRATCH, f"{words} wrote {used / 2**20:.0f} MiB of temporary files"
    assert ended, f"{words} hangs: {''.join(said)}"
    return process.returncode, "".join(said)


def size_of(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder, onerror=None):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue  # it is gone
    return total


def read_or_refused(folder: Path, *words: object, **environment: str) -> int:
    code, said = sepnorm(folder, *words, **environment)
    assert "Traceback" not in said, said
    assert code == 0 or (code == 1 and said.strip().split("\n")[-1].startswith("Error: ")), (code, said)
    return code


def refused(folder: Path, *words: object, saying: str = "", **environment: str) -> None:
    code, said = sepnorm(folder, *words, **environment)
    last = said.strip().split("\n")[-1]
    assert code == 1 and last.startswith("Error: ") and "Traceback" not in said, (code, said)
    assert saying in last, last


def embed(model: str, data: object, *more: str) -> list[str]:
    return ["embed", model, str(data), "--out", "e.npy", "--quiet", *more]


def pretrain(domain: str, data: str, *more: str) -> list[str]:
    own = {"text": TEXT, "images": IMAGES}[domain]
    return ["pretrain", domain, "--data", data, "--max-steps", "1", *settings(*own, *more), "--out", "run", "--quiet"]


# ---- in a folder of images ----------------------------------------------------------------------------------------------


def a_pipe(place: Path) -> None:
    os.mkfifo(place / "x.png")


def zeros_without_end(place: Path) -> None:
    (place / "y.png").symlink_to("/dev/zero")


def a_folder_outside(place: Path) -> None:
    outside = place.parents[1] / "outside"
    shutil.copytree(place, outside)
    (place / "z").symlink_to(outside)
    (place / "z.png").symlink_to(outside)


def loops(place: Path) -> None:
    (place / "a").symlink_to(".")
    (place / "b").symlink_to("..")
    (place / "a.png").symlink_to("b.png")
    (place / "b.png").symlink_to("a.png")


def nowhere(place: Path) -> None:
    (place / "gone.png").symlink_to("nothing.png")


IMAGE_COMMANDS = {
    "embed": embed("vit", "pictures"),
    "diagnose": ["diagnose", "vit", "--data", "pictures", "--out", "out", "--quiet"],
    "evaluate": ["evaluate", "vit", "--data", "pictures", "--on", "knn", "--out", "out", "--quiet"],
    "pretrain": pretrain("images", "pictures"),
    "stream": pretrain("images", "split", "stream=16"),
}


@pytest.mark.parametrize(
    ("odd", "command"),
    [
        (a_pipe, "embed"),
        *(long(a_pipe, command) for command in IMAGE_COMMANDS if command != "embed"),
        *(long(zeros_without_end, command) for command in ("embed", "pretrain", "stream")),
        *(long(a_folder_outside, command) for command in ("embed", "stream")),
        *(long(loops, command) for command in ("embed", "stream")),
        long(nowhere, "embed"),
    ],
)
def test_what_is_no_file_among_images_is_passed_over(whole, tmp_path, odd, command):
    copy(whole, ["vit", "pictures"], tmp_path)
    odd(tmp_path / "pictures" / "even")
    for split in ("train", "test") if command == "stream" else ():
        shutil.copytree(whole / "pictures", tmp_path / "split" / split)
        odd_place = tmp_path / "split" / split / "even"
        if odd is not a_folder_outside:
            odd(odd_place)
        else:
            (odd_place / "z").symlink_to(tmp_path / "outside")
    code = read_or_refused(tmp_path, *IMAGE_COMMANDS[command])
    if command == "embed":
        assert code == 0 and len(np.load(tmp_path / "e.npy")) == 40  # those that are really there, each once


def test_links_to_images_are_images(run, whole, tmp_path):
    """As those who choose a part of a large set make them."""
    copy(whole, ["vit", "pictures"], tmp_path)
    files = sorted(path for path in (tmp_path / "pictures").rglob("*") if path.is_file())
    (tmp_path / "chosen" / "some").mkdir(parents=True)
    for number, path in enumerate(files[:6]):
        (tmp_path / "chosen" / "some" / f"{number}{path.suffix}").symlink_to(path)
    code, _, err = run(*embed("vit", "chosen"))
    assert code == 0, err
    assert len(np.load(tmp_path / "e.npy")) == 6


# ---- in the place of data -----------------------------------------------------------------------------------------------

PIPES = [("bert", "t.txt"), ("bert", "t.jsonl"), ("bert", "t.parquet"), ("vit", "i.parquet"), ("graphormer", "s.csv")]
ZEROS = [("bert", "t.txt.gz"), ("bert", "t.csv"), ("bert", "t.jsonl"), ("vit", "i.csv"), ("graphormer", "s.smi")]


@pytest.mark.parametrize(
    ("kind", "model", "name"),
    [
        ("pipe", "bert", "t.csv"),
        *(long("pipe", *each) for each in PIPES),
        *(long("zeros", *each) for each in ZEROS),
    ],
)
def test_a_pipe_or_a_device_is_no_data(whole, tmp_path, kind, model, name):
    copy(whole, [model], tmp_path)
    put(tmp_path / name, kind)
    refused(tmp_path, *embed(model, name))


@pytest.mark.parametrize(
    "words",
    [
        embed("bert", "/dev/zero"),
        long(embed("vit", "/dev/zero")),
        long(embed("graphormer", "/dev/zero")),
        long(embed("/dev/zero", "lines.txt")),
        long(["diagnose", "/dev/zero", "--data", "lines.txt"]),
        long(["diagnose", "bert", "--data", "/dev/stdin"]),
        long(["convert", "bert", "--data", "/dev/zero", "--out", "new"]),
        long(["evaluate", "bert", "--data", "/dev/zero", "--on", "stsb", "--out", "out"]),
        long(pretrain("text", "/dev/zero")),
        long(pretrain("text", "/dev/zero", "stream=16")),
        long(pretrain("images", "/dev/zero")),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_a_device_is_no_data(whole, tmp_path, words):
    copy(whole, ["bert", "vit", "graphormer", "lines.txt"], tmp_path)
    refused(tmp_path, *words)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "kind"), [("e.npy", "pipe"), ("e.csv", "pipe"), ("e.parquet", "zeros"), ("e.npz", "folder")]
)
def test_what_is_no_file_is_no_embeddings(tmp_path, name, kind):
    put(tmp_path / name, kind)
    refused(tmp_path, "diagnose", name, "--out", "out")


def put(path: Path, kind: str) -> None:
    """Something that is no file, in the place of one."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.symlink_to("/usr")
    else:
        path.symlink_to(path.name)


# ---- in a model ---------------------------------------------------------------------------------------------------------

MODELS = [
    *(("bert", name, kind) for name in ("model.safetensors", "config.json") for kind in ("pipe", "zeros", "folder")),
    ("bert", "tokenizer.json", "zeros"),
    ("bert", "tokenizer.json", "folder"),
    ("bert", "tokenizer_config.json", "pipe"),
    ("converted", "sepnorm.json", "pipe"),
    ("converted", "sepnorm.safetensors", "zeros"),
    ("converted", "config.json", "loop"),
    ("sentences", "modules.json", "pipe"),
    ("sentences", "model.safetensors", "loop"),
    ("sentences", "1_Pooling/config.json", "pipe"),
    ("sentences", "1_Pooling/config.json", "zeros"),
    ("vit", "preprocessor_config.json", "pipe"),
    ("vit", "preprocessor_config.json", "zeros"),
]


@pytest.mark.parametrize(
    ("model", "name", "kind"), [("bert", "tokenizer.json", "pipe"), *(long(*each) for each in MODELS)]
)
def test_a_model_whose_file_is_none_is_refused(whole, tmp_path, model, name, kind):
    data = "pictures" if model == "vit" else "lines.txt"
    copy(whole, [model, data], tmp_path)
    put(tmp_path / model / name, kind)
    # a model of images is also opened without its preprocessor's file, as those of before have none
    optional = name in ("preprocessor_config.json", "tokenizer_config.json")
    (read_or_refused if optional else refused)(tmp_path, *embed(model, data))


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "kind"),
    [("metrics.json", "pipe"), ("losses.json", "zeros"), ("embeddings.npz", "pipe"), ("config.json", "folder")],
)
def test_a_run_whose_file_is_none_is_refused(whole, tmp_path, name, kind):
    """The comparison is done, and its page is made of what the runs left."""
    from whole_files import COMPARE

    copy(whole, ["compared", "pictures"], tmp_path)
    (run,) = (tmp_path / "compared" / "runs").glob("ln-*")
    put(run / name, kind)
    read_or_refused(tmp_path, *COMPARE)


@pytest.fixture(scope="module")
def converted_sentences(whole, tmp_path_factory) -> Path:
    """A model of sentence-transformers with separate norms, which is built from a copy of its folder."""
    from sepnorm.domains.encoders import convert_copy

    folder = tmp_path_factory.mktemp("converted") / "model"
    convert_copy(str(whole / "sentences"), str(whole / "lines.txt"), folder, "bn+ln", "all")
    return folder


def a_large_folder(model: Path) -> None:
    """In the place of the whole disk, which a failing test would copy."""
    elsewhere = model.parent / "elsewhere"
    elsewhere.mkdir()
    for number in range(8):
        with open(elsewhere / f"{number}.bin", "wb") as file:
            file.truncate(2**30)  # takes no room until it is copied
    (model / "all").symlink_to(elsewhere)


def a_large_file(model: Path) -> None:
    a_large_folder(model)
    (model / "all").unlink()
    (model / "notes.md").symlink_to(model.parent / "elsewhere" / "0.bin")


def folders_in_themselves(model: Path) -> None:
    """Two of them: with each way down there are twice as many."""
    (model / "a").symlink_to(".")
    (model / "b").symlink_to(".")


def a_pipe_beside(model: Path) -> None:
    os.mkfifo(model / "notes.md")


def zeros_beside(model: Path) -> None:
    (model / "notes.md").symlink_to("/dev/zero")


ODD = [a_large_folder, *map(long, (a_large_file, folders_in_themselves, a_pipe_beside, zeros_beside))]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("model", ["converted", long("plain")])
def test_a_model_of_sentences_is_not_followed_out_of_its_folder(whole, converted_sentences, tmp_path, odd, model):
    copy(whole, ["lines.txt"], tmp_path)
    shutil.copytree(converted_sentences if model == "converted" else whole / "sentences", tmp_path / "model")
    odd(tmp_path / "model")
    read_or_refused(tmp_path, *embed("model", "lines.txt"))


def as_in_the_cache_of_the_hub(model: Path, cache: Path) -> Path:
    """The same files as links to others that are named after their content."""
    (cache / "blobs").mkdir(parents=True)
    snapshot = cache / "snapshots" / "0123abc"
    for path in [path for path in model.rglob("*") if path.is_file()]:
        blob = cache / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, blob)
        link = snapshot / path.relative_to(model)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


@pytest.mark.parametrize("model", ["bert", "sentences", "converted", "converted sentences", "vit", "graphormer"])
def test_a_model_as_the_cache_of_the_hub_has_it_is_opened(run, whole, converted_sentences, tmp_path, model):
    data = {"vit": "pictures", "graphormer": "s.csv"}.get(model, "lines.txt")
    copy(whole, [data], tmp_path)
    plain = converted_sentences if model == "converted sentences" else whole / model
    code, _, err = run("embed", plain, data, "--out", "plain.npy", "--quiet")
    assert code == 0, err
    linked = as_in_the_cache_of_the_hub(plain, tmp_path / "models--someone--something")
    code, _, err = run("embed", linked, data, "--out", "linked.npy", "--quiet")
    assert code == 0, err
    assert np.array_equal(np.load("plain.npy"), np.load("linked.npy"))


# ---- tables that name images --------------------------------------------------------------------------------------------

FORMS = [".csv", ".tsv", ".jsonl", ".json", "path.jsonl", ".parquet", "path.parquet", "feature.parquet"]
#: What the library ``datasets`` writes beside a column of images, which it then opens by itself.
FEATURES = {"info": {"features": {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}}}


def write_table(path: Path, form: str, names: list[str]) -> None:
    """A table with a column of names of images, as text or as ``datasets`` has them."""
    values = [{"bytes": None, "path": name} if form.startswith(("path", "feature")) else name for name in names]
    rows = [{"image": value, "label": number % 2} for number, value in enumerate(values)]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        image = pyarrow.array(values, kind if form != ".parquet" else pyarrow.string())
        table = pyarrow.table({"image": image, "label": [row["label"] for row in rows]})
        if form.startswith("feature"):
            table = table.replace_schema_metadata({"huggingface": json.dumps(FEATURES)})
        pyarrow.parquet.write_table(table, path)
    elif path.suffix in (".json", ".jsonl"):
        path.write_text(json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows)))
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        path.write_text("\n".join(["image" + mark + "label", *(f"{row['image']}{mark}{row['label']}" for row in rows)]))


@pytest.fixture
def table(whole, tmp_path) -> Callable[[str, list[str]], str]:
    """Writes a table beside pictures of its own, and gives its path below the folder that commands are run in."""
    copy(whole, ["vit", "pictures"], tmp_path)
    found = sorted(path for path in (tmp_path / "pictures").rglob("*") if path.is_file())
    for number, path in enumerate(found[:12]):
        for folder in ("tables/own", "."):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / folder / f"{number}{path.suffix}")

    def write(form: str, names: list[str]) -> str:
        name = f"tables/t{form if form.startswith('.') else form[form.index('.') :]}"
        write_table(tmp_path / name, form, names)
        return name

    return write


def own(tmp_path: Path) -> list[str]:
    return sorted(f"own/{path.name}" for path in (tmp_path / "tables" / "own").iterdir())


@pytest.mark.parametrize("form", FORMS)
def test_a_table_names_images_beside_it(run, table, tmp_path, form):
    """By paths from where the table is, and not from where the command is run."""
    data = table(form, own(tmp_path))
    shutil.rmtree(tmp_path / "pictures")
    code, _, err = run(*embed("vit", data, "--column", "image"))
    assert code == 0, err
    found = np.load(tmp_path / "e.npy")
    code, _, err = run(*embed("vit", "tables/own"))
    assert code == 0, err
    np.testing.assert_allclose(found, np.load(tmp_path / "e.npy"), atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["above", "absolute", "of the system", "by the way"])
def test_a_table_that_names_files_elsewhere_is_refused(run, table, tmp_path, form, where):
    outside = {
        "above": [f"../{number}" for number in (path.name for path in (tmp_path / "tables/own").iterdir())],
        "absolute": [str(path) for path in sorted((tmp_path / "pictures" / "even").iterdir())[:12]],
        "of the system": ["/etc/hostname"] * 12,
        "by the way": [f"own/../../{path.name}" for path in (tmp_path / "tables/own").iterdir()],
    }
    data = table(form, outside[where])
    code, _, err = run(*embed("vit", data, "--column", "image"))
    last = err.strip().split("\n")[-1]
    assert code == 1 and last.startswith("Error: ") and "Traceback" not in err, err
    assert "outside" in last
    assert not (tmp_path / "e.npy").exists()


def test_one_image_elsewhere_among_many_is_refused_too(run, table, tmp_path):
    """It is not one that cannot be read, of which some may be left out."""
    data = table(".csv", [*own(tmp_path), "../0.png", *own(tmp_path)])
    code, _, err = run(*embed("vit", data, "--column", "image"))
    assert code == 1 and "outside" in err.strip().split("\n")[-1], err


@pytest.mark.parametrize("command", ["diagnose", "evaluate", "pretrain", "stream"])
@pytest.mark.parametrize("form", ["path.parquet", long(".csv"), long("feature.parquet"), long("path.jsonl")])
def test_every_command_refuses_tables_that_name_files_elsewhere(run, table, tmp_path, form, command):
    pictures = [str(path) for path in sorted((tmp_path / "pictures").rglob("*")) if path.is_file()]
    data = table(form, pictures)
    if command == "stream":
        for split in ("train", "test"):
            place = tmp_path / "split" / split / Path(data).name
            write_table(place, form, pictures)
        data = "split"
    words = {
        "diagnose": ["diagnose", "vit", "--data", data, "--column", "image", "--out", "out", "--quiet"],
        "evaluate": ["evaluate", "vit", "--data", data, "--column", "image", "--on", "knn", "--out", "out", "--quiet"],
        "pretrain": pretrain("images", data, "column=image"),
        "stream": pretrain("images", data, "column=image", "stream=16"),
    }
    code, _, err = run(*words[command])
    last = err.strip().split("\n")[-1]
    assert code == 1 and last.startswith("Error: ") and "outside" in last, err


@pytest.fixture
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """A port, and what anybody said there."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                with caller:
                    heard.append(b"a call")
                    caller.settimeout(5)
                    heard.append(caller.recv(100))
                    caller.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1], heard
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["http", long("https"), "file", long("ftp"), long("zip"), long("hf")])
def test_images_on_the_web_are_not_fetched(run, table, tmp_path, listening, monkeypatch, form, kind):
    port, heard = listening
    address = {
        "http": f"http://127.0.0.1:{port}/0.png",
        "https": f"https://127.0.0.1:{port}/0.png",
        "file": f"file://{tmp_path}/tables/own/0.png",
        "ftp": f"ftp://127.0.0.1:{port}/0.png",
        "zip": f"zip://0.png::http://127.0.0.1:{port}/0.zip",
        "hf": "hf://datasets/someone/something/0.png",
    }[kind]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    data = table(form, [address] * 12)
    code, _, err = run(*embed("vit", data, "--column", "image"))
    last = err.strip().split("\n")[-1]
    assert code == 1 and last.startswith("Error: ") and "Traceback" not in err, err
    assert "address" in last.replace(str(tmp_path), "")
    assert heard == []


def test_every_file_that_is_read_whole_is_no_pipe(tmp_path):
    """Opening a pipe would wait for ever for somebody to write to it."""
    from sepnorm.data.tables import parquet_batches
    from sepnorm.domains.images.data import _idx
    from sepnorm.domains.text.reading import whole_lines
    from sepnorm.errors import SepNormError
    from sepnorm.files import settle

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (_idx, whole_lines, settle, lambda path: list(parquet_batches(path))):
        with pytest.raises(SepNormError, match="is not a regular file"):
            read(pipe)
