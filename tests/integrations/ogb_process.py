"""OGB's own features and scores beside ours, from a folder of its own; prints what differs as one JSON object.

python tests/integrations/ogb_process.py PACKAGES TABLE...

TABLE is what ``read_table`` takes; of a large one, some thousand molecules are compared. Those that cannot be read are
passed over.
"""

from __future__ import annotations

import json
import sys
from unittest import mock

sys.path.insert(0, sys.argv[1])

import numpy as np
import outdated
import torch

# OGB asks a server for its newest version when it is imported
with mock.patch.object(outdated, "check_outdated", return_value=(False, "")):
    from ogb.graphproppred import Evaluator
    from ogb.utils import smiles2graph

from sepnorm.data.choices import evenly
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphs import Graph, feature_set, offsets
from sepnorm.domains.molecules.scores import scores
from sepnorm.domains.molecules.tables import read_table

OGB = feature_set("ogb")
MOST = 5000  # molecules of a table, so that all take less than a minute


def same(graph: Graph, wanted: dict[str, np.ndarray]) -> bool:
    """OGB has each bond twice, one direction after the other."""
    codes = graph.bond_features - offsets(OGB.bonds)
    return (
        np.array_equal(graph.atoms - offsets(OGB.atoms), wanted["node_feat"])
        and np.array_equal(graph.bonds, wanted["edge_index"].T[::2])
        and np.array_equal(codes, wanted["edge_feat"][::2])
        and np.array_equal(codes, wanted["edge_feat"][1::2])
    )


def compared(source: str) -> tuple[int, list[str]]:
    smiles = read_table(source, labelled=False).smiles
    smiles = [smiles[row] for row in evenly(len(smiles), MOST).tolist()]
    graphs, rejected = featurise(smiles, "ogb", max_atoms=255)
    bad = {each.row for each in rejected}
    kept = [text for row, text in enumerate(smiles) if row not in bad]
    different = [text for text, graph in zip(kept, graphs, strict=True) if not same(graph, smiles2graph(text))]
    return len(kept), different


def scored(name: str, metric: str, key: str, tasks: int) -> float:
    """How far our mean over tasks is from OGB's, with labels missing, and one task without a positive label."""
    random = np.random.default_rng(0)
    true = random.integers(0, 2, (200, tasks)).astype(float)
    true[random.random(true.shape) < (0.3 if tasks > 1 else 0)] = np.nan
    if tasks > 1:
        true[:, 3] = np.where(np.isnan(true[:, 3]), np.nan, 0)
    predicted = random.normal(size=true.shape)
    theirs = Evaluator(name).eval({"y_true": true, "y_pred": predicted})[metric]
    return abs(theirs - scores(torch.tensor(predicted), torch.tensor(true), True)[key])


def main() -> None:
    found = [compared(source) for source in sys.argv[2:]]
    print(
        json.dumps(
            {
                "compared": [count for count, _ in found],
                "different": [text for _, texts in found for text in texts],
                "molhiv": scored("ogbg-molhiv", "rocauc", "roc_auc", 1),
                "molpcba": scored("ogbg-molpcba", "ap", "average_precision", 128),
            }
        )
    )


if __name__ == "__main__":
    main()
