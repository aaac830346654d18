"""Graphormer as published, and a plain reference of its inputs: what ``molecules.py`` measures ours beside.

Distances by Floyd and Warshall in NumPy, the path between every two atoms put together in Python, dense edges (an embedding for
each of the five bonds between every two atoms, a matrix for each hop, their mean), queries, keys and values by themselves.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sepnorm.domains.molecules.batches import collate
from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel
from sepnorm.domains.molecules.graphs import Graph

HOPS = 5


def plain_paths(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Distances (n, n) and the codes of the first bonds on one shortest path (n, n, hops, features), plus 1, 0 for none."""
    n = len(graph)
    distance = np.full((n, n), 510)
    np.fill_diagonal(distance, 0)
    bond = {}
    for (i, j), codes in zip(graph.bonds.tolist(), graph.bond_features, strict=True):
        distance[i, j] = distance[j, i] = 1
        bond[i, j] = bond[j, i] = codes
    middle = np.full((n, n), -1)
    for k in range(n):
        through = distance[:, k, None] + distance[None, k]
        shorter = through < distance
        distance[shorter] = through[shorter]
        middle[shorter] = k

    def between(i: int, j: int) -> list[int]:
        k = middle[i, j]
        return [] if k < 0 else [*between(i, k), k, *between(k, j)]

    edges = np.zeros((n, n, HOPS, graph.bond_features.shape[1]), dtype=np.int64)
    for i in range(n):
        for j in range(n):
            if i != j and distance[i, j] < 510:
                path = [i, *between(i, j), j]
                for hop in range(min(HOPS, len(path) - 1)):
                    edges[i, j, hop] = bond[path[hop], path[hop + 1]] + 1
    return distance, edges


class PublishedBias(nn.Module):
    """Distance and dense edges, as published."""

    def __init__(self, kinds: int, heads: int) -> None:
        super().__init__()
        self.distances = nn.Embedding(512, heads)
        self.virtual = nn.Embedding(1, heads)
        self.edges = nn.Embedding(kinds + 1, heads, padding_idx=0)
        self.hops = nn.Embedding(HOPS * heads * heads, 1)

    def forward(self, distances: Tensor, edges: Tensor, padding: Tensor) -> Tensor:
        batch, n, heads = *distances.shape[:2], self.virtual.embedding_dim
        bias = distances.new_zeros((batch, heads, n + 1, n + 1), dtype=torch.float32)
        bias[:, :, 1:, 1:] = bias[:, :, 1:, 1:] + self.distances(distances).permute(0, 3, 1, 2)
        bias[:, :, 1:, 0] = bias[:, :, 1:, 0] + self.virtual.weight.view(1, heads, 1)
        bias[:, :, 0, :] = bias[:, :, 0, :] + self.virtual.weight.view(1, heads, 1)
        counted = distances.clamp(1, HOPS).float()
        embedded = self.edges(edges).mean(-2)  # (batch, n, n, hops, heads)
        flat = embedded.permute(3, 0, 1, 2, 4).reshape(HOPS, -1, heads)
        flat = torch.bmm(flat, self.hops.weight.view(HOPS, heads, heads))
        embedded = flat.view(HOPS, batch, n, n, heads).permute(1, 2, 3, 0, 4)
        mean = (embedded.sum(-2) / counted.unsqueeze(-1)).permute(0, 3, 1, 2)
        bias[:, :, 1:, 1:] = bias[:, :, 1:, 1:] + mean
        return bias.masked_fill(padding[:, None, None, :], float("-inf"))


class PublishedAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (f(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax((q * self.scale) @ k.transpose(2, 3) + bias, dim=3)
        return self.out((self.dropout(weights) @ v).transpose(1, 2).reshape(x.shape))


class Published(nn.Module):
    """The same encoder with the parts above in the place of ours."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.encoder = GraphormerModel(config)
        kinds = self.encoder.bias.bonds.num_embeddings
        self.encoder.bias = PublishedBias(kinds, config.num_attention_heads)
        self.encoder.dropout = nn.Dropout(config.hidden_dropout_prob)
        for layer in self.encoder.layers:
            layer.attention = PublishedAttention(config.hidden_size, config.num_attention_heads)
            layer.dropout = nn.Dropout(config.hidden_dropout_prob)
            layer.feed_forward[2] = nn.Dropout(config.activation_dropout_prob)

    def forward(
        self, nodes: Tensor, degrees: Tensor, distances: Tensor, edges: Tensor, attention_mask: Tensor
    ) -> Tensor:
        model = self.encoder
        bias = model.bias(distances, edges, attention_mask == 0)
        x = model.dropout(model.emb_layer_norm(model.embeddings(nodes, degrees)))
        for layer in model.layers:
            x = layer(x, bias)
        return model.final_norm(x)


def published_batch(graphs: list[Graph]) -> dict[str, Tensor]:
    """The batch with dense edges (batch, n, n, hops, features) in the place of ``paths``."""
    batch = collate(graphs, HOPS)
    n, features = batch["nodes"].shape[1], graphs[0].bond_features.shape[1]
    edges = torch.zeros(len(graphs), n, n, HOPS, features, dtype=torch.int64)
    distances = torch.full((len(graphs), n, n), 511)
    for row, graph in enumerate(graphs):
        found, codes = plain_paths(graph)
        distances[row, : len(graph), : len(graph)] = torch.from_numpy(found)
        edges[row, : len(graph), : len(graph)] = torch.from_numpy(codes)
    kept = {key: batch[key] for key in ("nodes", "degrees", "attention_mask")}
    return kept | {"distances": distances, "edges": edges}
