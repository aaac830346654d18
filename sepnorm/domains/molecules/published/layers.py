"""Layers of a published Graphormer, batch first, under the names of its weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from sepnorm.domains.molecules.attention import Dropout, attend
from sepnorm.domains.molecules.published.config import PublishedConfig


class NodeFeature(nn.Module):
    """Embeddings of [VNode], then of each atom by its features and degrees."""

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__()
        width = config.embedding_dim
        self.atom_encoder = nn.Embedding(config.num_atoms + 1, width, padding_idx=0)
        self.in_degree_encoder = nn.Embedding(config.num_in_degree, width, padding_idx=0)
        self.out_degree_encoder = nn.Embedding(config.num_out_degree, width, padding_idx=0)
        self.graph_token = nn.Embedding(1, width)

    def forward(self, nodes: Tensor, in_degree: Tensor, out_degree: Tensor) -> Tensor:
        """From ``nodes`` (batch, N, features) and degrees (batch, N) to tokens (batch, 1 + N, width)."""
        atoms = (
            self.atom_encoder(nodes).sum(-2) + self.in_degree_encoder(in_degree) + self.out_degree_encoder(out_degree)
        )
        return torch.cat([self.graph_token.weight.expand(len(nodes), 1, -1), atoms], dim=1)


class AttentionBias(nn.Module):
    """The attention bias of each head between two atoms, from their distance and the bonds on a shortest path.

    The published model takes the mean over bonds of (embedding of the bond) · (weight of the hop). Here the product is
    computed once per hop and row of the bond table, then looked up, without an embedding per hop of each pair.
    """

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__()
        heads = config.num_attention_heads
        self.hops = config.multi_hop_max_dist if config.edge_type == "multi_hop" else 0
        self.edge_encoder = nn.Embedding(config.num_edges + 1, heads, padding_idx=0)
        if self.hops:
            self.edge_dis_encoder = nn.Embedding(config.num_edge_dis * heads * heads, 1)
        self.spatial_pos_encoder = nn.Embedding(config.num_spatial, heads, padding_idx=0)
        self.graph_token_virtual_distance = nn.Embedding(1, heads)

    def forward(
        self,
        attn_bias: Tensor,
        spatial_pos: Tensor,
        input_edges: Tensor,
        attn_edge_type: Tensor | None,
        padding: Tensor,
    ) -> Tensor:
        """From tensors of ``collate`` and ``padding`` (batch, 1 + N) to a bias (batch, heads, 1 + N, 1 + N)."""
        edges = self._on_the_way(spatial_pos, input_edges) if self.hops else self.edge_encoder(attn_edge_type).mean(-2)
        pairs = F.pad((self.spatial_pos_encoder(spatial_pos) + edges).permute(0, 3, 1, 2), (1, 0, 1, 0))
        to_virtual = torch.zeros_like(attn_bias[:1])
        to_virtual[:, 0] = to_virtual[:, :, 0] = 1.0
        virtual = self.graph_token_virtual_distance.weight.view(1, -1, 1, 1) * to_virtual[:, None]
        bias = pairs + virtual + 2 * attn_bias[:, None].to(pairs.dtype)  # the published code adds it twice
        bias = bias.masked_fill(padding[:, None, None, :], float("-inf"))
        return bias.transpose(0, 1).contiguous().transpose(0, 1)  # heads outermost, as attention reads it

    def _on_the_way(self, spatial_pos: Tensor, input_edges: Tensor) -> Tensor:
        """The mean over the first bonds of a path, at most ``hops`` of them (batch, N, N, heads)."""
        codes = input_edges[:, :, :, : self.hops]
        hops, features = codes.shape[-2:]
        rows, heads = self.edge_encoder.weight.shape
        weights = self.edge_dis_encoder.weight.view(-1, heads, heads)[:hops]
        table = (self.edge_encoder.weight / features @ weights).flatten(0, 1)
        places = codes + rows * torch.arange(hops, device=codes.device)[:, None]
        sums = F.embedding_bag(places.reshape(-1, hops * features), table, mode="sum")
        return sums.view(*spatial_pos.shape, heads) / (spatial_pos - 1).clamp(1, self.hops)[..., None]


class SelfAttention(nn.Module):
    """Self-attention with a bias per pair and head."""

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__()
        width = config.embedding_dim
        self.dropout = config.attention_dropout
        self.k_proj, self.v_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.q_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """From ``x`` (batch, tokens, width) and ``bias`` (batch, heads, tokens, tokens) to (batch, tokens, width)."""
        joint = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)
        return self.out_proj(attend(joint, bias, self.dropout if self.training else 0.0))


class EncoderLayer(nn.Module):
    """One block, pre-norm or post-norm."""

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__()
        width = config.embedding_dim
        self.norms_first = config.pre_layernorm
        self.self_attn = SelfAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, config.ffn_embedding_dim), nn.Linear(config.ffn_embedding_dim, width)
        self.final_layer_norm = nn.LayerNorm(width)
        self.activation = ACT2FN[config.activation_fn]
        self.dropout, self.activation_dropout = Dropout(config.dropout), Dropout(config.activation_dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        if self.norms_first:
            x = x + self.dropout(self.self_attn(self.self_attn_layer_norm(x), bias))
            return x + self._feed_forward(self.final_layer_norm(x))
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, bias)))
        return self.final_layer_norm(x + self._feed_forward(x))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.activation_dropout(self.activation(self.fc1(x)))))


class GraphEncoder(nn.Module):
    """Embeddings and blocks."""

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__()
        self.embed_scale = config.embed_scale
        self.graph_node_feature = NodeFeature(config)
        self.graph_attn_bias = AttentionBias(config)
        self.emb_layer_norm = nn.LayerNorm(config.embedding_dim) if config.encoder_normalize_before else None
        if config.pre_layernorm:
            self.final_layer_norm = nn.LayerNorm(config.embedding_dim)  # the published forward never calls it
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))
        for layer in self.layers[: config.num_trans_layers_to_freeze]:
            layer.requires_grad_(False)

    def forward(self, x: Tensor, bias: Tensor) -> list[Tensor]:
        """Tokens (batch, 1 + N, width) after the embeddings and after every block."""
        if self.embed_scale is not None:
            x = x * self.embed_scale
        if self.emb_layer_norm is not None:
            x = self.emb_layer_norm(x)
        states = [self.dropout(x)]
        for layer in self.layers:
            states.append(layer(states[-1], bias))
        return states


class Encoder(nn.Module):
    """Embeddings, blocks, and the transform of all tokens before the head."""

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__()
        self.graph_encoder = GraphEncoder(config)
        self.lm_head_transform_weight = nn.Linear(config.embedding_dim, config.embedding_dim)
        self.activation = ACT2FN[config.activation_fn]
        self.layer_norm = nn.LayerNorm(config.embedding_dim)

    def forward(self, x: Tensor, bias: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The input of the head (batch, 1 + N, width), and the hidden states."""
        states = self.graph_encoder(x, bias)
        return self.layer_norm(self.activation(self.lm_head_transform_weight(states[-1]))), states


class Head(nn.Module):
    """Linear head on [VNode], with one bias for all outputs."""

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__()
        self.lm_output_learned_bias = nn.Parameter(torch.zeros(1))
        self.classifier = nn.Linear(config.embedding_dim, config.num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x) + self.lm_output_learned_bias
