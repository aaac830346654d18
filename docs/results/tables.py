"""The command behind each table, which tables have no record yet, and the rows and pictures that are drawn from records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sepnorm.sources.registry import SOURCES
from sepnorm.studies.plan import STUDIES

#: Where docs/data.md puts each file and folder that a command names; ``.`` is all of it.
_WRITTEN = {
    ".": "data",
    "model": "data/flowers-run/model",
    **{name: f"data/{name}" for name in SOURCES},
    **{file: f"data/{name}/{file}" for name, source in SOURCES.items() for file in source.rows},
}


@dataclass(frozen=True)
class Table:
    """A command. ``{name}`` in its words is a file or folder of the data."""

    words: str
    folder: str = ""  #: of its runs, from the top of the repository, where other commands read them

    @property
    def kind(self) -> str:
        """``compare``, ``study``, or ``script`` for a Python file whose output is kept as it is."""
        first = self.words.split()[0]
        return "script" if first.endswith(".py") else first if first in ("compare", "study") else "command"

    @property
    def command(self) -> str:
        """As a reader types it where ``sepnorm data`` has written its files."""
        return self._of(" ".join(self.with_data({name: Path(_WRITTEN[name]) for name in self.needs()})))

    @property
    def recorded(self) -> str:
        """As its record keeps it: files by name, wherever they were."""
        return self._of(re.sub(r"[{}]", "", self.words))

    def _of(self, words: str) -> str:
        return f"python {words}" if self.kind == "script" else f"sepnorm {words}"

    def needs(self) -> list[str]:
        return re.findall(r"\{([^}]+)\}", self.words)

    def with_data(self, found: dict[str, Path]) -> list[str]:
        return re.sub(r"\{([^}]+)\}", lambda name: str(found[name[1]]), self.words).split()


_THREE = "--norms ln,bn@final,bn+bn@final"
_FIVE = "--norms ln,bn@final,bn+ln@final,bn+bn@final,ln+ln@final"
_DEMO = "runs/compare-images-demo"  # where the command itself puts it
_FIRST = f"{_DEMO}/runs/ln-seed0/embeddings.npz"
TABLES = {
    "demo": Table("compare images", _DEMO),
    "demo-diagnosis": Table(f"diagnose {_FIRST}"),
    "mean-of-tokens": Table(f"docs/results/mean_of_tokens.py {_DEMO} digits"),
    "demo-healing": Table(f"heal {_FIRST} --out healed"),
    "digits": Table(
        "compare images --seeds 5 --set epochs=40 --norms ln,bn@final,bn+ln@final,bn+bn@final,ln+ln@final,bn+ln@all,bn+bn@all"
    ),
    "flowers51-6": Table(f"compare images --data {{flowers51.parquet}} {_FIVE} --seeds auto --most 6 --set epochs=6"),
    "flowers51-25": Table(
        f"compare images --data {{flowers51.parquet}} {_THREE} --seeds auto --most 3 --set epochs=25"
    ),
    "cifar10": Table(
        f"compare images --preset small --data {{cifar10_jpeg.parquet}} {_THREE} --seeds auto --most 3 --set epochs=4"
    ),
    "lee": Table("compare text --seeds 5"),
    "wikipedia": Table(
        "compare text --preset small --data {wiki_1m.txt.xz} --seeds 3 --norms ln,bn+ln@final,bn+ln@all --set max_steps=150 "
        "--set test={.} --set on=stsb,sick-r,mr,trec --set development={stsb.tsv.gz} --set evaluate_every=75"
    ),
    "nci": Table("compare molecules --seeds 5"),
    "zinc12k": Table(
        "compare molecules --preset slim --data {zinc12k.csv.gz} --seeds auto --most 3 --norms ln,bn@final,bn+ln@final "
        "--set schedule=cosine --set epochs=4 --set learning_rate=2e-3 --set warmup=0.05 --set attention_dropout=0 "
        "--set activation_dropout=0"
    ),
    "moleculenet": Table(
        "compare molecules --data {zinc250k.csv.gz} --set task=pretrain --set contrastive_weight=0.1 --set molecules=37500 "
        "--set train_molecules=25000 --set split=random --set test={moleculenet} --norms ln,bn@final,bn+ln@final --seeds 5 "
        "--set max_atoms=128 --set epochs=1 --set learning_rate=1e-3"
    ),
    **{name: Table(f"study {name}") for name, study in STUDIES.items() if study.ours},
    "tuning": Table("study tuning --data transfer={transfer} --set steps=60"),
    "bench": Table("benchmarks/norm_overhead.py"),
    "bench-images": Table("benchmarks/images.py --rounds 3 --steps 6"),
    "bench-text": Table("benchmarks/text.py --sentences {wiki_1m.txt.xz} --rounds 3 --steps 3 --count 256 --threads 1"),
    "bench-molecules": Table("benchmarks/molecules.py --data {zinc12k.csv.gz} --rounds 7"),
    "bench-mixture": Table("benchmarks/mixture.py --steps 10"),
    "bench-pooling": Table("benchmarks/pooling.py --threads 1"),
    "pooling-sketch": Table("benchmarks/pooling.py --model {model} --data {flowers51.parquet}"),
    "bench-healing": Table("benchmarks/healing.py"),
    "bench-monitor": Table("benchmarks/monitor.py"),
    "bench-workers": Table("benchmarks/input_pipeline.py --images 1024 --steps 40 --rounds 1"),
    "bench-streaming": Table("benchmarks/streaming.py {zinc250k.csv.gz}"),
    "bench-processes": Table("benchmarks/distributed.py --rounds 7 --steps 24"),
    "bench-layer": Table("benchmarks/distributed.py --layer"),
    "bench-previous": Table("benchmarks/distributed.py --previous --rounds 4"),
    "cost-model": Table("benchmarks/cost_model.py --rounds 5 --decoded 370"),
    "bench-accumulation": Table("benchmarks/accumulation.py"),
    "bench-accumulation-probes": Table("benchmarks/accumulation.py --probes 4"),
    "decisions": Table("benchmarks/decisions.py"),
    "pretrained": Table("benchmarks/pretrained.py --data {stsb.tsv.gz} --sentences {wiki_1m.txt.xz}"),
    "healing": Table("docs/results/healing.py --data {.}"),
}

#: Shown on a page and not yet in records/: the page has an older table, or none, and says so. Delete a name when its record comes.
PENDING = set(
    """
    digits wikipedia
    seeds sites batch-size momentum num-cls rms probe pooling whitening calibration bench
    bench-images bench-text pooling-sketch bench-healing bench-monitor
    bench-workers bench-streaming bench-layer bench-previous cost-model bench-accumulation
    bench-accumulation-probes decisions pretrained healing
    """.split()
)
#: What such a table begins with.
NOT_YET = "> Not yet run again with the current version."


@dataclass(frozen=True)
class Row:
    """A line of the table of all results: separate norms against shared ones by one metric."""

    data: str
    link: str  #: from docs/
    record: str
    metric: str
    name: str
    separate: str = "bn+bn@final"
    front: bool = True  #: whether the front page has it


#: The table of the front page, in this order; rows without a record are left out.
OVERVIEW = [
    Row("digits, 16 epochs", "results/images.md#digits", "demo", "cls_linear_top1", "linear"),
    Row("Flowers-51, 6 epochs", "results/images.md#flowers-51", "flowers51-6", "cls_linear_top1", "linear", front=False),
    Row("Flowers-51, 25 epochs", "results/images.md#flowers-51", "flowers51-25", "cls_linear_top1", "linear"),
    Row("CIFAR-10, 4 epochs", "results/images.md#cifar-10", "cifar10", "cls_linear_top1", "linear"),
    Row("digits, 40 epochs", "results/images.md#digits", "digits", "cls_linear_top1", "linear", front=False),
    Row("Wikipedia", "results/text.md#wikipedia", "wikipedia", "cls_sts_average", "Spearman", "bn+ln@final"),
    Row("Lee corpus", "results/text.md#lee-corpus", "lee", "cls_sts_average", "Spearman", "bn+ln@final"),
    Row("ZINC-250k", "results/molecules.md#zinc-250k", "moleculenet", "probe_mae", "MAE (lower)", "bn+ln@final"),
    Row("NCI, with labels", "results/molecules.md#nci", "nci", "test_mae", "MAE (lower)", "bn+ln@final", front=False),
    Row("ZINC-12k", "results/molecules.md#zinc-12k", "zinc12k", "test_mae", "MAE (lower)", "bn+ln@final"),
]  # fmt: skip


@dataclass(frozen=True)
class Pooled:
    """Lines of the table of poolings: [CLS], mean and moments of the same runs, by one metric with one arm a line."""

    data: str
    link: str  #: from docs/
    record: str
    metric: str  #: of the mean is ``mean_METRIC``, of moments ``moments_METRIC``
    name: str
    separate: str = "bn+bn@final"
    prefix: str = "cls_"  #: of the metric of [CLS]


_MOLECULES = "results/molecules.md#zinc-250k"
#: The table of poolings, in this order; lines without a record are left out.
POOLINGS = [
    Pooled("digits, 16 epochs", "results/images.md#digits", "demo", "linear_top1", "linear probe"),
    Pooled("Flowers-51, 6 epochs", "results/images.md#flowers-51", "flowers51-6", "linear_top1", "linear probe"),
    Pooled("Flowers-51, 25 epochs", "results/images.md#flowers-51", "flowers51-25", "linear_top1", "linear probe"),
    Pooled("CIFAR-10, 4 epochs", "results/images.md#cifar-10", "cifar10", "linear_top1", "linear probe"),
    Pooled("STS-B and SICK-R", "results/text.md#wikipedia", "wikipedia", "sts_average", "Spearman", "bn+ln@final"),
    Pooled("Lee corpus", "results/text.md#lee-corpus", "lee", "sts_average", "Spearman", "bn+ln@final"),
    Pooled("ZINC-250k", _MOLECULES, "moleculenet", "probe_mae", "MAE (lower)", "bn+ln@final", ""),
    Pooled("ESOL", _MOLECULES, "moleculenet", "probe_esol_rmse", "RMSE (lower)", "bn+ln@final", ""),
    Pooled("FreeSolv", _MOLECULES, "moleculenet", "probe_freesolv_rmse", "RMSE (lower)", "bn+ln@final", ""),
    Pooled("Lipophilicity", _MOLECULES, "moleculenet", "probe_lipophilicity_rmse", "RMSE (lower)", "bn+ln@final", ""),
    Pooled("BBBP", _MOLECULES, "moleculenet", "probe_bbbp_roc_auc", "ROC AUC", "bn+ln@final", ""),
]  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """Drawn from a record with spectra: the score of every seed beside the singular values of [CLS]."""

    file: str
    metric: str
    score: str
    arms: tuple[str, ...]


PICTURES = {
    "demo": Picture("images.svg", "cls_linear_top1", "Linear probe accuracy, a dot a seed", ("ln", "bn@final", "bn+bn@final")),
    "wikipedia": Picture("text.svg", "cls_sts_average", "STS-B and SICK-R, a dot a seed", ("ln", "bn+ln@all", "bn+ln@final")),
    "moleculenet": Picture("molecules.svg", "probe_mae", "Error of a probe, a dot a seed", ("ln", "bn@final", "bn+ln@final")),
}  # fmt: skip
