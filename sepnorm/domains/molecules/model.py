"""Graphormer with a head on [VNode] for a property, or with heads for hidden atoms and bonds to learn without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.distributed import mean_over_all
from sepnorm.domains.molecules.batches import buckets, collate
from sepnorm.domains.molecules.config import MoleculeConfig
from sepnorm.domains.molecules.features import as_graphs, featurise
from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel
from sepnorm.domains.molecules.graphs import Graph, example_graphs, feature_set
from sepnorm.domains.molecules.published import Graphormer
from sepnorm.losses import info_nce, uniformity_loss
from sepnorm.pooling import pool
from sepnorm.training.arm_norms import give_norms


def encode(graphormer: GraphormerModel | Graphormer, graphs: Sequence[Graph] | Any, size: int = 128) -> Tensor:
    """Encodes graphs as their [VNode]. The model is put into evaluation mode.

    Args:
        graphormer: the model.
        graphs: molecules with the feature set of the model, or what ``from_pyg`` takes.
        size: batch size.

    Returns:
        (count, width), in the order of ``graphs``.
    """
    return vectors(graphormer, graphs, ["cls"], size)["cls"]


@torch.no_grad()
def vectors(
    graphormer: GraphormerModel | Graphormer, graphs: Sequence[Graph] | Any, poolings: Sequence[str], size: int = 128
) -> dict[str, Tensor]:
    """Vectors (count, size) of each graph by each pooling: [VNode] is in the place of [CLS], and tokens are the atoms."""
    graphs = as_graphs(graphs, graphormer.config.features)
    if not graphs:
        others = vectors(graphormer, example_graphs(graphormer.config.features), poolings)
        return {name: vector[:0] for name, vector in others.items()}
    graphormer.eval()
    found: dict[str, Tensor] = {}
    for rows in buckets([len(graph) for graph in graphs], size):
        hidden = graphormer(**graphormer.collate([graphs[row] for row in rows])).last_hidden_state
        sizes = torch.tensor([len(graphs[row]) for row in rows], device=hidden.device)
        atoms, keep = atoms_of(hidden, torch.arange(hidden.shape[1], device=hidden.device) <= sizes[:, None])
        for name in poolings:
            some = pool(name, hidden[:, 0], atoms, keep).float().cpu()
            found.setdefault(name, some.new_empty(len(graphs), some.shape[1]))[rows] = some
    return found


def atoms_of(hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms (batch, N, width), and which are no padding (batch, N), of states and mask with [VNode] first; N is 2 or more.

    A batch of single atoms, such as methane, is padded, so that it has moments: those of the atom alone.
    """
    more = max(0, 3 - hidden.shape[1])
    return F.pad(hidden[:, 1:], (0, 0, 0, more)), F.pad(mask.bool()[:, 1:], (0, more))


@torch.no_grad()
def encode_atoms(
    graphormer: GraphormerModel | Graphormer, graphs: Sequence[Graph] | Any, size: int = 128
) -> list[Tensor]:
    """Encodes the atoms of graphs. The model is put into evaluation mode.

    Args:
        graphormer: the model.
        graphs: molecules with the feature set of the model, or what ``from_pyg`` takes.
        size: batch size.

    Returns:
        A tensor (atoms, width) for each graph, in the order of ``graphs``.
    """
    graphs = as_graphs(graphs, graphormer.config.features)
    graphormer.eval()
    found: dict[int, Tensor] = {}
    for rows in buckets([len(graph) for graph in graphs], size):
        hidden = graphormer(**graphormer.collate([graphs[row] for row in rows])).last_hidden_state.float().cpu()
        found |= {row: states[1 : 1 + len(graphs[row])].clone() for row, states in zip(rows, hidden, strict=True)}
    return [found[row] for row in range(len(graphs))]


class MoleculeModel(nn.Module):
    """``GraphormerModel`` as ``graphormer``, what a task needs on top of it, and the loss of a run's config."""

    def __init__(self, config: MoleculeConfig) -> None:
        super().__init__()
        self.settings = config
        torch.manual_seed(
            config.weights_seed
        )  # every norm starts from the same weights: those that convert adds are constants
        self.graphormer = GraphormerModel(
            GraphormerConfig(
                features=config.features,
                hidden_size=config.width,
                num_hidden_layers=config.depth,
                num_attention_heads=config.heads,
                intermediate_size=config.feed_forward,
                hidden_dropout_prob=config.dropout,
                attention_probs_dropout_prob=config.attention_dropout,
                activation_dropout_prob=config.activation_dropout,
                max_hops=config.max_hops,
            )
        )

    def separate(self) -> None:
        """Puts in the norms of the config, after all weights are drawn."""
        give_norms(self.graphormer, self.settings)

    def uniformity(self, hidden: Tensor, mask: Tensor) -> Tensor | float:
        """The weighted uniformity term of last hidden states (batch, 1 + N, width), without padding; 0 for none."""
        settings = self.settings
        if not settings.uniformity_weight:
            return 0.0
        term = hidden.new_zeros(())
        if settings.uniformity_on in ("cls", "both"):
            term = term + uniformity_loss(hidden[:, 0], settings.uniformity_form)
        if settings.uniformity_on in ("tokens", "both"):
            if settings.uniformity_within == "sample":
                parts = [h[m.bool()][None, 1:] for h, m in zip(hidden, mask, strict=True) if int(m.sum()) > 2]
                terms = [uniformity_loss(part, settings.uniformity_form, within="sample") for part in parts]
                term = term + torch.stack(terms).mean() if terms else term
            else:
                term = term + uniformity_loss(hidden[:, 1:][mask[:, 1:].bool()], settings.uniformity_form)
        return settings.uniformity_weight * term


class PropertyModel(MoleculeModel):
    """Predicts targets from [VNode]: standardised numbers by the mean absolute error, or classes by cross-entropy."""

    def __init__(self, config: MoleculeConfig, targets: int, classes: bool) -> None:
        super().__init__(config)
        self.classes = classes
        self.head = nn.Linear(config.width, targets)
        self.separate()

    def forward(self, targets: Tensor, **batch: Tensor) -> dict[str, Any]:
        """``targets`` (batch, targets), NaN where one is missing: these do not count."""
        hidden = self.graphormer(**batch).last_hidden_state
        predicted = self.head(hidden[:, 0])
        known = targets.isfinite()
        wanted = targets.nan_to_num()
        if self.classes:
            losses = F.binary_cross_entropy_with_logits(predicted, wanted, reduction="none")
        else:
            losses = (predicted - wanted).abs()
        loss = mean_over_all(losses * known, known.sum())
        return {"loss": loss + self.uniformity(hidden, batch["attention_mask"])}


class MaskedModel(MoleculeModel):
    """Predicts what hidden atoms and bonds are; of two masked views of a molecule, [VNode] of one is to find the other."""

    def __init__(self, config: MoleculeConfig) -> None:
        super().__init__(config)
        features = feature_set(config.features)
        self.atom_head = nn.Linear(config.width, features.atoms[0])
        self.bond_head = nn.Linear(config.width, features.bonds[0])
        self.separate()

    def forward(
        self, atoms: Tensor, atom_kinds: Tensor, bonds: Tensor, bond_kinds: Tensor, **batch: Tensor
    ) -> dict[str, Any]:
        """``atoms`` (hidden atoms,) are numbered through the padded batch, ``bonds`` (hidden bonds, 2) name two such atoms.

        With a contrastive term the second half of the batch are other views of the first.
        """
        hidden = self.graphormer(**batch).last_hidden_state
        vectors = hidden[:, 1:].flatten(0, 1)
        loss = _mean_cross_entropy(self.atom_head(vectors[atoms]), atom_kinds)
        # A bond has no direction, so the sum of its ends tells all that its kind can depend on.
        loss = loss + _mean_cross_entropy(self.bond_head(vectors[bonds].sum(1)), bond_kinds)
        if self.settings.contrastive_weight:
            first, second = hidden[:, 0].chunk(2)
            term = info_nce(first, second, temperature=self.settings.temperature)
            loss = loss + self.settings.contrastive_weight * term
        return {"loss": loss + self.uniformity(hidden, batch["attention_mask"])}


def _mean_cross_entropy(logits: Tensor, kinds: Tensor) -> Tensor:
    """Over what is hidden in all processes; 0 where nothing is."""
    return mean_over_all(F.cross_entropy(logits, kinds, reduction="none"), torch.tensor(len(kinds)))


def made_up_batches(config: MoleculeConfig) -> Callable[[int], dict[str, Any]]:
    """What ``PropertyModel`` takes, of a few known molecules again and again: to measure how long a step takes."""
    some = [
        "CC(=O)Oc1ccccc1C(=O)O",
        "CN1C=NC2=C1C(=O)N(C)C(=O)N2C",
        "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
        "OCC1OC(O)C(O)C(O)C1O",
    ]
    graphs = list(featurise(some, config.features)[0])

    def batch(count: int) -> dict[str, Any]:
        chosen = [graphs[number % len(graphs)] for number in range(count)]
        return collate(chosen, config.max_hops) | {"targets": torch.zeros(count, 1)}

    return batch
