"""Distances between atoms, and the bonds on shortest paths, for many molecules at once in NumPy.

Two atoms often have several shortest paths, such as both ways around a benzene ring. Which one a search finds depends
on the numbering of atoms. Here a pair of atoms gets the *mean over all its shortest paths*, which does not. This costs
hardly more than one path: a shortest path from i to j is a shortest path from i to a neighbour u of j that is closer to
i, plus a bond. Of the s(i, j) shortest paths, s(i, u) go through u.
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
    """Distances and path features of a padded batch, by one breadth-first search from all atoms at once.

    Args:
        sizes: (batch,) number of atoms of each molecule; the largest is ``width``.
        sources: (bonds,) start of each bond, in both directions. Atom a of molecule m has the number ``m * width + a``.
        targets: (bonds,) end of each bond.
        features: (bonds, channels) features of each bond, such as a one-hot encoding of its categories.
        max_hops: only the first ``max_hops`` bonds of longer paths count, as in Graphormer.

    Returns:
        distances (batch, width, width), ``UNREACHABLE`` between the parts of a salt and for padding, and
        paths (batch, width, width, max_hops, channels). At [m, i, j, h] are the features of bond h, averaged over all
        shortest paths from i to j and divided by the number of bonds that count, so that the sum over h is the mean
        over the path.
    """
    batch, width, channels = len(sizes), int(sizes.max()), features.shape[1]
    rows = batch * width
    neighbours, bonds = _neighbour_table(rows, sources, targets)
    distances = np.full((rows + 1) * width, UNREACHABLE, dtype=np.int64)
    distances[rows * width :] = 0  # the row for "no neighbour" counts as visited
    scratch = np.empty_like(distances)
    paths = np.zeros((rows * width, max_hops * channels), dtype=np.float32)

    # The search goes over pairs (end j, start i), at ``j * width + i``. All pairs at one distance form a front.
    ends = np.flatnonzero(np.arange(width) < sizes[:, None])
    starts = ends % width
    distances[ends * width + starts] = 0
    front = np.zeros((len(ends), max_hops * channels), dtype=np.float32)
    counts: NDArray[Any] = np.ones(len(ends))  # number of shortest paths
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
    """Numbers distinct pairs without sorting. Returns the number of each entry, and one entry per number."""
    entries = np.arange(len(pairs))
    scratch[pairs] = entries  # if a pair occurs twice, one entry wins
    standing = scratch[pairs]
    first = np.flatnonzero(standing == entries)
    scratch[pairs[first]] = np.arange(len(first))
    return scratch[pairs], first


def _mean_by_place(
    rows: NDArray[np.float32], share: NDArray[np.float64], place: NDArray[np.int64], first: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The sum of ``share`` times row over all rows with the same place."""
    if len(first) == len(rows):
        return rows  # one path per pair, with share 1
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
    """Neighbours of each atom and the bonds to them (rows, most neighbours), padded with ``rows`` and 0."""
    order = np.argsort(sources, kind="stable")
    sources, targets = sources[order], targets[order]
    degrees = np.bincount(sources, minlength=rows)
    slot = np.arange(len(sources)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    neighbours = np.full((rows, max(1, degrees.max())), rows)
    bonds = np.zeros_like(neighbours)
    neighbours[sources, slot] = targets
    bonds[sources, slot] = order
    return neighbours, bonds
