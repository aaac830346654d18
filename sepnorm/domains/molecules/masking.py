"""Batches of molecules with masked atoms and bonds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sepnorm.domains.molecules.batches import collate
from sepnorm.domains.molecules.config import MoleculeConfig
from sepnorm.domains.molecules.graphormer import hidden_code
from sepnorm.domains.molecules.graphs import Graph


def masked_batch(
    graphs: Sequence[Graph], config: MoleculeConfig, generator: torch.Generator, own: slice = slice(None)
) -> dict[str, Tensor]:
    """Makes a batch for ``MaskedModel``: masks a share of atoms and bonds, at least one atom per molecule.

    With a contrastive term each molecule appears twice with different masks. The batch holds only the molecules
    ``own``, but random numbers are drawn for all ``graphs``, so that they do not depend on the number of processes.
    """
    views = 2 if config.contrastive_weight else 1
    bond_noise = _drawn([len(graph.bonds) for graph in graphs], views, generator, own)
    atom_noise = _drawn([len(graph) for graph in graphs], views, generator, own)
    graphs = list(graphs[own]) * views
    codes = torch.from_numpy(np.concatenate([graph.bond_features for graph in graphs])[:, 0].astype(np.int64))
    hidden_bonds = bond_noise < config.mask_ratio
    batch = collate(graphs, config.max_hops, hidden_bonds.numpy())
    nodes = batch["nodes"]
    real = batch["attention_mask"][:, 1:].bool()
    noise = torch.full(real.shape, 2.0).masked_scatter(real, atom_noise)
    hidden = (noise < config.mask_ratio) | (noise == noise.amin(1, keepdim=True))
    atoms = hidden.flatten().nonzero()[:, 0]
    kinds = nodes[..., 0].flatten()[atoms]  # the first feature is the element or type, with codes from 0
    batch["nodes"] = nodes.masked_fill(hidden[..., None], hidden_code(config.features))
    starts = np.repeat(np.arange(len(graphs)) * real.shape[1], [len(graph.bonds) for graph in graphs])
    ends = np.concatenate([graph.bonds for graph in graphs]).astype(np.int64) + starts[:, None]
    return batch | {
        "atoms": atoms,
        "atom_kinds": kinds,
        "bonds": torch.from_numpy(ends)[hidden_bonds],
        "bond_kinds": codes[hidden_bonds],
    }


def _drawn(counts: Sequence[int], views: int, generator: torch.Generator, own: slice) -> Tensor:
    """Random numbers, ``counts`` per molecule, drawn for all molecules; returns those of ``own``, view by view."""
    parts = [torch.rand(sum(counts), generator=generator).split(list(counts))[own] for _ in range(views)]
    return torch.cat([one for view in parts for one in view])
