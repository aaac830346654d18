"""A whole example of every kind of file that the package reads, and the command that reads it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import signal
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from models import text_model

WORDS = "the cat dog sat on mat and number a b c d e".split()
IMAGES = (
    "width=16 depth=2 heads=2 decoder_width=8 decoder_depth=1 decoder_heads=2 batch_size=16 threads=0 epochs=9".split()
)
MOLECULES = "width=16 depth=2 heads=2 feed_forward=16 batch_size=16 threads=0".split()
TEXT = "model=bert batch_size=8 length=10 calibration=20 threads=0".split()


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


#: One step of each domain on data that is in the folder, as words of the command line.
RUN_IMAGES = ["pretrain", "images", "--data", "pictures", "--max-steps", "4", *settings(*IMAGES, "checkpoints=3")]
COMPARE = ["compare", "images", "--data", "pictures", "--norms", "ln,bn+ln@final", "--seeds", "1", "--max-steps", "2"]
COMPARE += [*settings(*IMAGES), "--out", "compared"]


@dataclass(frozen=True)
class Example:
    """Files that a command needs, those of them that may be damaged, as patterns, and the command; it writes to ``out``."""

    kind: str
    needed: tuple[str, ...]
    damaged: tuple[str, ...]
    words: tuple[str, ...]
    share: int = 10  #: how often it is taken, beside the others; what takes long is taken seldom
    out: str = "out"  #: the only place that the command may change


def _embed(kind: str, model: str, data: str, damaged: str | None = None, share: int = 10) -> Example:
    words = ("embed", model, data, "--out", "out/e.npy")
    return Example(kind, (model, data), (damaged or data,), words, share)


def _diagnose(kind: str, data: str, share: int = 20) -> Example:
    return Example(kind, (data,), (data,), ("diagnose", data, "--out", "out"), share)


EXAMPLES: list[Example] = [
    _diagnose(".npy", "e.npy"),
    _diagnose(".npz", "e.npz"),
    _diagnose("embeddings in .parquet", "e.parquet"),
    _diagnose("embeddings in .csv", "e.csv"),
    *(
        _embed("texts in .txt (.gz .xz .bz2)", "bert", f"lines.txt{packed}", share=6)
        for packed in ("", ".gz", ".xz", ".bz2")
    ),
    *(_embed("texts in .csv .tsv (.gz)", "bert", name, share=6) for name in ("t.csv", "t.tsv", "t.csv.gz", "t.tsv.gz")),
    *(_embed("texts in .json .jsonl", "bert", name) for name in ("t.json", "t.jsonl", "t.jsonl.gz")),
    _embed("texts in .parquet", "bert", "t.parquet"),
    _embed("folder of PNG and JPEG", "vit", "pictures", "pictures/*/*"),
    _embed("images in .parquet", "vit", "pictures.parquet"),
    _embed("IDX images", "vit", "idx", "idx/*", share=20),
    *(_embed("SMILES", "graphormer", f"s{kind}", share=6) for kind in (".csv", ".csv.gz", ".tsv", ".parquet", ".smi")),
    _embed("folder of sepnorm.save", "converted", "lines.txt", "converted/*", share=25),
    _embed("folder of sepnorm.save", "graphormer", "s.csv", "graphormer/*", share=15),
    _embed("folder of sepnorm.save", "vit", "pictures", "vit/*", share=15),
    _embed("folder of transformers", "bert", "lines.txt", "bert/*", share=20),
    Example(
        "folder of transformers",
        ("bert", "lines.txt"),
        ("bert/*",),
        ("convert", "bert", "--data", "lines.txt", "--out", "out/new"),
    ),
    Example(
        "folder of transformers",
        ("bert", "lines.txt"),
        ("bert/*",),
        ("diagnose", "bert", "--data", "lines.txt", "--out", "out"),
        6,
    ),
    Example("folder of sepnorm.save", ("vit",), ("vit/*",), ("export", "vit", "--out", "out/m.onnx"), 1),
    _embed("folder of sentence-transformers", "sentences", "lines.txt", "sentences/**/*"),
    Example(
        "evaluation sets",
        ("bert", "sets"),
        ("sets/*.tsv", "sets/*.gz"),
        ("evaluate", "bert", "--data", "sets", "--on", "stsb,trec", "--out", "out"),
    ),
    Example(
        "evaluation sets",
        ("bert", "senteval"),
        ("senteval/STS/STS13-en-test/*", "senteval/TREC/*"),
        ("evaluate", "bert", "--data", "senteval", "--on", "sts13,trec", "--out", "out"),
    ),
    Example(
        "labelled molecules",
        ("graphormer", "s.csv"),
        ("s.csv",),
        ("evaluate", "graphormer", "--data", "s.csv", "--out", "out"),
        6,
    ),
    Example(
        "labelled images",
        ("vit", "idx"),
        ("idx/*",),
        ("evaluate", "vit", "--data", "idx", "--on", "knn", "--out", "out"),
        6,
    ),
    *(
        Example(
            "streamed shards",
            ("bert", "shards"),
            (f"shards/*{kind}",),
            (
                "pretrain",
                "text",
                "--data",
                f"shards/*{kind}",
                "--max-steps",
                "1",
                *settings(*TEXT, "stream=16"),
                "--out",
                "out/run",
            ),
            2,
        )
        for kind in (".txt", ".jsonl", ".parquet", ".tar")
    ),
    Example("folder of a comparison", ("compared", "pictures"), ("compared/runs/*/*",), tuple(COMPARE), 8, "compared"),
    Example(
        "folder of a run",
        ("run", "pictures"),
        ("run/*.json", "run/*.npz"),
        (*RUN_IMAGES, "--out", "run"),
        6,
        "run",
    ),
    Example(
        "checkpoints",
        ("begun", "pictures"),
        ("begun/checkpoints/*/*",),
        (*RUN_IMAGES, "--out", "begun", "--resume"),
        2,
        "begun",
    ),
]


# ---- making them --------------------------------------------------------------------------------------------------------


def make_all(folder: Path, runs: bool = True) -> None:
    """Writes every example below a folder; runs take the longest."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    for make in (_embeddings, _texts, _shards, _pictures, _molecules, _models, _sets, *([_runs] if runs else [])):
        make(folder)


def sentence(number: int) -> str:
    return " ".join(WORDS[(number * (i + 3) + i * i) % len(WORDS)] for i in range(2 + number % 7)) + f" {number % 10}"


def _embeddings(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    labels = np.arange(40) % 3
    np.save(folder / "e.npy", rows)
    np.savez_compressed(folder / "e.npz", cls=rows, labels=labels)
    columns = {"name": [f"n{i}" for i in range(40)], "label": labels, "embedding": list(rows)}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "e.parquet")
    lines = [",".join([*(f"{value:.4f}" for value in row), f"n{i}"]) for i, row in enumerate(rows)]
    (folder / "e.csv").write_text("\n".join(["a,b,c,d,e,f,name", *lines]))


def _texts(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = [sentence(number) for number in range(24)]
    plain = "\n".join(texts).encode()
    (folder / "lines.txt").write_bytes(plain)
    for suffix, pack in ((".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)):
        (folder / f"lines.txt{suffix}").write_bytes(pack(plain))
    rows = [{"text": text, "label": number % 3} for number, text in enumerate(texts)]
    for name, mark in (("t.csv", ","), ("t.tsv", "\t")):
        table = "\n".join(["text" + mark + "label", *(f"{row['text']}{mark}{row['label']}" for row in rows)]).encode()
        (folder / name).write_bytes(table)
        (folder / f"{name}.gz").write_bytes(gzip.compress(table))
    (folder / "t.json").write_text(json.dumps(rows))
    lines = "\n".join(map(json.dumps, rows)).encode()
    (folder / "t.jsonl").write_bytes(lines)
    (folder / "t.jsonl.gz").write_bytes(gzip.compress(lines))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "t.parquet")


def _shards(folder: Path) -> None:
    """The texts again, in parts, as streams are read."""
    import pyarrow
    import pyarrow.parquet

    (folder / "shards").mkdir(exist_ok=True)
    for part in range(2):
        rows = [{"text": sentence(number)} for number in range(part, 40, 2)]
        place = folder / "shards" / f"part{part}"
        place.with_suffix(".txt").write_text("\n".join(row["text"] for row in rows))
        place.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, rows)))
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place.with_suffix(".parquet"))
        with tarfile.open(place.with_suffix(".tar"), "w") as tar:
            for number, row in enumerate(rows):
                member = tarfile.TarInfo(f"{number:03}.txt")
                member.size = len(row["text"])
                tar.addfile(member, io.BytesIO(row["text"].encode()))


def _pictures(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    pixels = np.random.default_rng(1).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    rows = []
    for number, values in enumerate(pixels):
        place = folder / "pictures" / ("odd" if number % 2 else "even")
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{number:02}.{'png' if number % 4 < 2 else 'jpg'}"
        Image.fromarray(values).save(path)
        rows.append({"image": {"bytes": path.read_bytes(), "path": None}, "label": number % 2})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "pictures.parquet")
    (folder / "idx").mkdir(exist_ok=True)
    for part, chosen in (("train", slice(0, 28)), ("t10k", slice(28, 40))):
        some = pixels[chosen]
        head = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in some.shape)
        (folder / "idx" / f"{part}-images-idx3-ubyte").write_bytes(head + some.tobytes())
        labels = bytes([0, 0, 8, 1]) + len(some).to_bytes(4, "big") + bytes(i % 2 for i in range(len(some)))
        (folder / "idx" / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def smiles() -> list[str]:
    rings = [f"{a}1{'C' * n}{a}1" for n in range(2, 12) for a in "CN"]  # twenty scaffolds
    return ["C" * (i % 5) + ring + "O" * (i % 3) for i in range(3) for ring in rings]


def _molecules(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"smiles": text, "y": len(text) + 0.5} for text in smiles()]
    for name, mark in (("s.csv", ","), ("s.tsv", "\t")):
        lines = [f"{row['smiles']}{mark}{row['y']}" for row in rows]
        (folder / name).write_text("\n".join([f"smiles{mark}y", *lines]))
    (folder / "s.csv.gz").write_bytes(gzip.compress((folder / "s.csv").read_bytes()))
    (folder / "s.smi").write_text("\n".join(f"{row['smiles']} name" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "s.parquet")


def _models(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    import sepnorm
    from sepnorm.data.pixels import Picture
    from sepnorm.domains.encoders import convert_copy
    from sepnorm.domains.images.config import PRESETS
    from sepnorm.domains.images.model import MaskedAutoencoder
    from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel

    text_model(folder / "bert")
    convert_copy(str(folder / "bert"), str(folder / "lines.txt"), folder / "converted", "bn+bn", "all")
    first = Transformer(str(folder / "bert"))
    SentenceTransformer(modules=[first, Pooling(16, "cls")], device="cpu").save_pretrained(
        str(folder / "sentences"), create_model_card=False
    )
    tiny = dict(pair.split("=") for pair in IMAGES) | {"norm": "bn+ln"}
    vit = MaskedAutoencoder(PRESETS["demo"].changed(tiny)).mae.vit
    sepnorm.save(vit, folder / "vit")
    Picture((8, 8), [0.3], [0.4]).save(folder / "vit")
    graphormer = GraphormerModel(GraphormerConfig("ogb", 16, 2, 2, 16))
    sepnorm.convert(graphormer, "bn+ln", sites="final")
    sepnorm.save(graphormer, folder / "graphormer")


def _sets(folder: Path) -> None:
    (folder / "sets").mkdir(exist_ok=True)
    rows = [f"{n * 7 % 11}\t{sentence(n)}\t{sentence(3 * n + 1)}" for n in range(20)]
    (folder / "sets" / "stsb.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *rows]))
    rows = [f"{'test' if n % 3 == 0 else 'train'}\t{sentence(n)}\t{n % 2}" for n in range(40)]
    (folder / "sets" / "trec.tsv.gz").write_bytes(gzip.compress("\n".join(["split\ttext\tlabel", *rows]).encode()))
    place = folder / "senteval" / "STS" / "STS13-en-test"
    place.mkdir(parents=True, exist_ok=True)
    for subset in ("FNWN", "headlines", "OnWN"):
        (place / f"STS.input.{subset}.txt").write_text("".join(f"{sentence(n)}\t{sentence(n + 5)}\n" for n in range(9)))
        (place / f"STS.gs.{subset}.txt").write_text("".join(f"{n % 5}.0\n" for n in range(9)))
    trec = folder / "senteval" / "TREC"
    trec.mkdir(exist_ok=True)
    for name, count in (("train_5500.label", 40), ("TREC_10.label", 12)):
        (trec / name).write_text("".join(f"{'DESC' if n % 2 else 'ENTY'}:x {sentence(n)}\n" for n in range(count)))


def _runs(folder: Path) -> None:
    """A finished comparison, one of its runs by itself, and a run that was stopped on its way."""
    from sepnorm.domains.pretraining import pretrain
    from sepnorm.errors import InterruptedRunError

    def press(step: int, *others: object) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    old = Path.cwd()
    os.chdir(folder)
    try:
        command(COMPARE)
        command([*RUN_IMAGES, "--out", "run"])
        given = {"data": "pictures", "max_steps": 4}
        with suppress(InterruptedRunError):
            pretrain("images", "demo", given, [*IMAGES, "checkpoints=3"], Path("begun"), start=lambda *arm: press)
    finally:
        os.chdir(old)


def command(words: Sequence[str]) -> int:
    """The command line in this process: its exit code."""
    import sys

    from sepnorm.__main__ import main

    sys.argv = ["sepnorm", *words]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def copy(source: Path, needed: Sequence[str], target: Path) -> None:
    """The parts of the examples that a command needs, in a folder of their own."""
    for name in needed:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        else:
            shutil.copy(source / name, target / name)
