"""The batches of a run: molecules of similar size together, and what of them is hidden."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepnorm.molecules.batches import buckets, collate
from sepnorm.molecules.config import MoleculeConfig
from sepnorm.molecules.graphormer import hidden_code
from sepnorm.molecules.graphs import Graph
from sepnorm.training import Steps, mixed_seed


class BucketedSteps(Steps):
    """``Steps`` with batches by ``buckets``, still a function of seed and number alone."""

    def __init__(
        self,
        config: MoleculeConfig,
        sizes: Sequence[int],
        make: Callable[[Tensor, torch.Generator], dict[str, Any]],
    ) -> None:
        super().__init__(config, len(sizes), make)
        self.sizes = np.array(sizes)
        self._batches: list[list[int]] = []

    def __getitem__(self, number: int) -> dict[str, Any]:
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            seed = mixed_seed(self.config.seed, epoch, 1)
            # What is left over is drawn before sorting, or it would always be the largest molecules.
            rows = np.random.default_rng(seed).permutation(self.samples)[: self.per_epoch * self.batch]
            self._batches = [rows[part].tolist() for part in buckets(self.sizes[rows], self.batch, seed)]
            self._epoch = epoch
        return self.make(
            torch.tensor(self._batches[place]), torch.Generator().manual_seed(mixed_seed(self.config.seed, number, 2))
        )


def masked_batch(graphs: Sequence[Graph], config: MoleculeConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """What ``MaskedModel`` takes: a share of atoms and bonds hidden, of every molecule one atom at least.

    With a contrastive term every molecule is there twice, hidden otherwise.
    """
    graphs = [*graphs, *graphs] if config.contrastive_weight else list(graphs)
    codes = torch.from_numpy(np.concatenate([graph.bond_features for graph in graphs])[:, 0].astype(np.int64))
    hidden_bonds = torch.rand(len(codes), generator=generator) < config.mask_ratio
    batch = collate(graphs, config.max_hops, hidden_bonds.numpy())
    nodes = batch["nodes"]
    real = batch["attention_mask"][:, 1:].bool()
    noise = torch.rand(real.shape, generator=generator).masked_fill(~real, 2.0)
    hidden = (noise < config.mask_ratio) | (noise == noise.amin(1, keepdim=True))
    atoms = hidden.flatten().nonzero()[:, 0]
    kinds = nodes[..., 0].flatten()[atoms]  # the first feature says what an atom is, and its codes start from 0
    batch["nodes"] = nodes.masked_fill(hidden[..., None], hidden_code(config.features))
    starts = np.repeat(np.arange(len(graphs)) * real.shape[1], [len(graph.bonds) for graph in graphs])
    ends = np.concatenate([graph.bonds for graph in graphs]).astype(np.int64) + starts[:, None]
    return batch | {
        "atoms": atoms,
        "atom_kinds": kinds,
        "bonds": torch.from_numpy(ends)[hidden_bonds],
        "bond_kinds": codes[hidden_bonds],
    }
