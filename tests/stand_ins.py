"""Small stand-ins of the public files that ``sepnorm data`` downloads, in the layout of their authors, and a server of them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
from PIL import Image
from scipy.io import savemat

from sepnorm.sources.records import Rows, Source
from sepnorm.sources.registry import SOURCES

WORDS = "cat dog man girl plays runs sings reads ball song book tree river house music".split()
SMILES = ["CCO", "CCN", "CCC", "c1ccccc1", "CC(=O)O", "C1CCCCCCC1", "CCOC", "CCCl", "CCBr", "c1ccncc1", "CCS", "CC#N"]


def sentence(number: int) -> str:
    return f"a {WORDS[number % 15]} {WORDS[number * 7 % 15]} with the {WORDS[number * 4 % 15]} , number {number} ."


def tarred(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def cifar10(folder: Path) -> Rows:
    """Three images of each class in each batch."""
    rng = np.random.default_rng(0)

    def batch() -> bytes:
        labels = np.tile(np.arange(10, dtype=np.uint8), 3)[:, None]
        return np.concatenate([labels, rng.integers(0, 256, (30, 3072), dtype=np.uint8)], 1).tobytes()

    names = ["batches.meta.txt", *(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    tarred(folder / "cifar-10-binary.tar.gz", {f"cifar-10-batches-bin/{name}": batch() for name in names})
    return {"cifar10_jpeg.parquet": {"train": 150, "test": 30}}


def photograph(number: int) -> bytes:
    file = io.BytesIO()
    pixels = np.full((90, 70 + number, 3), (number * 9 % 256, 80, 120), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def flowers(folder: Path) -> Rows:
    """Ten images of class 2, ten of 3 and four of 1, which is none of the 51; in the archive the last comes first."""
    labels = [2] * 10 + [3] * 10 + [1] * 4
    names = {f"jpg/image_{number:05d}.jpg": photograph(number) for number in range(len(labels), 0, -1)}
    tarred(folder / "102flowers.tgz", names)
    savemat(folder / "imagelabels.mat", {"labels": np.array([labels], dtype=np.uint8)})
    parts = {"trnid": [1, 2, 11, 12, 21], "valid": [3, 13], "tstid": [4, 5, 14, 15, 16, 22, 23]}
    savemat(folder / "setid.mat", {name: np.array([part], dtype=np.uint16) for name, part in parts.items()})
    return {"flowers51.parquet": {"train": 16, "test": 4}, "flowers102.parquet": {"train": 5, "test": 7}}


def fashion(folder: Path) -> Rows:
    rng, rows = np.random.default_rng(0), {}
    for part, count in (("train", 40), ("t10k", 20)):
        head = count.to_bytes(4, "big")
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8).tobytes()
        images = b"\0\0\x08\x03" + head + 2 * (28).to_bytes(4, "big") + pixels
        labels = b"\0\0\x08\x01" + head + bytes(number % 10 for number in range(count))
        for kind, content in (("images-idx3", images), ("labels-idx1", labels)):
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
            rows[f"{part}-{kind}-ubyte.gz"] = {"all": count}
    return rows


def senteval_files() -> dict[str, bytes]:
    """Ten lines in each file, by SentEval's paths."""
    numbers = range(10)
    files = {}
    for split in ("train", "dev", "test"):
        lines = [f"main-x\tMSRvid\t2012test\t{n:04d}\t{n % 6:.3f}\t{sentence(n)}\t{sentence(n + 3)}" for n in numbers]
        files[f"./STS/STSBenchmark/sts-{split}.csv"] = lines
        files[f"./SST/binary/sentiment-{split}"] = [f"{sentence(n)}\t{n % 2}" for n in numbers]
        files[f"./SST/fine/sentiment-{split}"] = [f"{n % 5} {sentence(n)}" for n in numbers]
    for part in ("train", "trial", "test_annotated"):
        head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
        pairs = [f"{n}\t{sentence(n)}\t{sentence(n + 1)}\t{1 + n % 4}.5\tNEUTRAL" for n in numbers]
        files[f"./SICK/SICK_{part}.txt"] = [head, *pairs]
    for end in ("pos", "neg"):
        files[f"./MR/rt-polarity.{end}"] = [f"{sentence(n)} {end}" for n in numbers]
    for name in ("train_5500", "TREC_10"):
        files[f"./TREC/{name}.label"] = [f"{('DESC', 'NUM')[n % 2]}:x {sentence(n)}" for n in numbers]
    packed = {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in files.items()}
    packed["./TREC/train_5500.label"] += "HUM:ind Who was Camar\xf3n ?\n".encode("latin-1")
    packed["./TREC/TREC_10.label"] += b"HUM:ind Who was she ?\n"
    return packed


def senteval(folder: Path, rows: Rows) -> Rows:
    tarred(folder / "senteval.tar", senteval_files())
    return rows


def wiki(folder: Path) -> Rows:
    (folder / "wiki1m_for_simcse.txt").write_text("".join(f"{sentence(n)}\n" for n in range(300)), encoding="utf-8")
    return {"wiki_1m.txt.xz": {"all": 300}}


def snli(folder: Path) -> Rows:
    """Of every premise an entailment, a contradiction and a pair without a verdict."""
    labels = ("entailment", "contradiction", "-")
    lines = [
        json.dumps({"gold_label": label, "sentence1": sentence(n), "sentence2": f"{label}\t{sentence(n + 1)}"})
        for n in range(20)
        for label in labels
    ]
    with zipfile.ZipFile(folder / "snli_1.0.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for split in ("train", "dev", "test"):
            archive.writestr(f"snli_1.0/snli_1.0_{split}.jsonl", "\n".join(lines) + "\n")
    return {"snli_pairs.tsv.gz": {"train": 60, "dev": 60, "test": 60}, "snli_triples.tsv.gz": {}}


def zinc(folder: Path) -> Rows:
    everything = [*(f"C{smiles}" for smiles in SMILES), *SMILES]
    with open(folder / "250k_rndm_zinc_drugs_clean_3.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", "logP", "qed", "SAS"])
        writer.writerows([f"{smiles}\n", 1.5, 0.5, 2.5] for smiles in everything)  # the cells of the original end so
    parts = {"train": everything[8:], "valid": everything[:4], "test": everything[4:8]}
    for name, smiles in parts.items():
        (folder / f"{name}.txt").write_text("\n".join(smiles) + "\n")
    for name, numbers in (("train", "9,0,3,4,5,6,7,8"), ("val", "1,3"), ("test", "0,2")):
        (folder / f"{name}.index").write_text(numbers)
    return {
        "zinc250k.csv.gz": {"val": 4, "test": 4, "train": 16},
        "zinc12k.csv.gz": {"train": 8, "val": 2, "test": 2},
    }


def moleculenet(folder: Path) -> Rows:
    heads = {
        "esol": ("delaney-processed.csv", "Compound ID,measured log solubility in mols per litre,smiles"),
        "freesolv": ("SAMPL.csv", "iupac,expt,smiles"),
        "lipophilicity": ("Lipophilicity.csv", "CMPD_CHEMBLID,exp,smiles"),
        "bbbp": ("BBBP.csv", "name,p_np,smiles"),
    }
    for name, (file, head) in heads.items():
        lines = [f'"{n}, a name",{n % 2 if name == "bbbp" else n / 4},{smiles}' for n, smiles in enumerate(SMILES)]
        (folder / file).write_bytes(("\r\n" if name == "bbbp" else "\n").join([head, *lines, ""]).encode())
    return {f"{name}.csv.gz": {"all": len(SMILES)} for name in heads}


_TRANSFER = {f"SST2 {split}": 10 for split in ("train", "dev", "test")}
MAKERS: dict[str, Callable[[Path], Rows]] = {
    "cifar10": cifar10,
    "flowers": flowers,
    "fashion-mnist": fashion,
    "stsb": partial(senteval, rows={"stsb.tsv.gz": {"train": 10, "dev": 10, "test": 10}}),
    "sick": partial(senteval, rows={"sick.tsv.gz": {"train": 10, "trial": 10, "test": 10}}),
    "transfer": partial(
        senteval,
        rows={"transfer_single.tsv.gz": {"MR all": 20, **_TRANSFER, "TREC train": 11, "TREC test": 11}},
    ),
    "wiki": wiki,
    "snli": snli,
    "zinc": zinc,
    "moleculenet": moleculenet,
}


def stand_in(name: str, folder: Path, address: str = "http://127.0.0.1:9") -> Source:
    """Small originals of a source in a folder, and the source with their rows, their address and, where one is published, their
    checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = MAKERS[name](folder)
    originals = []
    for original in SOURCES[name].originals:
        kind = original.checksum.partition(":")[0]
        found = hashlib.new(kind, (folder / original.name).read_bytes()).hexdigest() if kind else ""
        originals.append(
            replace(original, address=f"{address}/{original.name}", checksum=f"{kind}:{found}" if kind else "")
        )
    return replace(SOURCES[name], originals=tuple(originals), rows=rows, known={})


class Served:
    """A folder at an address of this machine: what was asked for, and how the answers are spoilt."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked, self.version = folder, list[tuple[str, str | None]](), "1"
        self.cut: int | None = None  #: bytes after which an answer ends
        self.silence = 0.0  #: seconds after them
        self.ranges = True
        self.address = ""


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serves a folder until the end of the block."""
    served = Served(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, wanted = folder / self.path.lstrip("/"), self.headers.get("Range")
            served.asked.append((path.name, wanted))
            if not path.is_file():
                self.send_error(404)
                return
            content = path.read_bytes()
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and served.ranges else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("ETag", f'"{served.version}"')
            self.end_headers()
            self.wfile.write(content[start:][: served.cut])
            self.wfile.flush()
            time.sleep(served.silence)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_address[1]}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
