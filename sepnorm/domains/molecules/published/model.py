"""Graphormer for published weights, with the module names and arithmetic of transformers 4.

To train a new model, use ``sepnorm.domains.molecules.graphormer``: it is faster, and uses all shortest paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput

from sepnorm.domains.molecules.features import as_graphs
from sepnorm.domains.molecules.graphs import Graph, example_graphs
from sepnorm.domains.molecules.published.batches import collate
from sepnorm.domains.molecules.published.config import PublishedConfig
from sepnorm.domains.molecules.published.layers import Encoder, Head, SelfAttention
from sepnorm.errors import SepNormError


@dataclass
class GraphormerOutput(ModelOutput):
    """Output of a published Graphormer. [VNode] is the first token.

    Attributes:
        loss: the loss, if labels were passed.
        logits: (batch, classes); None without a head.
        last_hidden_state: (batch, 1 + N, width). Its values at padding are undefined.
        hidden_states: such a tensor after the embeddings and after each block, if requested.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class GraphormerForGraphClassification(PreTrainedModel):
    """Graphormer (Ying et al., NeurIPS 2021) with published weights: ``sepnorm.Graphormer``.

    The class name is the one in the published ``config.json`` files. Open a checkpoint by
    ``Graphormer.from_published``.

    Args:
        config: sizes and settings.

    Example:
        >>> from sepnorm.domains.molecules.features import featurise
        >>> from sepnorm.domains.molecules.published.config import PublishedConfig
        >>> model = GraphormerForGraphClassification(PublishedConfig(num_hidden_layers=1, embedding_dim=64)).eval()
        >>> graphs, rejected = featurise(["CCO", "c1ccccc1"], "ogb")
        >>> out = model(**model.collate(graphs))
        >>> out.logits.shape, out.last_hidden_state.shape
        (torch.Size([2, 1]), torch.Size([2, 7, 64]))
    """

    config_class = PublishedConfig
    base_model_prefix = "encoder"
    main_input_name = "input_nodes"
    _no_split_modules = ("EncoderLayer",)

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config)
        self.classifier = Head(config) if config.num_classes else None
        self.post_init()

    @classmethod
    def from_published(
        cls,
        source: str | Path,
        *,
        features: str | None = None,
        collator: str | None = None,
        multi_hop_max_dist: int | None = None,
    ) -> Self:
        """Opens published weights. The model is in evaluation mode.

        Args:
            source: a folder of transformers 4 (``GraphormerForGraphClassification`` or ``GraphormerModel``), a
                checkpoint of Microsoft's repository (``.pt``), or a name on the Hub, such as
                ``graphormer-base-pcqm4mv2``. Pickled weights are read with ``weights_only``, which runs no code.
            features: the feature set; by default that of the config, else ``"ogb"``.
            collator: the collator that the model was trained with; by default that of the library that saved it. See
                ``PublishedConfig``.
            multi_hop_max_dist: number of bonds of a path that count; by default that of the checkpoint, else 5.

        Returns:
            The model.

        Raises:
            SepNormError: if the source is no complete Graphormer checkpoint, or cannot be downloaded.
        """
        from sepnorm.domains.molecules.published.files import read_published

        given = {"features": features, "collator": collator, "multi_hop_max_dist": multi_hop_max_dist}
        return read_published(cls, source, {key: value for key, value in given.items() if value is not None})

    def save_published(self, folder: str | Path) -> None:
        """Writes ``config.json`` and ``model.safetensors`` for ``from_pretrained`` of transformers 4.

        A model without a head is written as ``GraphormerModel``. The format has no separate norms: call
        ``sepnorm.revert`` before, or use ``sepnorm.save`` to keep them.

        With Microsoft's collator, the atom table is shifted by a row for the collator of transformers, which also
        hides atoms from each other that are 19 or more bonds apart or not connected: a warning says so. Opened here
        again, the model is the same.

        Args:
            folder: the folder to write to; it is created if needed.

        Raises:
            SepNormError: if the model has separate norms.
        """
        from sepnorm.domains.molecules.published.saving import write_published

        write_published(self, Path(folder))

    @property
    def max_atoms(self) -> int:
        """Largest number of atoms of a molecule."""
        return self.config.max_atoms

    def collate(self, graphs: Sequence[Graph] | Any) -> dict[str, Tensor]:
        """Makes the batch that the model takes, on the model's device.

        Args:
            graphs: graphs of ``featurise``, or ``Data`` or a ``Batch`` of PyG.

        Returns:
            Tensors by name: the arguments of ``forward``.
        """
        batch = collate(as_graphs(graphs, self.config.features), self.config)
        return {name: value.to(self.device) for name, value in batch.items()}

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """A batch of three chains of atoms, to test a model without data."""
        return self.collate(example_graphs(self.config.features))

    def forward(
        self,
        input_nodes: Tensor | Any,
        input_edges: Tensor | None = None,
        attn_bias: Tensor | None = None,
        in_degree: Tensor | None = None,
        out_degree: Tensor | None = None,
        spatial_pos: Tensor | None = None,
        attn_edge_type: Tensor | None = None,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> GraphormerOutput:
        """Runs the model on the tensors of ``collate`` or of transformers' ``GraphormerDataCollator``.

        Args:
            input_nodes: (batch, N, atom features) rows of the atom table, 0 for padding; or ``Data`` or a ``Batch`` of
                PyG instead of all tensors.
            input_edges: (batch, N, N, hops, bond features) rows of the bond table along a shortest path.
            attn_bias: (batch, 1 + N, 1 + N) minus infinity between atoms that do not attend to each other.
            in_degree: (batch, N) number of bonds of each atom + 1, 0 for padding.
            out_degree: the same for outgoing bonds; default ``in_degree``.
            spatial_pos: (batch, N, N) number of bonds between two atoms + 1, 0 for padding.
            attn_edge_type: (batch, N, N, bond features) rows of the bond table; used with ``edge_type="one_hop"``.
            labels: with one output, numbers (batch,) for the mean squared error. With several, one class per sample
                (batch,), or 0 and 1 for each output (batch, classes), NaN where unknown.
            attention_mask: (batch, 1 + N) 0 for padding; by default derived from ``input_nodes``.
            output_hidden_states: also return the states after the embeddings and each block.

        Returns:
            Logits, hidden states and, with labels, the loss.

        Raises:
            SepNormError: if a tensor is missing, has a wrong shape, or has values outside of its table.
        """
        if not isinstance(input_nodes, Tensor):
            return self(**self.collate(input_nodes), labels=labels, output_hidden_states=output_hidden_states)
        batch, atoms = input_nodes.shape[:2] if input_nodes.dim() == 3 else (-1, -1)
        pairs = (batch, atoms, atoms)
        nodes = _required("input_nodes", input_nodes, (batch, atoms, -1), self.config.num_atoms)
        edges = _required("input_edges", input_edges, (*pairs, -1, -1), self.config.num_edges)
        spatial_pos = _required("spatial_pos", spatial_pos, pairs, self.config.num_spatial - 1)
        in_degree = _required("in_degree", in_degree, (batch, atoms), self.config.num_in_degree - 1)
        out_degree = in_degree if out_degree is None else out_degree
        out_degree = _required("out_degree", out_degree, (batch, atoms), self.config.num_out_degree - 1)
        attn_bias = _required("attn_bias", attn_bias, (batch, 1 + atoms, 1 + atoms))
        if attn_edge_type is not None or self.config.edge_type != "multi_hop":
            _required("attn_edge_type", attn_edge_type, (*pairs, -1), self.config.num_edges)
        if attention_mask is not None:
            _required("attention_mask", attention_mask, (batch, 1 + atoms))
        padding = F.pad(nodes[:, :, 0] == 0, (1, 0)) if attention_mask is None else attention_mask == 0
        graph = self.encoder.graph_encoder
        bias = graph.graph_attn_bias(attn_bias, spatial_pos, edges, attn_edge_type, padding)
        last, states = self.encoder(graph.graph_node_feature(nodes, in_degree, out_degree), bias)
        logits = None if self.classifier is None else self.classifier(last[:, 0])
        loss = None if labels is None or logits is None else _loss(logits, labels)
        return GraphormerOutput(loss, logits, last, tuple(states) if output_hidden_states else None)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SelfAttention) and not self.config.apply_graphormer_init:
            for part in (module.q_proj, module.k_proj, module.v_proj):
                init.xavier_uniform_(part.weight, gain=2**-0.5)
            init.xavier_uniform_(module.out_proj.weight)


def _required(name: str, value: Any, shape: tuple[int, ...], most: int | None = None) -> Tensor:
    """Checks shape, where -1 is any length but 0, and range, 0 to ``most``, of a tensor of a batch."""
    if not isinstance(value, Tensor):
        raise SepNormError(
            f"{name} is a tensor, found {type(value).__name__}: a published Graphormer takes all tensors of a batch, by "
            "model(**model.collate(graphs))."
        )
    fits = value.dim() == len(shape) and all(a in (b, -1) and b for a, b in zip(shape, value.shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if side < 0 else str(side) for side in shape)
        raise SepNormError(
            f"{name} has the shape ({wanted}), found {tuple(value.shape)}: model.collate makes such batches."
        )
    if most is not None and not torch.compiler.is_compiling():
        low, high = (int(end) for end in value.aminmax())
        if low < 0 or high > most:
            raise SepNormError(
                f"{name} holds {low if low < 0 else high}, and the model has a table of 0 to {most} for it: featurise with the "
                "features that it was trained with."
            )
    return value


def _loss(logits: Tensor, labels: Any) -> Tensor:
    """The loss of transformers 4. Missing labels (NaN) do not count; it is 0 if all are missing."""
    if not isinstance(labels, Tensor) or tuple(labels.shape) not in (logits.shape, logits.shape[:1]):
        found = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise SepNormError(f"labels have the shape {tuple(logits.shape[:1])} or {tuple(logits.shape)}, found {found}.")
    known = ~labels.isnan() if labels.is_floating_point() else torch.ones_like(labels, dtype=torch.bool)
    if logits.shape[1] == 1:
        squares = F.mse_loss(logits.view_as(labels)[known], labels[known].to(logits.dtype), reduction="sum")
        return squares / known.sum().clamp(min=1)
    if labels.dim() == 1:
        wanted = labels[known].long()
        return F.cross_entropy(logits[known], wanted, reduction="sum") / (wanted >= 0).sum().clamp(min=1)
    return F.binary_cross_entropy_with_logits(logits[known], labels[known].to(logits.dtype), reduction="sum")


AutoConfig.register(PublishedConfig.model_type, PublishedConfig, exist_ok=True)
AutoModel.register(PublishedConfig, GraphormerForGraphClassification, exist_ok=True)
