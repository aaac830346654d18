"""What is written of every source: the layout of the tables' own files, and what the commands read of it."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image
from stand_ins import MAKERS, SMILES, sentence, senteval_files, stand_in, tarred

from sepnorm.domains.images.data import load_images
from sepnorm.domains.molecules.folders import tables_in
from sepnorm.domains.molecules.tables import read_table
from sepnorm.domains.text.sets import load_sets
from sepnorm.sources.images import FIFTY_ONE
from sepnorm.sources.molecules import penalised_logp
from sepnorm.sources.records import unseen
from sepnorm.sources.registry import SOURCES
from sepnorm.sources.store import obtain


def written(name: str, tmp_path: Path) -> list[Path]:
    source = stand_in(name, tmp_path / "given")
    return obtain(source, tmp_path / "data", str(tmp_path / "given")).files


def tab_rows(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n").split("\t") for line in file]


def test_there_is_a_stand_in_of_every_source():
    assert set(MAKERS) == set(SOURCES)


def test_cifar10_is_by_split_class_and_place(tmp_path):
    (path,) = written("cifar10", tmp_path)
    assert path == tmp_path / "data/cifar10/cifar10_jpeg.parquet"
    table = pq.read_table(path)
    assert table.column_names == ["split", "label", "index_in_class", "image"]
    rows = table.to_pylist()
    places = [(row["split"], row["label"], row["index_in_class"]) for row in rows]
    assert places == [(s, c, i) for s, n in (("test", 3), ("train", 15)) for c in range(10) for i in range(n)]
    image = Image.open(io.BytesIO(rows[0]["image"]))
    assert (image.format, image.size, image.quantization[0][:4]) == ("JPEG", (32, 32), [8, 6, 5, 8])  # quality 75
    data = load_images(str(path), 32, 3)
    assert len(data.train) == 150 and len(data.test) == 30 and data.train.classes == [*map(str, range(10))]


def test_colours_of_cifar10_are_in_their_places(tmp_path):
    source = stand_in("cifar10", tmp_path / "given")
    red = bytes([3]) + bytes([250]) * 1024 + bytes(2048)
    names = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    tarred(tmp_path / "given/cifar-10-binary.tar.gz", {f"cifar-10-batches-bin/{name}": red for name in names})
    source.write({"x": tmp_path / "given/cifar-10-binary.tar.gz"}, tmp_path, unseen)
    pixel = Image.open(io.BytesIO(pq.read_table(tmp_path / "cifar10_jpeg.parquet").to_pylist()[0]["image"])).getpixel(
        (9, 9)
    )
    assert pixel[0] > 240 and max(pixel[1:]) < 15


def test_flowers_are_split_as_in_the_tables_and_by_their_authors(tmp_path):
    small, whole = written("flowers", tmp_path)
    rows = pq.read_table(small).to_pylist()
    assert [row["label"] for row in rows] == [0] * 10 + [1] * 10  # classes 2 and 3 are the first of the 51
    assert [row["split"] for row in rows] == (["train"] * 4 + ["test"]) * 4
    image = Image.open(io.BytesIO(rows[0]["image"]))
    assert image.size == (64, 64) and image.layer[0][1:3] == (1, 1)  # colours at full resolution
    assert image.getpixel((0, 0))[0] < 15  # number 1 is the darkest, so that the order is by number
    rows = pq.read_table(whole).to_pylist()
    assert sorted((row["label"], row["split"]) for row in rows).count((0, "train")) == 1
    assert Image.open(io.BytesIO(rows[-1]["image"])).size == (71, 90)  # as it was
    data = load_images(str(small), 64, 3)
    assert len(data.train) == 16 and len(data.test) == 4
    data = load_images(str(whole), 64, 3)
    assert len(data.train) == 5 and len(data.test) == 7


def test_the_51_classes_have_the_images_of_the_tables():
    # How many images each class of Oxford 102 Flowers has, as its authors say.
    sizes = (
        "40 60 40 56 65 45 40 85 46 45 87 87 49 48 49 41 85 82 49 56 40 59 91 42 41 41 40 66 78 85 52 45 46 40 43 75 108 56 41 67 "
        "127 59 130 93 40 196 67 71 49 92 258 85 93 61 71 109 67 114 67 109 50 55 54 52 102 61 42 54 54 62 78 96 194 171 120 107 "
        "251 137 41 105 166 112 131 86 63 58 63 154 184 82 76 66 46 162 128 91 66 82 63 49 58 48"
    ).split()
    assert len(sizes) == 102 and sum(map(int, sizes)) == 8189
    found = [int(sizes[number - 1]) for number in FIFTY_ONE]
    assert len(set(FIFTY_ONE)) == 51 and list(FIFTY_ONE) == sorted(FIFTY_ONE)
    tested = sum(size // 5 for size in found)
    assert {"train": sum(found) - tested, "test": tested} == SOURCES["flowers"].rows["flowers51.parquet"]


def test_fashion_mnist_is_read_as_a_folder(tmp_path):
    files = written("fashion-mnist", tmp_path)
    data = load_images(str(files[0].parent), 28, 1)
    assert len(data.train) == 40 and len(data.test) == 20 and len(data.train.classes) == 10


def test_sets_of_senteval_are_found_in_the_folder_of_all_data(tmp_path):
    stsb, sick, transfer = (written(name, tmp_path)[0] for name in ("stsb", "sick", "transfer"))
    assert tab_rows(stsb)[0] == "split genre file year id score sentence1 sentence2".split()
    assert [row[0] for row in tab_rows(stsb)[1:]] == ["train"] * 10 + ["dev"] * 10 + ["test"] * 10
    assert tab_rows(stsb)[1] == ["train", "main-x", "MSRvid", "2012test", "0000", "0.000", sentence(0), sentence(3)]
    assert tab_rows(sick)[0] == "split pair_id score entailment sentence1 sentence2".split()
    assert tab_rows(sick)[12] == ["trial", "1", "2.5", "NEUTRAL", sentence(1), sentence(2)]
    rows = tab_rows(transfer)
    assert rows[0] == ["task", "split", "label", "text"]
    assert rows[1] == ["MR", "all", "1", f"{sentence(0)} pos"] and rows[11] == ["MR", "all", "0", f"{sentence(0)} neg"]
    assert rows[21] == ["SST2", "train", "0", sentence(0)]
    assert ["TREC", "train", "HUM", "Who was Camarón ?"] in rows
    found = load_sets(["stsb", "sick-r", "mr", "sst2", "trec"], str(tmp_path / "data"))
    assert [len(found[name]) for name in ("stsb", "sick-r")] == [10, 10]  # those for testing
    assert len(found["mr"].parts["all"].labels) == 20 and set(found["sst2"].parts) == {"train", "validation", "test"}
    assert set(found["trec"].parts["train"].labels) == {"DESC", "NUM", "HUM"}


def test_the_archive_of_the_sts_benchmark_itself_is_read_too(tmp_path):
    source = stand_in("stsb", tmp_path / "given")
    files = {
        name.replace("./STS/STSBenchmark", "stsbenchmark"): text
        for name, text in senteval_files().items()
        if "STSB" in name
    }
    tarred(tmp_path / "Stsbenchmark.tar.gz", files)
    (path,) = obtain(source, tmp_path / "data", str(tmp_path / "Stsbenchmark.tar.gz")).files
    assert len(tab_rows(path)) == 31


def test_wikipedia_has_its_lines(tmp_path):
    (path,) = written("wiki", tmp_path)
    with lzma.open(path, "rt", encoding="utf-8") as file:
        assert [line.rstrip("\n") for line in file] == [sentence(n) for n in range(300)]


def test_snli_has_pairs_and_triples(tmp_path):
    pairs, triples = written("snli", tmp_path)
    assert tab_rows(pairs)[0] == ["split", "label", "premise", "hypothesis"]
    assert tab_rows(pairs)[1] == ["train", "entailment", sentence(0), f"entailment {sentence(1)}"]  # without its tab
    rows = tab_rows(triples)
    assert rows[0] == ["sent0", "sent1", "hard_neg"] and len(rows) == 21
    assert rows[1] == [sentence(0), f"entailment {sentence(1)}", f"contradiction {sentence(1)}"]


def test_zinc_has_splits_and_targets(tmp_path):
    whole, subset = written("zinc", tmp_path)
    table = read_table(str(whole))
    everything = [*(f"C{smiles}" for smiles in SMILES), *SMILES]
    assert table.smiles == everything and list(table.targets) == ["y"]
    assert table.splits == ["val"] * 4 + ["test"] * 4 + ["train"] * 16
    table = read_table(str(subset))
    assert table.splits == ["train"] * 8 + ["val"] * 2 + ["test"] * 2
    assert table.smiles[0] == everything[8 + 9] and table.smiles[8:] == [everything[n] for n in (1, 3, 4, 6)]


def test_targets_of_zinc_are_those_of_the_tables():
    # The first molecules of ZINC-250k with the figures that the tables were run on.
    score = penalised_logp()
    for smiles, value in (
        ("CC(C)(C)c1ccc2occ(CC(=O)Nc3ccccc3F)c2c1", 3.1399),
        ("C[C@@H]1CC(Nc2cncc(-c3nncn3C)c2)C[C@@H](C)C1", 0.1724),
        ("Cc1c(CCC(=O)O[C@@H](C)c2ccc(Cl)s2)cnn1C", 1.0147),
    ):
        assert score(smiles) == pytest.approx(value, abs=2e-3)  # versions of RDKit differ a little
    assert score("C1CCCCCCC1") < score("C1CCCCC1") - 6  # two atoms more in the ring, of deviation 0.286


def test_moleculenet_is_as_published_with_plain_line_ends(tmp_path):
    files = written("moleculenet", tmp_path)
    for path in files:
        with gzip.open(path) as file:
            assert b"\r" not in file.read()
    found = tables_in(str(files[0].parent))
    assert set(found) == {"esol", "freesolv", "lipophilicity", "bbbp"}
    targets = {name: list(read_table(path).targets) for name, path in found.items()}
    assert targets["esol"] == ["measured log solubility in mols per litre"] and targets["bbbp"] == ["p_np"]
    with gzip.open(files[0], "rt", newline="") as file:
        assert next(csv.DictReader(file))["Compound ID"] == "0, a name"


def test_the_same_originals_give_the_same_bytes(tmp_path):
    for name in ("stsb", "zinc", "moleculenet", "cifar10"):
        first, second = (written(name, tmp_path / folder) for folder in ("a", "b"))
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
