"""Lists of graphs to padded batches for Graphormer, and which graphs go together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sepnorm.domains.molecules.graphs import Graph, feature_set
from sepnorm.domains.molecules.shortest_paths import shortest_paths
from sepnorm.errors import SepNormError

_LINEAR = 32  # atoms with which attention, which is quadratic, takes as long as all else (Graphormer-slim on a CPU)
_PART = 4000  # what a part takes however few molecules it has, in the same unit: that of three molecules of ZINC
_WINDOW = 50  # batches that are sorted by size together: enough for little padding, few enough to stay random


def collate(
    graphs: Sequence[Graph], max_hops: int = 5, hidden_bonds: NDArray[np.bool_] | None = None
) -> dict[str, Tensor]:
    """Makes a padded batch for ``GraphormerModel``.

    Distances and paths are computed here, for all molecules at once. This is faster than reading them from a file.

    Args:
        graphs: molecules of one feature set.
        max_hops: number of bonds of a shortest path that are described.
        hidden_bonds: (bonds of all graphs), True for bonds whose kind is masked.

    Returns:
        Tensors by name, where N is the number of atoms of the largest molecule:

        - ``nodes`` (batch, N, features): codes of the atoms, 0 for padding;
        - ``degrees`` (batch, N): number of bonds of each atom;
        - ``distances`` (batch, N, N): number of bonds between two atoms, -1 if there is no path;
        - ``paths`` (batch, N, N, max_hops * bond categories): the bonds on the shortest paths, see ``shortest_paths``;
        - ``attention_mask`` (batch, 1 + N): 1 for the virtual node, which is first, and for atoms; 0 for padding.

    Raises:
        SepNormError: if there is no graph, one is empty, or feature sets differ.
    """
    if not graphs:
        raise SepNormError("a batch needs at least one graph, found none.")
    kinds = {graph.kind for graph in graphs}
    if len(kinds) > 1:
        raise SepNormError(f"the graphs of a batch have one feature set, found {', '.join(sorted(kinds))}.")
    if max_hops < 1:
        raise SepNormError(f"max_hops is at least 1, found {max_hops!r}.")
    features = feature_set(kinds.pop())
    sizes = np.array([len(graph.atoms) for graph in graphs])
    if not sizes.min():
        raise SepNormError(f"graph {sizes.argmin()} has no atoms: leave empty graphs out.")
    batch, width = len(graphs), int(sizes.max())
    real = np.arange(width) < sizes[:, None]
    nodes = np.zeros((batch, width, len(features.atoms)), dtype=np.int64)
    nodes[real] = np.concatenate([graph.atoms for graph in graphs])
    ends = np.concatenate([graph.bonds for graph in graphs]).astype(np.int64)
    ends += width * np.repeat(np.arange(batch), [len(graph.bonds) for graph in graphs])[:, None]
    sources, targets = ends.ravel(), ends[:, ::-1].ravel()  # both directions of a bond, one after the other
    codes = np.concatenate([graph.bond_features for graph in graphs])
    channels = np.zeros((len(codes), sum(features.bonds)), dtype=np.float32)
    np.put_along_axis(channels, codes.astype(np.int64), 1.0, axis=1)
    if hidden_bonds is not None:
        channels[hidden_bonds] = 0.0
    distances, paths = shortest_paths(sizes, sources, targets, channels.repeat(2, axis=0), max_hops)
    return {
        "nodes": torch.from_numpy(nodes),
        "degrees": torch.from_numpy(np.bincount(sources, minlength=batch * width).reshape(batch, width)),
        "distances": torch.from_numpy(distances),
        "paths": torch.from_numpy(paths.reshape(batch, width, width, -1)),
        "attention_mask": torch.from_numpy(np.insert(real, 0, True, axis=1).astype(np.int64)),
    }


def buckets(sizes: ArrayLike, batch_size: int, seed: int | None = None) -> list[list[int]]:
    """Row numbers of every batch, molecules of similar size together; all rows once.

    Args:
        sizes: atoms of each molecule, as ``Graphs.sizes``.
        seed: of a random order, another one for each epoch; none for the order of size, as evaluation may have it.
    """
    if batch_size < 1:
        raise SepNormError(f"batch_size is at least 1, found {batch_size!r}.")
    counts = np.asarray(sizes)
    if seed is None:
        return _cut(np.argsort(counts, kind="stable"), batch_size)
    random = np.random.default_rng(seed)
    rows = random.permutation(len(counts))
    found = []
    for window in _cut(rows, batch_size * _WINDOW):
        found += _cut(np.array(window)[np.argsort(counts[window], kind="stable")], batch_size)
    return [found[i] for i in random.permutation(len(found))]


def parts_by_size(sizes: Sequence[int]) -> list[int]:
    """How many molecules of a batch, from the smallest up, go together so that little is padded: lengths of the parts.

    ``sizes`` are ascending. A cut saves what the molecules before it would be padded by, and costs a part more in every layer.

    >>> parts_by_size([20] * 40 + [21] * 8 + [80] * 2), parts_by_size([20] * 8 + [25] * 8)
    ([48, 2], [16])
    """
    work = [n * (n + _LINEAR) for n in sizes]
    saved, first = max(((k * (work[-1] - work[k - 1]), k) for k in range(1, len(work))), default=(0, 0))
    if saved < _PART:
        return [len(work)]
    return parts_by_size(sizes[:first]) + parts_by_size(sizes[first:])


def _cut(rows: np.ndarray, length: int) -> list[list[int]]:
    return [rows[start : start + length].tolist() for start in range(0, len(rows), length)]
