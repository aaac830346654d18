"""Graphormer (Ying et al., NeurIPS 2021) as a model of transformers, batch first, in plain torch.

Its virtual node [VNode] is joined to every atom and stands for the molecule: it is what [CLS] is for sentences and images, and
the first token here. transformers itself has no Graphormer any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from sepnorm.distributed import is_sharded
from sepnorm.domains.molecules.attention import GELU, ColumnLinear, Dropout, attend
from sepnorm.domains.molecules.batches import collate, parts_by_size
from sepnorm.domains.molecules.features import as_graphs
from sepnorm.domains.molecules.graphs import MOST_ATOMS, Graph, example_graphs, feature_set
from sepnorm.errors import SepNormError
from sepnorm.layer import TokenNorm
from sepnorm.layer.torch_internals import is_watched, transforms_active


class GraphormerConfig(PretrainedConfig):
    """Sizes of a Graphormer. The defaults are Graphormer-slim, for ZINC.

    Args:
        features: the feature set of the graphs, ``"zinc"`` or ``"ogb"``.
        hidden_size: width of tokens.
        num_hidden_layers: number of blocks.
        num_attention_heads: number of heads; must divide ``hidden_size``.
        intermediate_size: width of the feed-forward layer.
        hidden_dropout_prob: dropout of embeddings, and of the outputs of attention and feed-forward.
        attention_probs_dropout_prob: dropout of attention weights.
        activation_dropout_prob: dropout inside the feed-forward layer.
        max_degree: larger degrees of atoms are clipped to this.
        max_distance: larger distances of atoms are clipped to this.
        max_hops: number of bonds of a shortest path that count, as in ``collate``.
        layer_norm_eps: eps of the layer norms.
        initializer_range: standard deviation of fresh weights.
        **kwargs: settings of every ``PretrainedConfig``.
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
        # Heads first: so the products are quick, and attention reads it so without a copy. The gradient of a choice of
        # columns takes a fraction of the time of that of an embedding.
        bias = self.distances.weight.t().index_select(1, row.flatten()).view(-1, *row.shape)
        kinds = paths.to(bias.dtype).flatten(0, 2)
        bias[:, :, 1:, 1:] += (self.edge_table().t() @ kinds.t()).view(-1, *distances.shape)
        if padding is not None:
            bias = bias.masked_fill_(padding[:, None, :], float("-inf"))
        return bias.transpose(0, 1)

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
        self.query_key_value = ColumnLinear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, bias: Tensor | Sequence[Tensor]) -> Tensor:
        """``x`` (batch, tokens, width), ``bias`` (batch, heads, tokens, tokens), or parts of a batch as in ``attend``."""
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
            GELU(),
            Dropout(config.activation_dropout_prob),
            nn.Linear(config.intermediate_size, config.hidden_size),
        )
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, bias: Tensor | Sequence[Tensor]) -> Tensor:
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
        """A batch of three chains of atoms, to try a model out without data."""
        return self.collate(example_graphs(self.config.features))

    @property
    def max_atoms(self) -> int:
        """Atoms that a molecule may have."""
        return MOST_ATOMS

    def collate(self, graphs: Sequence[Graph] | Any) -> dict[str, Tensor]:
        """Makes the batch that the model takes, on the model's device.

        Args:
            graphs: graphs of ``featurise``, or ``Data`` or a ``Batch`` of PyG.

        Returns:
            Tensors by name: the arguments of ``forward``.
        """
        batch = collate(as_graphs(graphs, self.config.features), self.config.max_hops)
        return {name: value.to(self.device) for name, value in batch.items()}


class GraphormerModel(GraphormerPreTrainedModel):
    """Graphormer without a head: from a batch of ``collate`` to vectors of [VNode] and atoms.

    Args:
        config: the sizes.
    """

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
        self,
        nodes: Tensor | Any,
        degrees: Tensor | None = None,
        distances: Tensor | None = None,
        paths: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> BaseModelOutput:
        """Encodes a batch: ``model(**model.collate(graphs))``, or ``model(batch)`` with a ``Batch`` of PyG.

        Args:
            nodes: (batch, N, features) codes of the atoms, or ``Data`` or a ``Batch`` of PyG instead of all tensors.
            degrees: (batch, N) number of bonds of each atom.
            distances: (batch, N, N) number of bonds between two atoms, -1 if there is no path.
            paths: (batch, N, N, max_hops * bond categories) bonds on the shortest paths.
            attention_mask: (batch, 1 + N) 0 for padding; by default nothing is padding.

        Returns:
            ``last_hidden_state`` (batch, 1 + N, width), [VNode] first. Its values at padding are undefined.
        """
        if not isinstance(nodes, Tensor):
            return self(**self.collate(nodes))
        if degrees is None or distances is None or paths is None:
            raise SepNormError("a Graphormer takes all tensors of a batch: call model(**model.collate(graphs)).")
        self._check(nodes, degrees, distances, paths, attention_mask)
        padding = None if attention_mask is None else attention_mask == 0
        if padding is None or not self._may_part(padding):
            x = self._blocks(self.embeddings(nodes, degrees), self.bias(distances, paths, padding))
        else:
            x = self._by_size(nodes, degrees, distances, paths, padding)
        return BaseModelOutput(last_hidden_state=self.final_norm(x))

    def _blocks(self, tokens: Tensor, bias: Tensor | Sequence[Tensor]) -> Tensor:
        """All between the embeddings and the last norm, in the shape of ``tokens``."""
        x = self.dropout(self.emb_layer_norm(tokens))
        for layer in self.layers:
            x = layer(x, bias)
        return x

    def _may_part(self, padding: Tensor) -> bool:
        """Whether the molecules of a batch do not meet before the last norm, and parting them pays: in training on a CPU.

        A norm that was replaced may take its statistics of the whole batch, and a hook expects whole molecules. Sharded blocks
        do their work by hooks.
        """
        if not (self.training and torch.is_grad_enabled() and padding.device.type == "cpu"):
            return False
        if torch.compiler.is_compiling() or any(is_sharded(layer) for layer in self.layers):
            return False
        before = (part for name, child in self.named_children() if name != "final_norm" for part in child.modules())
        return not any(isinstance(module, TokenNorm) or is_watched(module) for module in before)

    def _by_size(self, nodes: Tensor, degrees: Tensor, distances: Tensor, paths: Tensor, padding: Tensor) -> Tensor:
        """The same by parts: some molecules of similar size, which are padded to the largest of them alone.

        Layers have the tokens of all parts as rows (rows, width). Molecules meet in attention alone, part by part.
        """
        batch, largest = nodes.shape[:2]
        sizes = (~padding[:, 1:] * torch.arange(1, largest + 1)).amax(1)
        ascending, order = sizes.sort(stable=True)
        tokens, bias, places = [], [], []
        for rows in order.split(parts_by_size(ascending.tolist())):
            n = int(sizes[rows[-1]])
            tokens.append(self.embeddings(nodes[:, :n][rows], degrees[:, :n][rows]).flatten(0, 1))
            bias.append(self.bias(distances[:, :n, :n][rows], paths[:, :n, :n][rows], padding[:, : 1 + n][rows]))
            places.append((rows[:, None] * (1 + largest) + torch.arange(1 + n)).flatten())
        x = self._blocks(torch.cat(tokens), bias)
        whole = x.new_zeros(batch * (1 + largest), x.shape[1]).index_copy(0, torch.cat(places), x)
        return whole.view(batch, 1 + largest, -1)

    def _check(self, nodes: Tensor, degrees: Tensor, distances: Tensor, paths: Tensor, mask: Tensor | None) -> None:
        features, (batch, atoms) = feature_set(self.config.features), nodes.shape[:2]
        wanted = {
            "nodes": (nodes, (batch, atoms, len(features.atoms))),
            "degrees": (degrees, (batch, atoms)),
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
        # elsewhere the values are not known yet, or asking for them would wait for the device
        if nodes.device.type != "cpu" or torch.compiler.is_compiling() or transforms_active():
            return
        _require_range("nodes", nodes, 0, hidden_code(features.name))
        _require_range("degrees", degrees, 0)
        _require_range("distances", distances, -1)


def _require_range(name: str, values: Tensor, least: int, most: int | None = None) -> None:
    """Refuses a value that is in no table of the model. Without ``most``, larger values are clipped."""
    low, high = values.aminmax() if values.numel() else (least, least)
    if low < least or (most is not None and high > most):
        known = f"{least} or more" if most is None else f"{least} to {most}"
        raise SepNormError(
            f"{name} holds {int(low if low < least else high)}, and the model takes {known}: featurise with the features that it "
            "was trained with."
        )


AutoConfig.register(GraphormerConfig.model_type, GraphormerConfig, exist_ok=True)
AutoModel.register(GraphormerConfig, GraphormerModel, exist_ok=True)
