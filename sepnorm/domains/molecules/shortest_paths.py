"""Distances between the atoms of many molecules at once, and the bonds along the shortest paths, in NumPy alone.

Two atoms often have several shortest paths between them (both ways around a benzene ring), and which one a search finds
depends on how the atoms happen to be numbered. Here all of them count: what a pair of atoms gets is the *mean over all
its shortest paths*, which no numbering changes. It costs hardly more than one path: a shortest path from i to j is one
from i to a neighbour u of j that is nearer to i, and then a bond. Of the s(i, j) shortest paths, s(i, u) come by u.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

UNREACHABLE = -1


def shortest_paths(
    sizes: NDArray[np.int64],
    sources: NDArray[np.int64],
    targets: NDArray[np.int64],
    features: NDArray[np.float32],
    max_hops: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Distances and path features of a padded batch of molecules, by one breadth-first search from all atoms together.

    Args:
        sizes: (batch,) atoms of each molecule; the largest is ``width``.
        sources, targets: (bonds,) each bond in both directions; atom a of molecule m has the number ``m * width + a``.
        features: (bonds, channels) what a bond is, for instance ones at its categories.
        max_hops: of longer paths only the first ``max_hops`` bonds count, as in Graphormer.

    Returns:
        distances (batch, width, width), ``UNREACHABLE`` between the parts of a salt and for padding, and
        paths (batch, width, width, max_hops, channels): at [m, i, j, h] the features of bond h, mean over all shortest paths
        from i to j, divided by the number of bonds that count: their sum over h is a mean over the path.
    """
    batch, width, channels = len(sizes), int(sizes.max()), features.shape[1]
    rows = batch * width
    neighbours, bonds = _neighbour_table(rows, sources, targets)
    distances = np.full((rows + 1) * width, UNREACHABLE, dtype=np.int64)
    distances[rows * width :] = 0  # the row that stands for "no neighbour" counts as seen
    scratch = np.empty_like(distances)
    paths = np.zeros((rows * width, max_hops * channels), dtype=np.float32)

    # The search walks over pairs (end j, start i), at ``j * width + i``: all pairs at one distance are one front.
    ends = np.flatnonzero(np.arange(width) < sizes[:, None])
    starts = ends % width
    distances[ends * width + starts] = 0
    front = np.zeros((len(ends), max_hops * channels), dtype=np.float32)
    counts: NDArray[Any] = np.ones(len(ends))  # of shortest paths
    for distance in range(1, width):
        reached = neighbours.take(ends, axis=0) * width + starts[:, None]
        steps = np.flatnonzero(distances.take(reached) < 0)
        if not len(steps):
            break
        pairs, parents = reached.ravel()[steps], steps // neighbours.shape[1]
        distances[pairs] = distance
        place, first = _places(pairs, scratch)
        came = counts[parents]
        counts = np.bincount(place, weights=came)
        longer = front.take(parents, axis=0)
        if distance <= max_hops:
            slot = ends[parents] * neighbours.shape[1] + steps % neighbours.shape[1]
            taken = bonds.ravel()[slot]
            longer[:, (distance - 1) * channels : distance * channels] = features.take(taken, axis=0)
        front = _mean_by_place(longer, came / counts[place], place, first)
        starts, ends = starts[parents[first]], pairs[first] // width
        home = (ends - ends % width + starts) * width + ends % width
        paths[home] = front / np.float32(min(distance, max_hops))
    shape = (batch, width, width)
    return distances[: rows * width].reshape(shape), paths.reshape(*shape, max_hops, channels)


def _places(pairs: NDArray[np.int64], scratch: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers the different pairs without sorting: the number of each entry, and one entry for each number."""
    entries = np.arange(len(pairs))
    scratch[pairs] = entries  # where a pair occurs twice, one of its entries stays
    standing = scratch[pairs]
    first = np.flatnonzero(standing == entries)
    scratch[pairs[first]] = np.arange(len(first))
    return scratch[pairs], first


def _mean_by_place(
    rows: NDArray[np.float32], share: NDArray[np.float64], place: NDArray[np.int64], first: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The sum of ``share`` times row over all rows of one place."""
    if len(first) == len(rows):
        return rows  # one way to each pair, and its share is 1
    rows *= share.astype(np.float32)[:, None]
    means = rows.take(first, axis=0)
    further = np.ones(len(rows), dtype=bool)
    further[first] = False
    others = np.flatnonzero(further)
    # numpy's own add.at is ten times slower on rows
    torch.from_numpy(means).index_add_(0, torch.from_numpy(place[others]), torch.from_numpy(rows.take(others, axis=0)))
    return means


def _neighbour_table(
    rows: int, sources: NDArray[np.int64], targets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each atom its neighbours and the bonds to them (rows, most neighbours), filled up with ``rows`` and 0."""
    order = np.argsort(sources, kind="stable")
    sources, targets = sources[order], targets[order]
    degrees = np.bincount(sources, minlength=rows)
    slot = np.arange(len(sources)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    neighbours = np.full((rows, max(1, degrees.max())), rows)
    bonds = np.zeros_like(neighbours)
    neighbours[sources, slot] = targets
    bonds[sources, slot] = order
    return neighbours, bonds
