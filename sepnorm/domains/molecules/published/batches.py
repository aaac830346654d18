"""Makes the tensors of the published collators, in NumPy.

If two atoms have several shortest paths, the published models use the bonds of *one*: the one that the Floyd-Warshall
algorithm finds, which depends on the numbering of atoms. Models trained this way need the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sepnorm.domains.molecules.graphs import Graph, feature_set, offsets
from sepnorm.domains.molecules.published.config import COLLATORS, PublishedConfig
from sepnorm.errors import SepNormError

UNREACHABLE = 510  # distance of two atoms without a path
_ROWS = 512  # rows of the table per feature
Numbers = NDArray[np.int64]


def collate(graphs: Sequence[Graph], config: PublishedConfig) -> dict[str, Tensor]:
    """Makes a padded batch. Names are those of transformers 4, plus ``attention_mask``.

    Here N is the number of atoms of the largest molecule:

    - ``input_nodes`` (batch, N, atom features): rows of the atom table, 0 for padding;
    - ``in_degree``, ``out_degree`` (batch, N): number of bonds of each atom + 1;
    - ``spatial_pos`` (batch, N, N): number of bonds between two atoms + 1, 511 if there is no path;
    - ``input_edges`` (batch, N, N, hops, bond features): rows of the bond table along a shortest path;
    - ``attn_edge_type`` (batch, N, N, bond features): rows of the bond table for the bond between two atoms;
    - ``attn_bias`` (batch, 1 + N, 1 + N): minus infinity if two atoms are too far apart to attend to each other;
    - ``attention_mask`` (batch, 1 + N): 1 for [VNode] and atoms.
    """
    features = feature_set(config.features)
    sizes = _sizes(graphs, config)
    batch, width = len(graphs), int(sizes.max())
    real = np.arange(width) < sizes[:, None]
    nodes = np.zeros((batch, width, len(features.atoms)), dtype=np.int64)
    codes = np.concatenate([graph.atoms for graph in graphs])
    nodes[real] = _rows(codes, features.atoms) + COLLATORS[config.collator]
    graph_of = np.repeat(np.arange(batch), [len(graph.bonds) for graph in graphs])
    first, second = np.concatenate([graph.bonds for graph in graphs]).astype(np.int64).T
    bonds = _rows(np.concatenate([graph.bond_features for graph in graphs]), features.bonds) + 2
    joined = np.zeros((batch, width, width, len(features.bonds)), dtype=np.int64)
    joined[graph_of, first, second] = joined[graph_of, second, first] = bonds
    degrees = (joined[..., 0] > 0).sum(-1)
    distances, middles = floyd_warshall(joined[..., 0] > 0)
    within = real[:, :, None] & real[:, None, :]
    bias = np.zeros((batch, 1 + width, 1 + width), dtype=np.float32)
    bias[:, 1:, 1:][within & (distances >= config.farthest)] = -np.inf
    arrays = {
        "input_nodes": nodes,
        "input_edges": _edges_on_the_way(distances, middles, joined, config.multi_hop_max_dist),
        "attn_bias": bias,
        "in_degree": np.where(real, degrees + 1, 0),
        "spatial_pos": np.where(within, distances + 1, 0),
        "attn_edge_type": joined,
        "attention_mask": np.insert(real, 0, True, axis=1).astype(np.int64),
    }
    found = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return found | {"out_degree": found["in_degree"]}


def _sizes(graphs: Sequence[Graph], config: PublishedConfig) -> Numbers:
    if not graphs:
        raise SepNormError("a batch needs at least one graph, found none.")
    for number, graph in enumerate(graphs):
        if graph.kind != config.features:
            raise SepNormError(
                f"graph {number} has the features {graph.kind!r}, the model {config.features!r}: featurise with "
                f"kind={config.features!r}."
            )
        if not 1 <= len(graph) <= config.max_atoms:
            raise SepNormError(f"graph {number} has {len(graph)} atoms, and this model takes 1 to {config.max_atoms}.")
    return np.array([len(graph) for graph in graphs])


def _rows(codes: NDArray[np.uint8], categories: Sequence[int]) -> Numbers:
    """Turns codes, which run through the categories of all features, into rows of a table with 512 per feature."""
    return codes.astype(np.int64) - offsets(categories) + np.arange(len(categories)) * _ROWS


def floyd_warshall(joined: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """Distances (batch, N, N), and the intermediate atom of each shortest path, -1 for a bond or no path."""
    width = joined.shape[1]
    distances = np.where(joined, 1, UNREACHABLE)
    distances[:, np.arange(width), np.arange(width)] = 0
    middles = np.full_like(distances, -1)
    for k in range(width):
        by_k = distances[:, :, k, None] + distances[:, k, None, :]
        shorter = by_k < distances
        distances[shorter] = by_k[shorter]
        middles[shorter] = k
    return distances, middles


def _edges_on_the_way(distances: Numbers, middles: Numbers, joined: Numbers, hops: int) -> Numbers:
    """The first ``hops`` bonds of each path + 1, and 0 after its end (batch, N, N, hops, features)."""
    steps = np.full((*distances.shape, hops + 1), -1)  # the atoms on a path
    steps[..., 0] = np.arange(distances.shape[1])[:, None]
    graph, i, j = np.nonzero(distances == 1)
    steps[graph, i, j, 1] = j
    reached = distances[distances < UNREACHABLE]
    for distance in range(2, int(reached.max(initial=0)) + 1):
        graph, i, j = np.nonzero(distances == distance)
        middle = middles[graph, i, j]
        before = distances[graph, i, middle]
        for hop in range(1, min(hops, distance) + 1):
            behind = steps[graph, middle, j, np.maximum(hop - before, 0)]
            steps[graph, i, j, hop] = np.where(hop <= before, steps[graph, i, middle, hop], behind)
    edges = np.zeros((*distances.shape, hops, joined.shape[-1]), dtype=np.int64)
    for hop in range(hops):
        graph, i, j = np.nonzero(steps[..., hop + 1] >= 0)
        edges[graph, i, j, hop] = joined[graph, steps[graph, i, j, hop], steps[graph, i, j, hop + 1]] + 1
    return edges
