from __future__ import annotations

import numpy as np
import pytest
from molecule_reference import SMILES, plain_paths, renumbered, zinc_smiles

from sepnorm.domains.molecules.batches import collate
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphs import FEATURE_SETS, Graph


def by_collate(graphs, max_hops=5):
    batch = collate(graphs, max_hops)
    distances, paths = batch["distances"].numpy(), batch["paths"].numpy()
    return distances, paths.reshape(*distances.shape, max_hops, -1)


def chain(atoms, ring=False):
    bonds = [[i, i + 1] for i in range(atoms - 1)] + ([[atoms - 1, 0]] if ring else [])
    kinds = np.array([[1 + i % 3] for i in range(len(bonds))], dtype=np.uint8)
    return Graph(np.zeros((atoms, 1), np.uint8), np.array(bonds, np.uint8).reshape(-1, 2), kinds.reshape(-1, 1), "zinc")


@pytest.mark.parametrize(("kind", "texts"), [("zinc", zinc_smiles(2000)), ("ogb", SMILES)])
def test_distances_and_paths_are_those_of_every_path_written_out(kind, texts):
    graphs, rejected = featurise(texts, kind)
    assert not rejected
    channels = sum(FEATURE_SETS[kind].bonds)
    for start in range(0, len(graphs), 50):
        part = graphs[start : start + 50]
        distances, paths = by_collate(part)
        for graph, found, ways in zip(part, distances, paths, strict=True):
            n = len(graph)
            wanted_distances, wanted_paths = plain_paths(graph, channels, 5)
            assert np.array_equal(found[:n, :n], wanted_distances)
            assert np.abs(ways[:n, :n] - wanted_paths).max() < 1e-6
            assert (found[n:] == -1).all() and (found[:, n:] == -1).all()
            assert not ways[n:].any() and not ways[:, n:].any()


def test_a_chain_has_one_path_and_its_bonds_in_order():
    (distances,), (paths,) = by_collate([chain(9)], max_hops=4)
    i, j = np.indices((9, 9))
    assert np.array_equal(distances, abs(i - j))
    assert np.allclose(
        paths[2, 4, :, 1 + np.array([2, 0]) % 3], 0.5 * np.eye(2, 4)
    )  # bonds 2 and 3 are of kinds 3 and 1
    assert np.allclose(paths[8, 0].sum(axis=(0, 1)), 1)
    assert paths[8, 0, 0, 1 + 7 % 3] == 0.25  # seen from atom 8 the first bond is number 7, and 4 of 8 count


def test_in_an_even_ring_opposite_atoms_have_both_ways_around():
    (distances,), (paths,) = by_collate([chain(6, ring=True)])
    assert np.array_equal(distances[0], [0, 1, 2, 3, 2, 1])
    one_way, other_way = [1, 2, 3], [3, 2, 1]  # kinds of the bonds 0, 1, 2 and 5, 4, 3
    wanted = np.zeros((5, 4))
    for hop in range(3):
        wanted[hop, one_way[hop]] += 1 / 6
        wanted[hop, other_way[hop]] += 1 / 6
    assert np.allclose(paths[0, 3], wanted)


def test_all_paths_count_the_same_not_all_first_steps():
    # From 0 by 1 to 3 there is one path; by 2, which leads to both 4 and 5, two: 0-1-3-6, 0-2-4-6, 0-2-5-6.
    bonds = np.array([[0, 1], [0, 2], [1, 3], [2, 4], [2, 5], [3, 6], [4, 6], [5, 6]], np.uint8)
    kinds = np.array([[1], [2], [1], [1], [1], [1], [1], [1]], np.uint8)
    _, (paths,) = by_collate([Graph(np.zeros((7, 1), np.uint8), bonds, kinds, "zinc")])
    assert np.allclose(paths[0, 6, 0] * 3, [0, 1 / 3, 2 / 3, 0])


def test_a_cage_with_more_paths_than_a_byte_counts():
    # A grid of 8 x 8 atoms: C(14, 7) = 3432 shortest paths from corner to corner, half of them by each first bond.
    bonds = [[8 * r + c, 8 * r + c + 1] for r in range(8) for c in range(7)]
    across = [[8 * r + c, 8 * r + c + 8] for r in range(7) for c in range(8)]
    kinds = np.array([[1]] * len(bonds) + [[2]] * len(across), np.uint8)
    graph = Graph(np.zeros((64, 1), np.uint8), np.array(bonds + across, np.uint8), kinds, "zinc")
    (distances,), (paths,) = by_collate([graph])
    assert distances[0, 63] == 14
    assert np.allclose(paths[0, 63] * 5, [[0, 0.5, 0.5, 0]] * 5)
    assert np.allclose(paths[0, 62, 0] * 5, [0, 6 / 13, 7 / 13, 0])  # 6 steps right and 7 down


def test_one_atom_has_no_way_to_go():
    distances, paths = by_collate([chain(1)])
    assert distances.shape == (1, 1, 1) and distances[0, 0, 0] == 0 and not paths.any()


def test_renumbered_atoms_have_the_same_distances_and_paths():
    graphs, _ = featurise(SMILES)
    generator = np.random.default_rng(0)
    for graph in graphs:
        order = generator.permutation(len(graph))
        distances, paths = by_collate([graph])
        other_distances, other_paths = by_collate([renumbered(graph, order)])
        assert np.array_equal(other_distances[0], distances[0][np.ix_(order, order)])
        assert np.allclose(other_paths[0], paths[0][np.ix_(order, order)], atol=1e-6)
