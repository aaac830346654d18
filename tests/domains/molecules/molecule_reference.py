"""Molecules of many kinds, and distances and paths in the plainest way: every shortest path written out."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import numpy as np

from sepnorm.domains.molecules.graphs import Graph

#: A folder with zinc12k.csv.gz (column smiles), for larger tests.
ZINC = Path(os.environ["SEPNORM_ZINC"]) if os.environ.get("SEPNORM_ZINC") else None

SMILES = """
C O N CC CO C#N C=O C=C=C CCO CC(=O)O CC(C)(C)C C1CC1 C1CCC1 C1CCCCC1 c1ccccc1 Cc1ccccc1 c1ccncc1 c1cc[nH]c1 c1ccsc1 c1ccoc1
c1ccc2ccccc2c1 c1ccc2[nH]ccc2c1 C1CC2CCC1C2 C1C2CC3CC1CC(C2)C3 C12C3C4C1C5C2C3C45 c1ccc(-c2ccccc2)cc1 c1ccc(-c2ccc(-c3ccccc3)cc2)cc1
C1CC12CC2 C1CCC2(CC1)CCCCC2 CC(=O)Oc1ccccc1C(=O)O CN1C=NC2=C1C(=O)N(C(=O)N2C)C CC(C)Cc1ccc(cc1)C(C)C(=O)O C/C=C/C C/C=C\\C
N[C@@H](C)C(=O)O N[C@H](C)C(=O)O C[N+](C)(C)C CC(=O)[O-] [NH3+]CC([O-])=O O=[N+]([O-])c1ccccc1 CS(=O)(=O)N CS(C)=O ClC(Cl)Cl BrCCBr
FC(F)(F)c1ccccc1 Ic1ccccc1 O.O CCO.CC CC(=O)[O-].C[NH3+] CCCCCCCCCCCCCCCC CCCCCCCCCCC(CCCCC)CCCCCCC CP(C)C OP(=O)(O)O
CC1(C)SC2C(NC(=O)Cc3ccccc3)C(=O)N2C1C(=O)O CN1CCC[C@H]1c1cccnc1 C[C@]12CC[C@H]3[C@H]([C@@H]1CC[C@@H]2O)CCC4=C3C=CC(=C4)O
OC[C@H]1OC(O)[C@H](O)[C@@H](O)[C@@H]1O c1cc2ccc3cccc4ccc(c1)c2c34 C1=CC=CC=CC=C1 C1CCCCCCCCC1 C1COCCOCCOCCOCCOCCO1
""".split()


def zinc_smiles(count: int) -> list[str]:
    """The first molecules of ZINC where the folder is there, else those above."""
    if ZINC is None:
        return SMILES
    with gzip.open(ZINC / "zinc12k.csv.gz", "rt") as file:
        return [row["smiles"] for row, _ in zip(csv.DictReader(file), range(count), strict=False)]


def plain_paths(graph: Graph, channels: int, max_hops: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances (n, n) by Floyd and Warshall, and paths (n, n, max_hops, channels) as ``shortest_paths`` defines them."""
    n = len(graph.atoms)
    neighbours: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(n)]
    distance = [[0 if i == j else 10_000 for j in range(n)] for i in range(n)]
    for (i, j), codes in zip(graph.bonds.tolist(), graph.bond_features.tolist(), strict=True):
        neighbours[i].append((j, tuple(codes)))
        neighbours[j].append((i, tuple(codes)))
        distance[i][j] = distance[j][i] = 1
    for k in range(n):
        for i in range(n):
            for j in range(n):
                distance[i][j] = min(distance[i][j], distance[i][k] + distance[k][j])
    written: dict[tuple[int, int], list[tuple[tuple[int, ...], ...]]] = {(i, i): [()] for i in range(n)}
    paths = np.zeros((n, n, max_hops, channels))
    for i, j in sorted(((i, j) for i in range(n) for j in range(n)), key=lambda pair: distance[pair[0]][pair[1]]):
        length = distance[i][j]
        if not 0 < length < 10_000:
            continue
        written[i, j] = [
            (*path, codes) for u, codes in neighbours[j] if distance[i][u] == length - 1 for path in written[i, u]
        ]
        counted = min(length, max_hops)
        for path in written[i, j]:
            for hop, codes in enumerate(path[:max_hops]):
                for code in codes:
                    paths[i, j, hop, code] += 1 / len(written[i, j]) / counted
    return np.where(np.array(distance) == 10_000, -1, distance), paths


def renumbered(graph: Graph, order: np.ndarray) -> Graph:
    """The same molecule with atom ``order[k]`` as its atom k, and the bonds in another order and direction."""
    place = np.argsort(order).astype(np.uint8)
    return Graph(graph.atoms[order], place[graph.bonds][::-1, ::-1], graph.bond_features[::-1], graph.kind)
