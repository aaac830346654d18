"""STS Benchmark, SICK, MR, SST2, TREC, a million sentences of Wikipedia, SNLI."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from sepnorm.errors import SepNormError
from sepnorm.sources.archives import tar_named, zip_lines
from sepnorm.sources.records import Original, Progress, Rows, Source
from sepnorm.sources.written import lines_of, tab_cells, write_tsv

_SNLI_PARTS = ("train", "dev", "test")


def write_stsb(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Writes the three splits as one table."""
    (archive,) = originals.values()
    files = tar_named(archive, {split: f"sts-{split}.csv" for split in ("train", "dev", "test")}, progress)
    rows = ((split, *row[:7]) for split, content in files.items() for row in tab_cells(content, f"sts-{split}.csv", 7))
    columns = ("split", "genre", "file", "year", "id", "score", "sentence1", "sentence2")
    return {"stsb.tsv.gz": write_tsv(folder / "stsb.tsv.gz", columns, _in_order(rows, "train", "dev", "test"))}


def write_sick(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Writes the three splits as one table."""
    (archive,) = originals.values()
    ends = {"train": "SICK_train.txt", "trial": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
    rows: list[tuple[str, ...]] = []
    for split, content in tar_named(archive, ends, progress).items():
        head, *body = tab_cells(content, ends[split], 5)
        if head[0] != "pair_ID":
            raise SepNormError(f"{ends[split]} of {archive} begins with {head[0]!r}, and pair_ID is expected.")
        rows += [(split, number, score, judged, a, b) for number, a, b, score, judged, *_ in body]
    columns = ("split", "pair_id", "score", "entailment", "sentence1", "sentence2")
    return {"sick.tsv.gz": write_tsv(folder / "sick.tsv.gz", columns, _in_order(rows, *ends))}


def _in_order(rows: Iterable[tuple[str, ...]], *splits: str) -> list[tuple[str, ...]]:
    """Rows ordered by split, independent of the order in the archive."""
    return sorted(rows, key=lambda row: splits.index(row[0]))


def write_transfer(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Writes MR, SST2 and TREC as one table with a column ``task``."""
    (archive,) = originals.values()
    ends = {"1": "MR/rt-polarity.pos", "0": "MR/rt-polarity.neg"}
    ends |= {split: f"SST/binary/sentiment-{split}" for split in ("train", "dev", "test")}
    ends |= {"questions": "TREC/train_5500.label", "answered": "TREC/TREC_10.label"}
    files = tar_named(archive, ends, progress)
    rows: list[tuple[str, ...]] = []
    for label in ("1", "0"):
        rows += [("MR", "all", label, line.strip()) for line in lines_of(files[label])]
    for split in ("train", "dev", "test"):
        rows += [("SST2", split, row[1], row[0]) for row in tab_cells(files[split], ends[split], 2)]
    for key, split in (("questions", "train"), ("answered", "test")):
        for line in lines_of(files[key]):
            label, _, question = line.partition(" ")
            rows.append(("TREC", split, label.partition(":")[0], question.strip()))
    write_tsv(folder / "transfer_single.tsv.gz", ("task", "split", "label", "text"), rows)
    return {"transfer_single.tsv.gz": Counter(f"{task} {split}" for task, split, *_ in rows)}


def write_wiki(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Compresses the lines unchanged."""
    (path,) = originals.values()
    count, done, size = 0, 0, max(1, path.stat().st_size)
    with (
        progress(f"{path.name}, MiB") as tick,
        open(path, "rb") as lines,
        lzma.open(folder / "wiki_1m.txt.xz", "wb", preset=1) as file,
    ):
        while line := lines.readline(2**20):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise SepNormError(f"line {count + 1} of {path} is no text in UTF-8: {error}.") from error
            file.write(line)
            count, done = count + 1, done + len(line)
            if tick is not None and count % 10_000 == 0:
                tick(done // 2**20, size // 2**20)
    return {"wiki_1m.txt.xz": {"all": count}}


def write_snli(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Writes all pairs, and triples of the training split: premise, entailment, contradiction."""
    (archive,) = originals.values()
    with progress(archive.name):
        pairs = list(chain.from_iterable(_pairs(archive, split) for split in _SNLI_PARTS))
        counts = write_tsv(folder / "snli_pairs.tsv.gz", ("split", "label", "premise", "hypothesis"), pairs)
        triples = list(_triples(pairs))
        write_tsv(folder / "snli_triples.tsv.gz", ("sent0", "sent1", "hard_neg"), triples)
    return {"snli_pairs.tsv.gz": counts, "snli_triples.tsv.gz": {}}  # the number of triples is not published


def _pairs(archive: Path, split: str) -> Iterator[tuple[str, str, str, str]]:
    name = f"snli_1.0/snli_1.0_{split}.jsonl"
    for number, line in enumerate(zip_lines(archive, name), 1):
        try:
            row = json.loads(line)
            texts = [" ".join(str(row[key]).split()) for key in ("sentence1", "sentence2")]
            yield split, str(row["gold_label"]), texts[0], texts[1]
        except (ValueError, LookupError, TypeError) as error:
            raise SepNormError(f"line {number} of {name} in {archive} is no pair of SNLI: {error}.") from error


def _triples(pairs: list[tuple[str, str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Pairs the n-th entailment of each premise with its n-th contradiction."""
    by_premise: dict[str, tuple[list[str], list[str]]] = {}
    for split, label, premise, hypothesis in pairs:
        if split == "train" and label in ("entailment", "contradiction"):
            by_premise.setdefault(premise, ([], []))[label == "contradiction"].append(hypothesis)
    for premise, (entailed, contradicting) in by_premise.items():
        for first, second in zip(entailed, contradicting, strict=False):
            yield premise, first, second


_SIMCSE = "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse"
_SENTEVAL = (Original(f"{_SIMCSE}/resolve/main/senteval.tar"),)
SENTENCES = (
    Source(
        "stsb",
        "STS Benchmark: pairs of sentences rated 0 to 5, as SentEval has them",
        "https://ixa2.si.ehu.eus/stswiki",
        "scores CC BY-SA 4.0; each source of texts has its own terms",
        "one archive with sick and transfer",
        "Text: SimCSE, healing, studies at --scale small",
        _SENTEVAL,
        {"stsb.tsv.gz": {"train": 5749, "dev": 1500, "test": 1379}},
        write_stsb,
        {"stsb.tsv.gz": "bbf3621158c35b17f556ac2b55fd79feb8f7e6f288c89624dc2cfd1ffa7a513d"},
        "senteval",
    ),
    Source(
        "sick",
        "SICK: pairs of sentences rated 1 to 5",
        "https://zenodo.org/records/2787612",
        "CC BY-NC-SA 3.0: not for commerce",
        "one archive with stsb and transfer",
        "Text: SimCSE",
        _SENTEVAL,
        {"sick.tsv.gz": {"train": 4500, "trial": 500, "test": 4927}},
        write_sick,
        {"sick.tsv.gz": "c33642a5336cf64ea48b991f66a3a5824d9015665a6a367f72187574d54ac9a0"},
        "senteval",
    ),
    Source(
        "transfer",
        "MR, SST2, TREC: sentences with classes, as SentEval has them",
        "https://github.com/facebookresearch/SentEval",
        "none stated",
        "one archive with stsb and sick",
        "Text: SimCSE, study tuning",
        _SENTEVAL,
        {
            "transfer_single.tsv.gz": {
                "MR all": 10_662,
                "SST2 train": 67_349,
                "SST2 dev": 872,
                "SST2 test": 1821,
                "TREC train": 5452,
                "TREC test": 500,
            }
        },
        write_transfer,
        {"transfer_single.tsv.gz": "0f3c1a1b462aac42f64860d82f306c7baae341a5c607a733874e10fe7dc2191f"},
        "senteval",
    ),
    Source(
        "wiki",
        "a million sentences of English Wikipedia, those of SimCSE",
        _SIMCSE,
        "CC BY-SA 3.0 and GFDL",
        "about 120 MB",
        "Text: SimCSE, healing, cost of text",
        (Original(f"{_SIMCSE}/resolve/main/wiki1m_for_simcse.txt"),),
        {"wiki_1m.txt.xz": {"all": 1_000_000}},
        write_wiki,
    ),
    Source(
        "snli",
        "pairs of sentences: entailment, contradiction or neither; and triples",
        "https://nlp.stanford.edu/projects/snli/",
        "CC BY-SA 4.0",
        "90 MB",
        "SimCSE with hard negatives, of your own",
        (
            Original(
                "https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
                "sha256:afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
            ),
        ),
        {"snli_pairs.tsv.gz": {"train": 550_152, "dev": 10_000, "test": 10_000}, "snli_triples.tsv.gz": {}},
        write_snli,
    ),
)
