"""Featurises many molecules in several processes, and caches them as Arrow files of ``datasets`` for the next run."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sepnorm.data.records import quiet_datasets
from sepnorm.distributed import cores
from sepnorm.domains.molecules.features import Rejected, featurise
from sepnorm.domains.molecules.graphs import Graphs, feature_set
from sepnorm.files import DAMAGE

_FEW = 20_000  # fewer molecules take seconds and are not cached
_AT_ONCE = 1000
_ARRAYS = ("atoms", "bonds", "bond_features")
_FORM = 1  # version of the cache: a new number ignores old files


def featurise_many(smiles: Sequence[Any], kind: str, max_atoms: int) -> tuple[Graphs, list[Rejected]]:
    """``featurise`` with a cache in ``HF_DATASETS_CACHE``, for many molecules."""
    if len(smiles) < _FEW or not all(isinstance(text, str) for text in smiles):
        return featurise(smiles, kind, max_atoms=max_atoms)
    try:
        return _opened(_kept(smiles, kind, max_atoms), smiles, kind)
    except DAMAGE:  # full or read-only disk, damaged file: work without the cache
        return featurise(smiles, kind, max_atoms=max_atoms)


def _kept(smiles: Sequence[str], kind: str, max_atoms: int) -> Any:
    import rdkit

    datasets = quiet_datasets()
    key = hashlib.blake2b(f"{_FORM} {rdkit.__version__} {kind} {max_atoms}".encode(), digest_size=16)
    for text in smiles:
        key.update(text.encode("utf-8", "surrogatepass") + b"\0")
    place = Path(datasets.config.HF_DATASETS_CACHE) / "sepnorm"
    place.mkdir(parents=True, exist_ok=True)
    binary = dict.fromkeys(_ARRAYS, datasets.Value("binary"))
    alone = multiprocessing.current_process().daemon  # daemons must not have child processes
    return datasets.Dataset.from_dict({"smiles": list(smiles)}).map(
        _read,
        fn_kwargs={"kind": kind, "max_atoms": max_atoms},
        batched=True,
        batch_size=_AT_ONCE,
        remove_columns=["smiles"],
        features=datasets.Features(binary | {"reason": datasets.Value("string")}),
        num_proc=None if alone else cores(),
        cache_file_name=str(place / f"{key.hexdigest()}.arrow"),
        new_fingerprint=key.hexdigest(),
    )


def _read(rows: dict[str, list[str]], kind: str, max_atoms: int) -> dict[str, list[Any]]:
    """One row per molecule. If it was rejected, ``reason`` says why and the arrays are empty."""
    graphs, rejected = featurise(rows["smiles"], kind, max_atoms=max_atoms)
    reasons: list[str | None] = [None] * len(rows["smiles"])
    for each in rejected:
        reasons[each.row] = each.reason
    found = iter(graphs)
    of_each = [None if reason else next(found) for reason in reasons]
    return {name: [getattr(graph, name).tobytes() if graph else b"" for graph in of_each] for name in _ARRAYS} | {
        "reason": reasons
    }


def _opened(rows: Any, smiles: Sequence[str], kind: str) -> tuple[Graphs, list[Rejected]]:
    columns = {name: rows.data.column(name).to_pylist() for name in (*_ARRAYS, "reason")}
    reasons = columns.pop("reason")
    rejected = [Rejected(row, smiles[row], reason) for row, reason in enumerate(reasons) if reason]
    kept = [row for row, reason in enumerate(reasons) if not reason]
    features = feature_set(kind)
    sizes = [len(columns["atoms"][row]) // len(features.atoms) for row in kept]
    counts = [len(columns["bonds"][row]) // 2 for row in kept]
    atoms, bonds, bond_features = (np.frombuffer(b"".join(columns[name]), np.uint8) for name in _ARRAYS)
    return Graphs(kind, atoms, bonds, bond_features, sizes, counts), rejected
