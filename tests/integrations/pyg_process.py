"""Every verb on graphs of the real PyG, from a folder of its own; prints what differs from our graphs as one JSON object.

python tests/integrations/pyg_process.py PACKAGES
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])

import torch
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader

import sepnorm
from sepnorm.domains.molecules.features import featurise, from_pyg
from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel
from sepnorm.domains.molecules.graphs import Graph
from sepnorm.domains.molecules.model import encode, encode_atoms
from sepnorm.domains.molecules.tables import read_table


def as_data(graph: Graph) -> Data:
    ends = torch.from_numpy(graph.bonds.astype("int64")).T
    codes = torch.from_numpy(graph.bond_features.astype("int64"))
    index, features = torch.cat([ends, ends.flip(0)], dim=1), torch.cat([codes, codes])
    return Data(x=torch.from_numpy(graph.atoms.astype("int64")), edge_index=index, edge_attr=features, y=torch.zeros(1))


class InMemory(InMemoryDataset):
    """As the data sets of PyG are, whose graphs are kept joined."""

    def __init__(self, items: list[Data]) -> None:
        super().__init__(None)
        self._data, self.slices = self.collate(items)


def same_as_list(model: GraphormerModel, data: InMemoryDataset, graphs: list[Graph]) -> bool:
    """Whether a data set is taken for its graphs, one by one."""
    return (
        len(from_pyg(data)) == len(graphs)
        and torch.equal(encode(model, data), encode(model, graphs))
        and len(encode_atoms(model, data)) == len(graphs)
        and torch.equal(model(data).last_hidden_state, model(**model.collate(graphs)).last_hidden_state)
    )


def converted(model: GraphormerModel, data: Any, example: Any = None) -> dict[str, torch.Tensor]:
    other = copy.deepcopy(model)
    sepnorm.convert(other, "bn+bn", calibrate=data, example=example)
    return other.state_dict()


def main() -> None:
    graphs = list(featurise(read_table("nci").smiles[:300], "zinc")[0])
    torch.manual_seed(0)
    config = GraphormerConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    model = GraphormerModel(config).eval()
    items = [as_data(graph) for graph in graphs]
    batch = Batch.from_data_list(items)
    whole = [model.collate(graphs)]
    wanted, seen = converted(model, whole), str(sepnorm.inspect(model, whole))
    different = []
    for name, data in {"list": [items], "batches": [batch], "batch": batch}.items():
        found = converted(model, data, example=batch)
        if str(sepnorm.inspect(model, data)) != seen or any(not torch.equal(found[key], wanted[key]) for key in wanted):
            different.append(name)
    dataset = InMemory(items)
    some = dataset[:64], graphs[:64]
    if not same_as_list(model, dataset, graphs) or not same_as_list(model, *some):
        different.append("data set")
    parts = [model.collate(graphs[start : start + 64]) for start in range(0, len(graphs), 64)]
    by_parts, found = converted(model, parts), converted(model, dataset, example=dataset[:8])
    if any(not torch.equal(found[key], by_parts[key]) for key in found):
        different.append("calibrate by a data set")
    if str(sepnorm.inspect(model, dataset)) != str(sepnorm.inspect(model, parts)):
        different.append("inspect a data set")
    single = model.collate(items[0])
    if any(not torch.equal(value, single[key]) for key, value in model.collate(graphs[:1]).items()):
        different.append("one graph")
    healed = sepnorm.heal(model, graphs, method="centre")
    other = sepnorm.heal(model, DataLoader(items, batch_size=64), method="centre")
    x = torch.randn(3, 32)
    third = sepnorm.heal(model, dataset, method="centre")
    if not all(
        each.count == len(graphs) and torch.equal(each.transform(x), healed.transform(x)) for each in (other, third)
    ):
        different.append("heal")
    print(json.dumps({"molecules": len(graphs), "different": different}))


if __name__ == "__main__":
    main()
