"""Graphormer (Ying et al., NeurIPS 2021) as a model of transformers, batch first, in plain torch.

Its virtual node [VNode] is joined to every atom and stands for the molecule: it is what [CLS] is for sentences and images, and
the first token here. transformers itself has no Graphormer any more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from sepnorm.domains.molecules.attention import Dropout, attend
from sepnorm.domains.molecules.batches import collate, parts_by_size
from sepnorm.domains.molecules.graphs import Graph, feature_set, offsets
from sepnorm.errors import SepNormError
from sepnorm.layer import TokenNorm


class GraphormerConfig(PretrainedConfig):
    """Sizes of a Graphormer; the defaults are Graphormer-slim, for ZINC.

    Args:
        features: the feature set of the graphs, ``"zinc"`` or ``"ogb"``.
        max_degree: atoms with more bonds count as having so many.
        max_distance: atoms further apart count as being so far apart.
        max_hops: bonds along a path that count, as in ``collate``.
    """

    model_type = "sepnorm-graphormer"

    def __init__(
        self,
        features: str = "zinc",
        hidden_size: int = 80,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 8,
        intermediate_size: int = 80,
        hidden_dropout_prob: float = 0.0,
        attention_probs_dropout_prob: float = 0.1,
        activation_dropout_prob: float = 0.1,
        max_degree: int = 15,
        max_distance: int = 31,
        max_hops: int = 5,
        layer_norm_eps: float = 1e-5,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        feature_set(features)
        if hidden_size % num_attention_heads:
            raise SepNormError(f"hidden_size {hidden_size} cannot be divided among {num_attention_heads} heads.")
        self.features = features
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.activation_dropout_prob = activation_dropout_prob
        self.max_degree = max_degree
        self.max_distance = max_distance
        self.max_hops = max_hops
        self.layer_norm_eps = layer_norm_eps
        self.initializer_range = initializer_range
        super().__init__(**kwargs)


def hidden_code(features: str) -> int:
    """The code of an atom of which nothing is to be seen, after those of the feature set."""
    return sum(feature_set(features).atoms)


class GraphormerEmbeddings(nn.Module):
    """[VNode] first, then each atom: what it is and how many bonds it has."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.atoms = nn.Embedding(hidden_code(config.features) + 1, config.hidden_size)
        # Centrality has a table for bonds in and one for bonds out, as published, also where bonds have no direction.
        self.degrees_in = nn.Embedding(config.max_degree + 1, config.hidden_size)
        self.degrees_out = nn.Embedding(config.max_degree + 1, config.hidden_size)
        self.virtual_node = nn.Embedding(1, config.hidden_size)

    def forward(self, nodes: Tensor, degrees: Tensor) -> Tensor:
        """``nodes`` (batch, N, features), ``degrees`` (batch, N): tokens (batch, 1 + N, width)."""
        bonds = degrees.clamp(max=self.degrees_in.num_embeddings - 1)
        tokens = self.atoms(nodes).sum(dim=2) + self.degrees_in(bonds) + self.degrees_out(bonds)
        return torch.cat([self.virtual_node.weight.expand(len(nodes), 1, -1), tokens], dim=1)


class GraphormerBias(nn.Module):
    """What each head adds to attention between two atoms: a number for their distance, and one for the bonds on the way.

    Published, the second is the mean over the bonds on a shortest path of (embedding of the bond) · (weight of the hop). Bonds
    are of few kinds, so the product is worked out once for every hop and kind, a table of (hops * kinds, heads), and a
    matrix product with ``paths`` looks it up and takes the mean: no tensor with an embedding for each hop of each pair.
    """

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        heads = config.num_attention_heads
        self.max_distance, self.hops = config.max_distance, config.max_hops
        # Rows: no path, distances 0 to the largest, and the distance of [VNode] from everything.
        self.distances = nn.Embedding(config.max_distance + 3, heads)
        self.bonds = nn.Embedding(sum(feature_set(config.features).bonds), heads)
        self.hop_weights = nn.Embedding(config.max_hops, heads * heads)

    def forward(self, distances: Tensor, paths: Tensor, padding: Tensor | None) -> Tensor:
        """``distances`` (batch, N, N), ``paths`` (batch, N, N, hops * kinds), ``padding`` (batch, 1 + N), True where padded:
        (batch, heads, 1 + N, 1 + N), minus infinity where the second token is padding."""
        row = (distances + 1).clamp(max=self.max_distance + 1)
        row = F.pad(row, (1, 0, 1, 0), value=self.max_distance + 2)
        edges = F.pad(paths.to(self.bonds.weight.dtype) @ self.edge_table(), (0, 0, 1, 0, 1, 0))
        bias = (self.distances(row) + edges).permute(0, 3, 1, 2)
        if padding is not None:
            bias = bias.masked_fill(padding[:, None, None, :], float("-inf"))
        return bias.contiguous()

    def edge_table(self) -> Tensor:
        """The number of each head for a bond of each kind at each hop: (hops * kinds, heads)."""
        heads = self.bonds.embedding_dim
        weights = self.hop_weights.weight.view(self.hops, heads, heads)
        return (self.bonds.weight @ weights).flatten(0, 1)


class GraphormerAttention(nn.Module):
    """Self-attention of all tokens with a bias for each pair and head."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.dropout = config.attention_probs_dropout_prob
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """``x`` (batch, tokens, width), ``bias`` (batch, heads, tokens, tokens): (batch, tokens, width)."""
        return self.out(attend(self.query_key_value(x), bias, self.dropout if self.training else 0.0))


class GraphormerLayer(nn.Module):
    """One block, norms first."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = GraphormerAttention(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.hidden_size, config.intermediate_size),
            nn.GELU(),
            Dropout(config.activation_dropout_prob),
            nn.Linear(config.intermediate_size, config.hidden_size),
        )
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class GraphormerPreTrainedModel(PreTrainedModel):
    """What a Graphormer with or without a head has in common."""

    config_class = GraphormerConfig
    base_model_prefix = "graphormer"
    main_input_name = "nodes"
    _no_split_modules = ("GraphormerLayer",)

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """A batch of three chains of four different atoms each, to try a model out without data."""
        features = feature_set(self.config.features)
        chain = np.array([[0, 1], [1, 2], [2, 3]], dtype=np.uint8)
        graphs = []
        for number in range(3):
            atoms = (np.arange(4)[:, None] + number) % np.array(features.atoms) + offsets(features.atoms)
            bonds = (np.arange(3)[:, None] + number) % np.array(features.bonds) + offsets(features.bonds)
            graphs.append(Graph(atoms.astype(np.uint8), chain, bonds.astype(np.uint8), features.name))
        return collate(graphs, self.config.max_hops)


class GraphormerModel(GraphormerPreTrainedModel):
    """Graphormer without a head: from a batch of ``collate`` to vectors of [VNode] and of the atoms."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__(config)
        self.embeddings = GraphormerEmbeddings(config)
        self.bias = GraphormerBias(config)
        self.emb_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(GraphormerLayer(config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()

    def forward(
        self, nodes: Tensor, degrees: Tensor, distances: Tensor, paths: Tensor, attention_mask: Tensor | None = None
    ) -> BaseModelOutput:
        """Takes the batch of ``sepnorm.domains.molecules.batches.collate``, whose shapes are described there.

        Returns:
            ``last_hidden_state`` (batch, 1 + N, width), [VNode] first; at padding there is nothing of meaning.
        """
        self._check(nodes, distances, paths, attention_mask)
        padding = None if attention_mask is None else attention_mask == 0
        if padding is None or not self._may_part(padding):
            x = self._blocks(nodes, degrees, distances, paths, padding)
        else:
            x = self._by_size(nodes, degrees, distances, paths, padding)
        return BaseModelOutput(last_hidden_state=self.final_norm(x))

    def _blocks(
        self, nodes: Tensor, degrees: Tensor, distances: Tensor, paths: Tensor, padding: Tensor | None
    ) -> Tensor:
        """All but the last norm: (batch, 1 + N, width)."""
        bias = self.bias(distances, paths, padding)
        x = self.dropout(self.emb_layer_norm(self.embeddings(nodes, degrees)))
        for layer in self.layers:
            x = layer(x, bias)
        return x

    def _may_part(self, padding: Tensor) -> bool:
        """Whether the molecules of a batch do not meet before the last norm, and parting them pays: in training on a CPU.

        A norm that was replaced may take its statistics of the whole batch.
        """
        if not (self.training and torch.is_grad_enabled() and padding.device.type == "cpu"):
            return False
        before = (module for name, module in self.named_modules() if not name.startswith("final_norm"))
        return not any(isinstance(module, TokenNorm) for module in before) and not torch.compiler.is_compiling()

    def _by_size(self, nodes: Tensor, degrees: Tensor, distances: Tensor, paths: Tensor, padding: Tensor) -> Tensor:
        """``_blocks`` by some molecules of similar size at a time, which are padded to the largest of them alone."""
        largest = nodes.shape[1]
        sizes = (~padding[:, 1:] * torch.arange(1, largest + 1)).amax(1)
        ascending, order = sizes.sort(stable=True)
        found = []
        for rows in order.split(parts_by_size(ascending.tolist())):
            n = int(sizes[rows[-1]])
            some = self._blocks(
                nodes[:, :n][rows],
                degrees[:, :n][rows],
                distances[:, :n, :n][rows],
                paths[:, :n, :n][rows],
                padding[:, : 1 + n][rows],
            )
            found.append(F.pad(some, (0, 0, 0, largest - n)))
        return torch.cat(found)[order.argsort()]

    def _check(self, nodes: Tensor, distances: Tensor, paths: Tensor, mask: Tensor | None) -> None:
        features, (batch, atoms) = feature_set(self.config.features), nodes.shape[:2]
        wanted = {
            "nodes": (nodes, (batch, atoms, len(features.atoms))),
            "distances": (distances, (batch, atoms, atoms)),
            "paths": (paths, (batch, atoms, atoms, self.config.max_hops * sum(features.bonds))),
            "attention_mask": (nodes.new_empty(batch, 1 + atoms) if mask is None else mask, (batch, 1 + atoms)),
        }
        for name, (found, shape) in wanted.items():
            if tuple(found.shape) != shape:
                raise SepNormError(
                    f"{name} has the shape {shape} for a Graphormer with features {features.name!r} and max_hops "
                    f"{self.config.max_hops}, found {tuple(found.shape)}: featurise and collate with the same."
                )


AutoConfig.register(GraphormerConfig.model_type, GraphormerConfig, exist_ok=True)
AutoModel.register(GraphormerConfig, GraphormerModel, exist_ok=True)
