"""Molecules as compact arrays, and the two published ways to describe their atoms and bonds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from sepnorm.errors import SepNormError, nearest

Bytes = NDArray[np.uint8]
MOST_ATOMS = 255  # atoms are numbered by one byte


@dataclass(frozen=True)
class FeatureSet:
    """How many categories each feature of an atom and of a bond has."""

    name: str
    atoms: tuple[int, ...]
    bonds: tuple[int, ...]


FEATURE_SETS = {
    # Dwivedi et al., Benchmarking graph neural networks: the type of an atom with its charge and written hydrogens; bonds
    # are none, single, double, triple.
    "zinc": FeatureSet("zinc", (28,), (4,)),
    # Open Graph Benchmark. Atoms: element, chirality, degree, charge, hydrogens, radical electrons, hybridisation, aromatic,
    # in a ring. Bonds: type, stereo, conjugated.
    "ogb": FeatureSet("ogb", (119, 5, 12, 12, 10, 6, 6, 2, 2), (5, 6, 2)),
}


def feature_set(kind: str) -> FeatureSet:
    """The feature set of that name."""
    if kind not in FEATURE_SETS:
        known = " and ".join(repr(name) for name in FEATURE_SETS)
        raise SepNormError(f"the feature sets are {known}, found {kind!r}.{nearest(str(kind), FEATURE_SETS)}")
    return FEATURE_SETS[kind]


def offsets(categories: Sequence[int]) -> Bytes:
    """Where the codes of each feature begin, so that one table holds the categories of all: (features,)."""
    return np.cumsum([0, *categories[:-1]]).astype(np.uint8)


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """One molecule. Codes count through the categories of all features, so that one table can be looked up for all."""

    atoms: Bytes  #: (atoms, atom features) codes
    bonds: Bytes  #: (bonds, 2) atoms of each bond, which is there once
    bond_features: Bytes  #: (bonds, bond features) codes
    kind: str  #: name of the feature set

    def __len__(self) -> int:
        return len(self.atoms)


class Graphs(Sequence[Graph]):
    """Many molecules in five arrays: 100 bytes for a drug-like molecule by ``zinc``, 350 by ``ogb``."""

    def __init__(
        self,
        kind: str,
        atoms: Bytes,
        bonds: Bytes,
        bond_features: Bytes,
        sizes: Iterable[int],
        bond_counts: Iterable[int],
    ) -> None:
        features = feature_set(kind)
        self.kind = kind
        self.atoms = atoms.reshape(-1, len(features.atoms))
        self.bonds = bonds.reshape(-1, 2)
        self.bond_features = bond_features.reshape(-1, len(features.bonds))
        self._atom_ends = np.cumsum([0, *sizes])
        self._bond_ends = np.cumsum([0, *bond_counts])

    @classmethod
    def join(cls, kind: str, graphs: Sequence[Graph]) -> Graphs:
        """The molecules of a list in one object."""
        features = feature_set(kind)
        return cls(
            kind,
            np.concatenate([np.empty((0, len(features.atoms)), np.uint8), *(g.atoms for g in graphs)]),
            np.concatenate([np.empty((0, 2), np.uint8), *(g.bonds for g in graphs)]),
            np.concatenate([np.empty((0, len(features.bonds)), np.uint8), *(g.bond_features for g in graphs)]),
            [len(g.atoms) for g in graphs],
            [len(g.bonds) for g in graphs],
        )

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Atoms of each molecule: (molecules,)."""
        return np.diff(self._atom_ends)

    def __len__(self) -> int:
        return len(self._atom_ends) - 1

    @overload
    def __getitem__(self, index: int) -> Graph: ...
    @overload
    def __getitem__(self, index: slice) -> list[Graph]: ...  # type: ignore[override]
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        atoms = slice(self._atom_ends[index], self._atom_ends[index + 1])
        bonds = slice(self._bond_ends[index], self._bond_ends[index + 1])
        return Graph(self.atoms[atoms], self.bonds[bonds], self.bond_features[bonds], self.kind)

    def __iter__(self) -> Iterator[Graph]:
        return (self[i] for i in range(len(self)))


def example_graphs(kind: str) -> list[Graph]:
    """Three chains of four different atoms each, to try a model out without data."""
    features = feature_set(kind)
    chain = np.array([[0, 1], [1, 2], [2, 3]], dtype=np.uint8)
    graphs = []
    for number in range(3):
        atoms = (np.arange(4)[:, None] + number) % np.array(features.atoms) + offsets(features.atoms)
        bonds = (np.arange(3)[:, None] + number) % np.array(features.bonds) + offsets(features.bonds)
        graphs.append(Graph(atoms.astype(np.uint8), chain, bonds.astype(np.uint8), kind))
    return graphs
