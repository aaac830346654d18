"""Checkpoints of transformers 4's Graphormer give the same here, and what is written here is read there."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sepnorm import Graphormer
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphs import Graph, feature_set, offsets
from sepnorm.domains.molecules.tables import read_table
from sepnorm.errors import SepNormWarning

HERE = Path(__file__).parent
OLD = HERE.parents[1] / ".graphormer"
SMALL = {"embedding_dim": 32, "ffn_embedding_dim": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
SLIM = {"embedding_dim": 80, "ffn_embedding_dim": 80, "num_attention_heads": 8, "num_hidden_layers": 12}
BASE = {"encoder_normalize_before": True, "apply_graphormer_init": True}  # the rest is the default there
CASES = {
    "base": {"settings": BASE, "head": True, "safetensors": True, "graphs": "ogb"},
    "slim": {"settings": {**SLIM, **BASE}, "head": True, "safetensors": False, "graphs": "zinc"},
    "norms first": {
        "settings": {
            **SMALL,
            "pre_layernorm": True,
            "num_classes": 7,
            "multi_hop_max_dist": 8,
            "activation_fn": "relu",
        },
        "head": True,
        "safetensors": True,
        "graphs": "ogb",
    },
    "one hop": {
        "settings": {**SMALL, "edge_type": "one_hop", "embed_scale": 3.0, "num_trans_layers_to_freeze": 1},
        "head": True,
        "safetensors": True,
        "graphs": "ogb",
    },
    "without a head": {"settings": SMALL, "head": False, "safetensors": True, "graphs": "ogb"},
}


def random_graph(generator: np.random.Generator, kind: str) -> Graph:
    """Any graph, of one part or several, with all categories of the feature set."""
    features = feature_set(kind)
    count = int(generator.integers(2, 30))
    ends = np.argwhere(np.triu(generator.random((count, count)) < generator.choice([0.03, 0.1, 0.3]), 1))
    ends = ends if len(ends) else np.array([[0, 1]])
    atoms = generator.integers(0, features.atoms, (count, len(features.atoms))) + offsets(features.atoms)
    codes = generator.integers(0, features.bonds, (len(ends), len(features.bonds))) + offsets(features.bonds)
    return Graph(atoms.astype(np.uint8), ends.astype(np.uint8), codes.astype(np.uint8), kind)


def batches_of(kind: str) -> list[list[Graph]]:
    """Thirty molecules and sixty random graphs, in batches of ten, some with parts that are not joined."""
    known = featurise(read_table("nci").smiles[::150], kind)[0][:30]
    generator = np.random.default_rng(0)
    graphs = known + [random_graph(generator, kind) for _ in range(60)]
    return [graphs[start : start + 10] for start in range(0, len(graphs), 10)]


def as_item(graph: Graph) -> dict:
    """A graph as the data sets of transformers' documentation have it."""
    features = feature_set(graph.kind)
    ends, codes = graph.bonds.astype(int), graph.bond_features - offsets(features.bonds)
    return {
        "node_feat": (graph.atoms - offsets(features.atoms)).tolist(),
        "edge_index": np.concatenate([ends, ends[:, ::-1]]).T.tolist(),
        "edge_attr": np.concatenate([codes, codes]).tolist(),
        "num_nodes": len(graph),
        "y": [0.0],
    }


def run_old(what: str, folder: Path) -> str:
    process = [sys.executable, str(HERE / "graphormer_process.py"), str(OLD), what, str(folder)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HOME": str(folder), "PYTHONPATH": ""}
    done = subprocess.run(process, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1] if done.stdout else ""


def as_microsoft(folder: Path, kept: dict[str, torch.Tensor], path: Path) -> None:
    """The weights of a folder as a checkpoint of fairseq, which keeps the arguments of the run beside them."""
    named = {"classifier.classifier.weight": "encoder.embed_out.weight"}
    named["classifier.lm_output_learned_bias"] = "encoder.lm_output_learned_bias"
    state = {named.get(name, name): value for name, value in kept.items()}
    state |= {"encoder.masked_lm_pooler.weight": torch.zeros(2, 2), "encoder.masked_lm_pooler.bias": torch.zeros(2)}
    config = json.loads((folder / "config.json").read_text())
    said = argparse.Namespace(multi_hop_max_dist=config["multi_hop_max_dist"], activation_fn=config["activation_fn"])
    torch.save({"model": state, "args": said, "epoch": 3}, path)


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference; of values far above 1, as a share of the largest, since they are rounded to as much."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1))


@pytest.mark.slow
@pytest.mark.skipif(
    not (OLD / "transformers").is_dir(), reason="transformers 4 is tested from a folder of its own: see the Makefile"
)
def test_outputs_are_those_of_transformers_4_and_folders_go_both_ways(tmp_path):
    graphs = {kind: batches_of(kind) for kind in ("ogb", "zinc")}
    for kind, batches in graphs.items():
        items = [[as_item(graph) for graph in batch] for batch in batches]
        (tmp_path / f"{kind}.json").write_text(json.dumps(items))
    (tmp_path / "cases.json").write_text(json.dumps(CASES))
    run_old("write", tmp_path)
    for name, case in CASES.items():
        kept = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        model = Graphormer.from_published(tmp_path / name, features=case["graphs"])
        for batch, theirs, wanted in zip(graphs[case["graphs"]], kept["batches"], kept["outputs"], strict=True):
            theirs.pop("labels")
            ours = model.collate(batch)
            hops = min(case["settings"].get("multi_hop_max_dist", 5), theirs["input_edges"].shape[3])
            for key, value in theirs.items():
                cut = (slice(None),) * 3 + (slice(hops),) if key == "input_edges" else ()
                assert torch.equal(ours[key][cut], value[cut]), (name, key)
            for fed in (theirs, ours):
                with torch.no_grad():
                    found = model(**fed)
                atoms = ours["attention_mask"] == 1
                assert distance(found.last_hidden_state[atoms], wanted["hidden"][atoms]) < 1e-5, name
                if case["head"]:
                    assert distance(found.logits, wanted["logits"]) < 1e-5, name
        assert (
            float(torch.cat([each["hidden"][:, 0] for each in kept["outputs"]]).std(0).mean()) > 5e-3
        )  # graphs differ
        if case["head"]:
            as_microsoft(tmp_path / name, model.state_dict(), tmp_path / "checkpoint.pt")
            again = Graphormer.from_published(
                tmp_path / "checkpoint.pt", features=case["graphs"], collator="transformers"
            )
            if "embed_scale" not in case["settings"]:  # which is nowhere in such a checkpoint
                assert torch.equal(again(**ours).logits, model(**ours).logits)
            assert again.config.pre_layernorm == model.config.pre_layernorm
        model.save_published(tmp_path / f"{name}-back")
    microsofts = Graphormer.from_published(tmp_path / "norms first", collator="microsoft")
    with pytest.warns(SepNormWarning, match="19 or more bonds apart or not connected"):
        microsofts.save_published(tmp_path / "microsoft")
    seen = json.loads(run_old("read", tmp_path))
    found, wanted = [], []
    for batch, theirs in zip(graphs["ogb"], torch.load(tmp_path / "microsoft.pt", weights_only=True), strict=True):
        ours = microsofts.collate(batch)
        same = ours["spatial_pos"].amax((1, 2)) < 20  # no atoms that the collator of transformers hides from each other
        with torch.no_grad():
            found.append(microsofts(**ours).logits[same])
        wanted.append(theirs[same])
    assert sum(map(len, found)) > 30
    assert distance(torch.cat(found), torch.cat(wanted)) < 1e-5
    assert seen == {name: {"weights": 0.0, "outputs": 0.0} for name in CASES}
