"""Folders as OGB unpacks them: to train on, to test a model on, and with a split that is a pickle."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sepnorm import SepNormError
from sepnorm.domains.molecules.config import PRESETS, MoleculeConfig
from sepnorm.domains.molecules.data import load_molecules, load_probed
from sepnorm.domains.molecules.folders import tables_in
from sepnorm.domains.molecules.tables import read_table

SMILES = [f"{'C' * (i % 6)}N{'C' * (i // 6)}O" for i in range(30)]


def config(data: str, **changes: Any) -> MoleculeConfig:
    return PRESETS["demo"].changed({"data": data} | changes)


def ogb_folder(folder: Path, named: str = "5") -> str:
    """As OGB unpacks ogbg-molpcba: a packed table, and lists of rows."""
    rows = [f"{SMILES[i]},{i % 2},{(i // 2) % 2 if i % 5 else ''},CID{i}" for i in range(30)]
    for name, lines in {
        "mapping/mol.csv.gz": ["smiles,PCBA-1,PCBA-2,mol_id", *rows],
        "split/scaffold/train.csv.gz": [str(row) for row in range(6, 30)],
        "split/scaffold/valid.csv.gz": ["0", "1", "2"],
        "split/scaffold/test.csv.gz": ["3", "4", named],
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(folder / name, "wt") as file:
            file.write("\n".join(lines) + "\n")
    return str(folder)


def test_a_folder_of_ogb_has_its_targets_and_its_split(tmp_path):
    data = load_molecules(config(ogb_folder(tmp_path)))
    assert data.names == ["PCBA-1", "PCBA-2"] and data.classes
    assert [len(part) for part in (data.train, data.valid, data.test)] == [24, 3, 3]
    assert data.test.smiles == SMILES[3:6]
    with pytest.raises(SepNormError, match=r"names the row '99' for test, and .* has 30 rows"):
        load_molecules(config(ogb_folder(tmp_path, "99")))


def test_a_model_is_tested_on_folders_of_ogb_by_their_own_splits(tmp_path):
    ogb_folder(tmp_path / "ogbg_molpcba")
    (tmp_path / "esol.csv").write_text("\n".join(["smiles,y", *(f"C1{'C' * i}C1,{i}" for i in range(1, 41))]))
    assert list(tables_in(str(tmp_path))) == ["esol", "ogbg_molpcba"]
    for place in (tmp_path, tmp_path / "ogbg_molpcba"):
        found = load_probed(config("nci", task="pretrain", test=str(place)))["ogbg_molpcba"]
        assert found.names == ["PCBA-1", "PCBA-2"] and found.test.smiles == SMILES[3:6]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SepNormError, match="or folders of OGB"):
        tables_in(str(tmp_path / "empty"))


def test_tables_are_named_without_their_suffixes_and_no_name_stands_for_two(tmp_path):
    for name in ("tox21.v1.csv", "tox21.v2.csv.gz", "tox21.parquet"):
        (tmp_path / name).touch()
    assert list(tables_in(str(tmp_path))) == ["tox21", "tox21.v1", "tox21.v2"]
    (tmp_path / "tox21.csv.gz").touch()
    with pytest.raises(
        SepNormError, match=r"has two tables named 'tox21', .*tox21\.csv\.gz and .*tox21\.parquet: rename"
    ):
        tables_in(str(tmp_path))


def pcqm_folder(folder: Path, split: Any = None) -> str:
    """As OGB unpacks PCQM4Mv2: a packed table, and a pickle with the rows of each split. Test labels are missing."""
    (folder / "raw").mkdir(parents=True)
    with gzip.open(folder / "raw/data.csv.gz", "wt") as file:
        rows = (f"{i},{text},{i / 7 if i < 26 else ''}" for i, text in enumerate(SMILES))
        file.write("\n".join(["idx,smiles,homolumogap", *rows]) + "\n")
    parts = {"train": (0, 20), "valid": (20, 26), "test-dev": (26, 28), "test-challenge": (28, 30)}
    torch.save(split or {name: np.arange(*ends) for name, ends in parts.items()}, folder / "split_dict.pt")
    return str(folder)


def test_pcqm4mv2_is_tested_on_its_validation_molecules(tmp_path):
    data = load_molecules(PRESETS["pcqm4mv2"].changed({"data": pcqm_folder(tmp_path)}))
    assert data.names == ["homolumogap"] and data.test.smiles == SMILES[20:26]
    assert sorted([*data.train.smiles, *data.valid.smiles]) == sorted(SMILES[:20]) and len(data.valid) == 2
    assert len(read_table(str(tmp_path), labelled=False).smiles) == 30
    (tmp_path / "split_dict.pt").unlink()
    assert read_table(str(tmp_path)).splits is None


def test_an_old_numpys_name_of_arrays_is_known_too(tmp_path):
    folder = Path(pcqm_folder(tmp_path))
    written = (folder / "split_dict.pt").read_bytes()
    other = (b"numpy._core.multiarray", b"numpy.core.multiarray")
    new, old = other if other[0] in written else other[::-1]
    assert new in written
    source = zipfile.ZipFile(io.BytesIO(written))
    with zipfile.ZipFile(folder / "split_dict.pt", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(new, old))
    assert read_table(str(folder)).splits.count("train") == 20


class Hostile:
    """A pickle that would run a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class ManyRows:
    """A pickle of some bytes that stands for more rows than can be looked at."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray, ((10**15,), np.dtype(np.int64), b"\0" * 8, 0, (0,))


class ManyBytes:
    """A pickle of some bytes that would take a mebibyte, or as much as it says."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (2**20,)


def test_a_split_that_is_no_split_is_refused_and_runs_nothing(tmp_path):
    ran = tmp_path / "ran"
    train = np.arange(20)
    for number, (split, words) in enumerate(
        {
            "code": (Hostile(f"touch {ran}"), "holds more than rows by split, .*: (posix|nt).system"),
            "code inside": ({"train": train, "valid": Hostile(f"touch {ran}")}, "nothing else is unpickled"),
            "none": ({"train": np.frombuffer(b"", np.int64), "valid": train}, "is unpickled|names other rows"),
            "objects": ({"train": train, "valid": np.array([{}], dtype=object)}, "nothing else is unpickled"),
            "a list": ([1, 2], "nothing else is unpickled"),
            "no valid": ({"train": train}, "nothing else is unpickled"),
            "outside": ({"train": train, "valid": np.array([30])}, "names other rows for valid than the 30 of"),
            "negative": ({"train": np.array([-1]), "valid": train}, "names other rows for train than the 30 of"),
            "a table": ({"train": train[None], "valid": train}, "train is no list of whole numbers"),
            "fractions": ({"train": train / 2, "valid": train}, "train is no list of whole numbers"),
            "bytes beside it": ({"train": train, "valid": train, "test": ManyBytes()}, ": __builtin__.bytearray"),
            "many": ({"train": ManyRows(), "valid": train}, "nothing else is unpickled"),
        }.values()
    ):
        with pytest.raises(SepNormError, match=words):
            read_table(pcqm_folder(tmp_path / str(number), split))
    assert not ran.exists()
    (tmp_path / "0/split_dict.pt").write_bytes(b"no archive")
    with pytest.raises(SepNormError, match="no checkpoint that torch"):
        read_table(str(tmp_path / "0"))
