"""ZINC-250k, ZINC-12k, and four tables of MoleculeNet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sepnorm.errors import SepNormError
from sepnorm.sources.records import Original, Progress, Rows, Source
from sepnorm.sources.written import decoded, gzipped, lines_of, write_csv

_ALL = "250k_rndm_zinc_drugs_clean_3.csv"
#: Mean and deviation over ZINC-250k of logP, negative synthetic accessibility and cycles (Jin et al., ICML 2018).
_SCALES = (
    (2.4570953396190123, 1.434324401111988),
    (-3.0525811293166134, 0.8335207024513095),
    (-0.0485696876403053, 0.2860212110245455),
)
_TABLES = {
    "esol": ("delaney-processed.csv", "measured log solubility in mols per litre"),
    "freesolv": ("SAMPL.csv", "expt"),
    "lipophilicity": ("Lipophilicity.csv", "exp"),
    "bbbp": ("BBBP.csv", "p_np"),
}


def penalised_logp() -> Callable[[str], float]:
    """The target function of ZINC-12k: logP minus synthetic accessibility minus large rings, each standardised."""
    import networkx
    from rdkit import Chem, rdBase
    from rdkit.Chem.rdMolDescriptors import CalcCrippenDescriptors
    from rdkit.Chem.rdmolops import GetAdjacencyMatrix
    from rdkit.Contrib.SA_Score import sascorer

    def score(smiles: str) -> float:
        with rdBase.BlockLogs():
            molecule = Chem.MolFromSmiles(smiles)
        if molecule is None:
            raise SepNormError(f"{smiles!r} of ZINC is no molecule to RDKit.")
        cycles = networkx.cycle_basis(networkx.Graph(GetAdjacencyMatrix(molecule)))
        large = max(0, max(map(len, cycles), default=0) - 6)
        parts = (CalcCrippenDescriptors(molecule)[0], -sascorer.calculateScore(molecule), -large)
        return sum((part - mean) / deviation for part, (mean, deviation) in zip(parts, _SCALES, strict=True))

    return score


def write_zinc(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Writes ``zinc250k.csv.gz`` in the published order, and ``zinc12k.csv.gz`` by the benchmark's indices."""
    everything = csv.DictReader(io.StringIO(decoded(originals[_ALL].read_bytes()), newline=""))
    if "smiles" not in (everything.fieldnames or ()):
        raise SepNormError(f"{originals[_ALL]} has no column smiles: is it another file?")
    molecules = [row["smiles"].strip() for row in everything]
    parts = {
        split: [line.split()[0] for line in lines_of(originals[file].read_bytes())]
        for split, file in (("train", "train.txt"), ("val", "valid.txt"), ("test", "test.txt"))
    }
    chosen = {split: _chosen(originals[f"{split}.index"], smiles) for split, smiles in parts.items()}
    known: dict[str, str] = {}
    score = penalised_logp()

    def target(smiles: str) -> str:
        if smiles not in known:
            known[smiles] = str(round(score(smiles), 4))
        return known[smiles]

    split_of = {smiles: split for split in ("val", "test") for smiles in parts[split]}
    with progress("ZINC-250k, molecules") as tick:

        def rows() -> Iterator[tuple[str, str, str]]:
            for number, smiles in enumerate(molecules):
                if tick is not None and number % 500 == 0:
                    tick(number, len(molecules))
                yield smiles, split_of.get(smiles, "train"), target(smiles)

        columns = ("smiles", "split", "y")
        counts = write_csv(folder / "zinc250k.csv.gz", columns, rows())
        subset = ((smiles, split, target(smiles)) for split, found in chosen.items() for smiles in found)
        return {
            "zinc250k.csv.gz": counts,
            "zinc12k.csv.gz": write_csv(folder / "zinc12k.csv.gz", columns, subset),
        }


def _chosen(index: Path, molecules: list[str]) -> list[str]:
    """The molecules whose row numbers are in a comma-separated file."""
    words = [word for word in decoded(index.read_bytes()).strip().split(",") if word.strip()]
    if bad := next((word for word in words if not word.strip().isdecimal() or int(word) >= len(molecules)), None):
        raise SepNormError(f"{index} has {bad.strip()[:20]!r}, which is no number below {len(molecules):,}.")
    numbers = [int(word) for word in words]
    if len(set(numbers)) < len(numbers):
        raise SepNormError(f"{index} names a molecule twice: is it another file?")
    return [molecules[number] for number in numbers]


def write_moleculenet(originals: Mapping[str, Path], folder: Path, progress: Progress) -> Rows:
    """Copies the tables, with line feeds as line ends."""
    rows = {}
    for name, (file, column) in _TABLES.items():
        text = decoded(originals[file].read_bytes()).replace("\r\n", "\n")
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        if missing := {"smiles", column} - set(table.fieldnames or ()):
            raise SepNormError(f"{originals[file]} has no column {missing.pop()!r}: is it another file?")
        try:
            rows[f"{name}.csv.gz"] = {"all": sum(1 for _ in table)}
        except csv.Error as error:
            raise SepNormError(f"{originals[file]} cannot be read: {error}.") from error
        with gzipped(folder / f"{name}.csv.gz") as packed:
            packed.write(text)
    return rows


_VAE = "https://raw.githubusercontent.com/aspuru-guzik-group/chemical_vae/master/models/zinc_properties/"
_JTNN = "https://raw.githubusercontent.com/wengong-jin/icml18-jtnn/master/data/zinc/"
_BENCHMARK = "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/master/data/molecules/"
_DEEPCHEM = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/"
MOLECULES = (
    Source(
        "zinc",
        "ZINC-250k and ZINC-12k: SMILES with penalised logP, computed by RDKit in some minutes",
        "https://github.com/graphdeeplearning/benchmarking-gnns",
        "ZINC is free to use",
        "35 MB",
        "ZINC-12k, pretraining on ZINC-250k, healing, cost of molecules",
        (
            Original(_VAE + _ALL, "md5:b59078b2b04c6e9431280e3dc42048d5"),
            *(Original(f"{_JTNN}{name}.txt") for name in ("train", "valid", "test")),
            *(Original(f"{_BENCHMARK}{name}.index") for name in ("train", "val", "test")),
        ),
        {
            "zinc250k.csv.gz": {"train": 220_010, "val": 24_445, "test": 5000},
            "zinc12k.csv.gz": {"train": 10_000, "val": 1000, "test": 1000},
        },
        write_zinc,
        {"zinc250k.csv.gz": "f2fc9c700bb4d0c0456b354aa029ef8f36bd5ed40a8f996367e40a1bb7027524"},
    ),
    Source(
        "moleculenet",
        "ESOL, FreeSolv, Lipophilicity, BBBP: SMILES with a property",
        "https://moleculenet.org",
        "none stated; DeepChem, which distributes them, is MIT",
        "0.6 MB",
        "pretraining on ZINC-250k, pooling",
        (
            Original(f"{_DEEPCHEM}delaney-processed.csv", "md5:0c90a51668d446b9e3ab77e67662bd1c"),
            Original(f"{_DEEPCHEM}SAMPL.csv"),
            Original(f"{_DEEPCHEM}Lipophilicity.csv", "md5:85a0e1cb8b38b0dfc3f96ff47a57f0ab"),
            Original(f"{_DEEPCHEM}BBBP.csv", "md5:66286cb9e6b148bd75d80c870df580fb"),
        ),
        {
            "esol.csv.gz": {"all": 1128},
            "freesolv.csv.gz": {"all": 642},
            "lipophilicity.csv.gz": {"all": 4200},
            "bbbp.csv.gz": {"all": 2050},
        },
        write_moleculenet,
        {
            "esol.csv.gz": "8c06a76f0c6487d29ab0f903e6a7a7139f189ab3c1178f159c8be8964602f189",
            "freesolv.csv.gz": "a4fbf3b28fe2e604d6bd7ea0e20b4494ff732400a80f58d1b393677cfbc1b06c",
            "lipophilicity.csv.gz": "fffbf569f519cf1356108bfa42818369d1a104c7dd96576ca01cba3d19924384",
            "bbbp.csv.gz": "6aecd84110e8c0549bc4e2e486c52267d4e775178fca8999f5465029e31e75bb",
        },
        "deepchem",
    ),
)
