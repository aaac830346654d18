"""Settings of a published Graphormer, under their names in transformers 4."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig
from transformers.activations import ACT2FN

from sepnorm.domains.molecules.graphs import MOST_ATOMS, feature_set
from sepnorm.errors import SepNormError, require_known

#: Settings that change the computation, with the only value of each in the published checkpoints.
FIXED: dict[str, Any] = {
    "share_input_output_embed": False,
    "layerdrop": 0.0,
    "q_noise": 0.0,
    "kdim": None,
    "vdim": None,
    "bias": True,
    "self_attention": True,
    "pad_token_id": 0,
}
#: Offset from the category of an atom to its row of the table, by collator. The weights on the Hub were trained with
#: Microsoft's collator; that of transformers adds one more. "shifted" is Microsoft's for a table that ``save_published``
#: shifted by a row, so that the collator of transformers finds the same vectors in it.
COLLATORS = {"transformers": 3, "microsoft": 2, "shifted": 3}
#: Limit of ``spatial_pos`` in the collator of transformers, which ignores the config.
_TRANSFORMERS_POS_MAX = 20


class PublishedConfig(PretrainedConfig):
    """Sizes and settings of a published Graphormer. The defaults are those of transformers 4: Graphormer-base.

    Args:
        num_classes: number of outputs of the head; 0 for a model without a head.
        num_atoms: rows of the atom table, without the one for padding.
        num_edges: rows of the bond table, without the one for padding.
        num_in_degree: rows of the table of in-degrees.
        num_out_degree: rows of the table of out-degrees.
        num_spatial: rows of the table of distances.
        num_edge_dis: rows of the table of hops.
        multi_hop_max_dist: number of bonds of a shortest path that count.
        spatial_pos_max: distance from which atoms do not attend to each other, but for the collator ``"transformers"``.
        edge_type: ``"multi_hop"`` for all bonds of a shortest path, ``"one_hop"`` for the bond between two atoms.
        max_nodes: largest number of atoms.
        num_hidden_layers: number of blocks.
        embedding_dim: width of tokens.
        ffn_embedding_dim: width of the feed-forward layer.
        num_attention_heads: number of heads; must divide ``embedding_dim``.
        dropout: dropout of embeddings, and of the outputs of attention and feed-forward.
        attention_dropout: dropout of attention weights.
        activation_dropout: dropout inside the feed-forward layer.
        encoder_normalize_before: normalise the embeddings.
        pre_layernorm: norms before attention and feed-forward; by default after the residual sum.
        apply_graphormer_init: initialise attention like all other weights; by default Xavier-uniform.
        activation_fn: name of the activation, as in transformers.
        embed_scale: factor of the embeddings; None for 1.
        num_trans_layers_to_freeze: number of leading blocks that are not trained.
        features: the feature set of atoms and bonds, ``"ogb"`` or ``"zinc"``.
        collator: the collator that turns molecules into tensors, ``"transformers"`` or ``"microsoft"``; ``"shifted"``
            for Microsoft's with an atom table that ``save_published`` shifted.
        **kwargs: settings of every ``PretrainedConfig``.
    """

    model_type = "graphormer"

    def __init__(
        self,
        num_classes: int = 1,
        num_atoms: int = 512 * 9,
        num_edges: int = 512 * 3,
        num_in_degree: int = 512,
        num_out_degree: int = 512,
        num_spatial: int = 512,
        num_edge_dis: int = 128,
        multi_hop_max_dist: int = 5,
        spatial_pos_max: int = 1024,
        edge_type: str = "multi_hop",
        max_nodes: int = 512,
        num_hidden_layers: int = 12,
        embedding_dim: int = 768,
        ffn_embedding_dim: int = 768,
        num_attention_heads: int = 32,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        activation_dropout: float = 0.1,
        encoder_normalize_before: bool = False,
        pre_layernorm: bool = False,
        apply_graphormer_init: bool = False,
        activation_fn: str = "gelu",
        embed_scale: float | None = None,
        num_trans_layers_to_freeze: int = 0,
        features: str = "ogb",
        collator: str = "transformers",
        **kwargs: Any,
    ) -> None:
        if kwargs.get("architectures") == ["GraphormerModel"]:  # without a head, whatever num_classes says
            num_classes = 0
            del kwargs["architectures"]
        for name, value in FIXED.items():
            if kwargs.setdefault(name, value) != value:
                raise SepNormError(
                    f"a Graphormer with {name}={kwargs[name]!r} cannot be built: {value!r} is what the published ones have."
                )
        feature_set(features)
        require_known("collator", collator, COLLATORS)
        require_known("activation", activation_fn, ACT2FN)
        if embedding_dim < 1 or num_attention_heads < 1 or embedding_dim % num_attention_heads:
            raise SepNormError(f"embedding_dim {embedding_dim} cannot be divided among {num_attention_heads} heads.")
        if not 1 <= multi_hop_max_dist <= num_edge_dis:
            raise SepNormError(
                f"multi_hop_max_dist lies between 1 and num_edge_dis={num_edge_dis}, found {multi_hop_max_dist}."
            )
        for name, size in {"max_nodes": max_nodes, "spatial_pos_max": spatial_pos_max}.items():
            if not isinstance(size, int) or size < 1:
                raise SepNormError(f"{name} is a whole number from 1 on, found {size!r}.")
        if not isinstance(embed_scale, int | float | None):
            raise SepNormError(f"embed_scale is a number or None, found {embed_scale!r}.")
        self.num_classes = num_classes
        self.num_atoms = num_atoms
        self.num_edges = num_edges
        self.num_in_degree = num_in_degree
        self.num_out_degree = num_out_degree
        self.num_spatial = num_spatial
        self.num_edge_dis = num_edge_dis
        self.multi_hop_max_dist = multi_hop_max_dist
        self.spatial_pos_max = spatial_pos_max
        self.edge_type = edge_type
        self.max_nodes = max_nodes
        self.num_hidden_layers = num_hidden_layers
        self.embedding_dim = self.hidden_size = embedding_dim
        self.ffn_embedding_dim = ffn_embedding_dim
        self.num_attention_heads = num_attention_heads
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.encoder_normalize_before = encoder_normalize_before
        self.pre_layernorm = pre_layernorm
        self.apply_graphormer_init = apply_graphormer_init
        self.activation_fn = activation_fn
        self.embed_scale = embed_scale
        self.num_trans_layers_to_freeze = num_trans_layers_to_freeze
        self.features = features
        self.collator = collator
        super().__init__(**kwargs)

    @property
    def max_atoms(self) -> int:
        """Largest number of atoms of a molecule, limited by the model and by ``Graph``."""
        return min(self.max_nodes, MOST_ATOMS)

    @property
    def farthest(self) -> int:
        """The distance from which two atoms do not attend to each other."""
        return _TRANSFORMERS_POS_MAX - 1 if self.collator == "transformers" else self.spatial_pos_max
