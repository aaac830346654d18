"""Molecules per second: from SMILES to graphs and batches, and while Graphormer-slim is trained.

    python benchmarks/molecules.py [--data zinc12k.csv.gz] [--rounds 5] [--molecules 1024] [--folder .pyg]

The data is a table with a column ``smiles``, by default the NCI set of RDKit. One thread and processor time, which other work
on the machine disturbs less than time on the wall. Contenders take turns; printed are medians over the rounds, and in brackets
the lowest and highest of the rounds' ratios.

Featurising stands beside RDKit's own parsing of the same SMILES, which it contains, and beside a plain reference: parsing, the
same features, Floyd and Warshall in NumPy, and the path between every two atoms put together in Python.

Training stands beside Graphormer as published, with dense edges: an embedding for each of the five bonds between every two
atoms, a matrix for each hop, their mean; queries, keys and values by themselves; attention by matrix products and softmax;
torch's dropout, at the same places. Both have the same batches in random order, padded to their largest molecule, which ours parts
by size where no norm inside was replaced, and then batches of molecules of similar size (``similar_sizes=true``, for norms without
batch statistics), small and large. And it stands beside a GPS transformer of PyG (Rampášek et al., NeurIPS 2022) of the same width,
depth and heads, on the random batches, with GINE for its local part and without positional encodings, from a folder that nothing
else sees (``make .pyg``). A step is forward, the mean absolute error of a linear head, backward and AdamW on 64 molecules; a run is
four steps. ``molecule_profile.py`` has the profile, the padding and the attention that are printed at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from norm_overhead import KEEP_MEMORY, peak_bytes

if __name__ == "__main__" and sys.platform == "linux" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)

import numpy as np
import torch
from molecule_profile import show_attention, show_padding, show_profile
from published_graphormer import HOPS, Published, plain_paths, published_batch
from rdkit import Chem
from torch import Tensor, nn

import sepnorm
from sepnorm.domains.molecules.batches import buckets, collate
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel
from sepnorm.domains.molecules.graphs import Graph, Graphs, feature_set
from sepnorm.domains.molecules.tables import read_table

BATCH = 64
TRAINED = 4  # batches of a run


class Ours(nn.Module):
    def __init__(self, config: GraphormerConfig, norm: str = "ln", sites: str = "final") -> None:
        super().__init__()
        self.encoder = GraphormerModel(config)
        if norm != "ln":
            sepnorm.convert(self.encoder, norm, sites=sites)

    def forward(self, **batch: Tensor) -> Tensor:
        return self.encoder(**batch).last_hidden_state


class GPS(nn.Module):
    """PyG's GPS transformer; every molecule's atoms are summed at the end."""

    def __init__(self, config: GraphormerConfig, kinds: tuple[int, int]) -> None:
        from torch_geometric.nn import GINEConv, GPSConv

        super().__init__()
        width = config.hidden_size
        self.atoms, self.bonds = (nn.EmbeddingBag(count, width, mode="sum") for count in kinds)

        def layer() -> nn.Module:
            local = GINEConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))
            dropout = {"dropout": config.attention_probs_dropout_prob}
            return GPSConv(width, local, heads=config.num_attention_heads, dropout=0.1, attn_kwargs=dropout)

        self.layers = nn.ModuleList(layer() for _ in range(config.num_hidden_layers))

    def forward(self, nodes: Tensor, ends: Tensor, kinds: Tensor, owner: Tensor) -> Tensor:
        from torch_geometric.nn import global_add_pool

        x, edges = self.atoms(nodes), self.bonds(kinds)
        for layer in self.layers:
            x = layer(x, ends, owner, edge_attr=edges)
        return global_add_pool(x, owner)[:, None]


def flat_batch(graphs: list[Graph]) -> dict[str, Tensor]:
    """The batch as PyG has it: all atoms (atoms, features), both directions of each bond (2, bonds), and whose an atom is."""
    sizes = [len(graph) for graph in graphs]
    starts = np.repeat(np.cumsum([0, *sizes[:-1]]), [len(graph.bonds) for graph in graphs])
    ends = torch.from_numpy(np.concatenate([graph.bonds for graph in graphs]).astype(np.int64) + starts[:, None])
    kinds = torch.from_numpy(np.concatenate([graph.bond_features for graph in graphs]).astype(np.int64))
    return {
        "nodes": torch.from_numpy(np.concatenate([graph.atoms for graph in graphs]).astype(np.int64)),
        "ends": torch.cat([ends, ends.flip(1)]).T.contiguous(),
        "kinds": torch.cat([kinds, kinds]),
        "owner": torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes)),
    }


# ---- measuring ----------------------------------------------------------------------------------------------------------


def take_turns(runs: dict[str, Callable[[], object]], rounds: int, first: str) -> dict[str, tuple[float, list[float]]]:
    """Median seconds of each run, and its ratios to ``first`` round by round, sorted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name in [*runs, *[name for _ in range(rounds) for name in random.sample(list(runs), len(runs))]]:
        start = time.process_time()
        runs[name]()
        times[name].append(time.process_time() - start)
    kept = {name: values[1:] for name, values in times.items()}  # the first turn warms up
    return {
        name: (statistics.median(values), sorted(a / b for a, b in zip(values, kept[first], strict=True)))
        for name, values in kept.items()
    }


def show(found: dict[str, tuple[float, list[float]]], molecules: int) -> None:
    for name, (seconds, ratios) in found.items():
        middle = statistics.median(ratios)
        print(
            f"  {name:44}{molecules / seconds:9,.0f} molecules/s {middle:8.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def batches_of(graphs: Graphs) -> list[dict[str, Tensor]]:
    return [collate([graphs[row] for row in rows], HOPS) for rows in buckets(graphs.sizes, BATCH)]


def measure_featurising(smiles: list[str], kind: str, rounds: int) -> None:
    few = smiles[: max(1, len(smiles) // 16)]
    graphs, _ = featurise(smiles, kind)
    share = len(smiles) / len(few)

    def plain() -> None:
        for graph in featurise(few, kind)[0]:
            plain_paths(graph)

    runs: dict[str, Callable[[], object]] = {
        "MolFromSmiles alone": lambda: [Chem.MolFromSmiles(text) for text in smiles],
        "featurise": lambda: featurise(smiles, kind),
        "collate": lambda: batches_of(graphs),
        "featurise and collate": lambda: batches_of(featurise(smiles, kind)[0]),
        "plain reference": plain,
    }
    found = take_turns(runs, rounds, "MolFromSmiles alone")
    seconds, ratios = found["plain reference"]
    found["plain reference"] = seconds * share, [ratio * share for ratio in ratios]
    print(f"\n{kind}: {len(smiles)} SMILES, mean {graphs.sizes.mean():.1f} atoms; time as a ratio to RDKit's parsing")
    show(found, len(smiles))
    both = found["featurise and collate"][0]
    print(
        f"  the plain reference takes {found['plain reference'][0] / both:.1f} times as long as featurise and collate"
    )


def measure_growth(rounds: int) -> None:
    print("\ngrowth with the number of atoms, 64 equal molecules (rings in a chain), zinc, milliseconds a molecule")
    print(f"  {'atoms':>6}{'parse':>9}{'featurise':>11}{'collate':>9}{'plain reference':>17}")
    for units in (1, 2, 4, 8, 14):
        smiles = ["C1CCC(CC1)OCC" * units] * 64
        graphs, _ = featurise(smiles)
        runs: dict[str, Callable[[], object]] = {
            "parse": lambda smiles=smiles: [Chem.MolFromSmiles(text) for text in smiles],
            "featurise": lambda smiles=smiles: featurise(smiles),
            "collate": lambda graphs=graphs: collate(graphs, HOPS),
            "plain": lambda graphs=graphs: plain_paths(graphs[0]),
        }
        found = take_turns(runs, rounds, "parse")
        parts = [found[name][0] * 1e3 / (1 if name == "plain" else 64) for name in runs]
        print(f"  {len(graphs[0]):6}{parts[0]:9.3f}{parts[1]:11.3f}{parts[2]:9.3f}{parts[3]:17.3f}", flush=True)


def steps(model: nn.Module, batches: Callable[[], Iterable[dict[str, Tensor]]]) -> Callable[[], object]:
    """A training step on each batch."""
    head = nn.Linear(80, 1)
    parameters = [*model.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=2e-4, fused=True)
    model.train()

    def run() -> None:
        for batch in batches():
            hidden: Any = model(**batch)
            (head(hidden[:, 0]) - 1.0).abs().mean().backward()
            optimiser.step()
            optimiser.zero_grad()

    return run


def measure_training(smiles: list[str], kind: str, rounds: int) -> None:
    graphs, _ = featurise(smiles, kind)
    every = max(1, len(graphs) // (TRAINED * BATCH))
    parts = buckets(graphs.sizes, BATCH)[every // 2 :: every][:TRAINED]  # small and large molecules alike
    alike = [[graphs[row] for row in rows] for rows in parts]
    mixed = [graphs[start : start + BATCH] for start in range(0, TRAINED * BATCH, BATCH)]
    ours = {name: [collate(part, HOPS) for part in parts] for name, parts in (("alike", alike), ("mixed", mixed))}
    dense = {name: [published_batch(part) for part in parts] for name, parts in (("alike", alike), ("mixed", mixed))}
    config = GraphormerConfig(features=kind)
    baseline = "published"
    runs = {
        baseline: steps(Published(config), lambda: dense["mixed"]),
        "ours, ln": steps(Ours(config), lambda: ours["mixed"]),
        "ours, ln, collated in the step": steps(Ours(config), lambda: (collate(part, HOPS) for part in mixed)),
        "ours, bn+ln, final": steps(Ours(config, "bn+ln"), lambda: ours["mixed"]),
        "ours, bn+ln, all": steps(Ours(config, "bn+ln", "all"), lambda: ours["mixed"]),
        "published, molecules of similar size": steps(Published(config), lambda: dense["alike"]),
        "ours, ln, molecules of similar size": steps(Ours(config), lambda: ours["alike"]),
    }
    if find_spec("torch_geometric") is not None:
        flat = [flat_batch(part) for part in mixed]
        known = feature_set(kind)
        runs["GPS of PyG"] = steps(GPS(config, (sum(known.atoms) + 1, sum(known.bonds))), lambda: flat)
    found = take_turns(runs, rounds, baseline)
    print(f"\n{kind}: training slim on {TRAINED} batches of {BATCH} molecules; time as a ratio to published")
    show(found, TRAINED * BATCH)
    base = peak_bytes(runs[baseline])
    for name in (baseline, "ours, ln", "ours, bn+ln, final", "ours, bn+ln, all"):
        held = peak_bytes(runs[name])
        print(f"  {name:44}{held / 2**20:9.1f} MiB at most during a step {held / base:8.2f}x")
    for name, batches in ((baseline, dense["mixed"]), ("ours", ours["mixed"])):
        print(f"  {name + ', a batch':44}{sum(v.nbytes for v in batches[0].values()) / 2**20:9.1f} MiB")


def measure_parts(smiles: list[str], rounds: int) -> None:
    graphs, _ = featurise(smiles, "zinc")
    parts = [graphs[start : start + BATCH] for start in range(0, TRAINED * BATCH, BATCH)]
    batches = [collate(part, HOPS) for part in parts]
    show_profile(steps(Ours(GraphormerConfig()), lambda: batches), TRAINED)
    show_padding(graphs.sizes.tolist(), BATCH)
    show_attention(graphs.sizes[:BATCH].tolist(), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", default="nci", help="a CSV file with a column smiles, may be gzipped (default: RDKit's nci)"
    )
    parser.add_argument("--folder", default=".pyg", help="where torch_geometric is (default .pyg)")
    parser.add_argument("--molecules", type=int, default=1024, help="how many of its rows (default 1024)")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    sys.path.append(args.folder)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    smiles = read_table(args.data, labelled=False).smiles[: args.molecules]
    print(f"torch {torch.__version__}, RDKit {Chem.rdBase.rdkitVersion}, one thread, processor time")
    for kind in ("zinc", "ogb"):
        measure_featurising(smiles, kind, args.rounds)
    measure_growth(args.rounds)
    for kind in ("zinc", "ogb"):
        measure_training(smiles, kind, args.rounds)
    measure_parts(smiles, args.rounds)


if __name__ == "__main__":
    main()
