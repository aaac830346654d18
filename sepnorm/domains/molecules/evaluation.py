"""What an encoder of molecules is worth: linear probes of [VNode] on tables, split by scaffold."""

from __future__ import annotations

from sepnorm.domains.evaluation import Evaluation, Task
from sepnorm.domains.molecules.config import PRESETS
from sepnorm.domains.molecules.data import load_probed
from sepnorm.domains.molecules.encoder import MoleculeEncoder
from sepnorm.domains.molecules.recipe import probe_set
from sepnorm.errors import SepNormError


def evaluate(encoder: MoleculeEncoder, task: Task) -> Evaluation:
    """A probe of every table that ``task.data`` is, or that is in this folder."""
    if task.on or task.pooling not in ("", "cls"):
        raise SepNormError("a model of molecules is probed by its [VNode] on tables: leave --on and --pooling out.")
    if task.data is None:
        raise SepNormError(
            f"{encoder.name} is a model of molecules: say by --data on which table, or folder of some, to probe it."
        )
    given = {"task": "pretrain", "test": task.data, "features": encoder.model.config.features}
    sets = load_probed(PRESETS["demo"].changed(given), task.column, task.label, "name it by --label NAME")
    parts = [f"{name}: {len(one.train):,} / {len(one.valid):,} / {len(one.test):,}" for name, one in sets.items()]
    found = Evaluation(encoder.name, task.data, f"molecules for training / validation / test of {', '.join(parts)}")
    for name, one in sets.items():
        found.metrics |= {f"probe_{name}_{key}": value for key, value in probe_set(encoder.model, one).items()}
    return found
