"""Evaluation of encoders of molecules: linear probes of [VNode] and atoms on tables, split by scaffold."""

from __future__ import annotations

from sepnorm.domains.evaluation import Evaluation, Task
from sepnorm.domains.molecules.config import PRESETS
from sepnorm.domains.molecules.data import load_probed
from sepnorm.domains.molecules.encoder import MoleculeEncoder
from sepnorm.domains.molecules.recipe import probe_set
from sepnorm.errors import SepNormError


def evaluate(encoder: MoleculeEncoder, task: Task) -> Evaluation:
    """Probes the table ``task.data``, or every table in this folder."""
    if task.on:
        raise SepNormError("a model of molecules is probed on the tables of --data: leave --on out.")
    if task.data is None:
        raise SepNormError(
            f"{encoder.name} is a model of molecules: add --data with a table, or a folder of tables, to probe it on."
        )
    given = {"task": "pretrain", "test": task.data, "features": encoder.model.config.features}
    sets = load_probed(PRESETS["demo"].changed(given), task.column, task.label, "name it by --label NAME")
    parts = [f"{name}: {len(one.train):,} / {len(one.valid):,} / {len(one.test):,}" for name, one in sets.items()]
    found = Evaluation(encoder.name, task.data, f"molecules for training / validation / test of {', '.join(parts)}")
    for name, one in sets.items():
        found.metrics |= probe_set(encoder.model, one, name, task.poolings(("cls", "mean", "moments")))
    return found
