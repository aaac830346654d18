from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sepnorm import SepNormError
from sepnorm.domains.molecules.batches import buckets, collate, parts_by_size
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphs import Graph


def test_a_batch_of_two_molecules_is_as_worked_out_by_hand():
    graphs, _ = featurise(["CCO", "C#N"])
    batch = collate(graphs, max_hops=2)
    assert batch["nodes"].tolist() == [[[0], [0], [1]], [[0], [2], [0]]]
    assert batch["degrees"].tolist() == [[1, 2, 1], [1, 1, 0]]
    assert batch["distances"].tolist() == [[[0, 1, 2], [1, 0, 1], [2, 1, 0]], [[0, 1, -1], [1, 0, -1], [-1, -1, -1]]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    paths = batch["paths"].view(2, 3, 3, 2, 4)  # hop, kind of bond
    assert paths[0, 0, 2].tolist() == [[0, 0.5, 0, 0], [0, 0.5, 0, 0]]
    assert paths[1, 0, 1].tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert not paths[1, 2].any() and not paths[0, 0, 0].any()


def test_the_parts_of_a_salt_are_unreachable_from_each_other():
    batch = collate(featurise(["CC.O"])[0])
    assert batch["distances"].tolist() == [[[0, 1, -1], [1, 0, -1], [-1, -1, 0]]]
    assert batch["attention_mask"].all()


def test_three_features_of_a_bond_are_three_ones():
    batch = collate(featurise(["C/C=C/C"], "ogb")[0], max_hops=1)
    assert batch["paths"][0, 1, 2].nonzero().flatten().tolist() == [1, 5 + 2, 11]  # double, E, not conjugated


def test_batches_that_make_no_sense_are_refused():
    zinc, ogb = featurise(["C"])[0], featurise(["C"], "ogb")[0]
    none = Graph(np.zeros((0, 1), np.uint8), np.zeros((0, 2), np.uint8), np.zeros((0, 1), np.uint8), "zinc")
    with pytest.raises(SepNormError, match="graph 1 has no atoms: leave empty graphs out"):
        collate([*zinc, none])
    with pytest.raises(SepNormError, match="at least one graph"):
        collate([])
    with pytest.raises(SepNormError, match="one feature set, found ogb, zinc"):
        collate([zinc[0], ogb[0]])
    with pytest.raises(SepNormError, match="max_hops is at least 1"):
        collate(zinc, max_hops=0)
    with pytest.raises(SepNormError, match="batch_size is at least 1"):
        buckets([1, 2], 0)


@pytest.mark.parametrize("seed", [None, 3])
def test_buckets_have_every_row_once_and_little_padding(seed):
    sizes = np.random.default_rng(0).integers(5, 38, size=1003)
    found = buckets(sizes, 16, seed)
    assert sorted(row for batch in found for row in batch) == list(range(1003))
    assert sorted(len(batch) for batch in found)[:2] == [1003 % 16, 16]
    padded = sum(len(batch) * sizes[batch].max() for batch in found)
    assert padded < 1.05 * sizes.sum()


def test_buckets_are_random_by_seed_and_the_same_for_the_same_seed():
    sizes = np.arange(200) % 30
    assert buckets(sizes, 8, 1) == buckets(sizes, 8, 1)
    assert buckets(sizes, 8, 1) != buckets(sizes, 8, 2)
    order = [row for batch in buckets(sizes, 8) for row in batch]
    assert (np.diff(sizes[order]) >= 0).all()


@given(st.lists(st.integers(0, 120), min_size=1, max_size=80))
def test_parts_have_every_molecule_and_no_more_work(sizes):
    sizes = sorted(sizes)
    parts = parts_by_size(sizes)
    assert sum(parts) == len(sizes) and min(parts) >= 1
    ends = list(itertools.accumulate(parts))
    padded = sum(part * (sizes[end - 1] * (sizes[end - 1] + 32)) for part, end in zip(parts, ends, strict=True))
    assert padded + 4000 * (len(parts) - 1) <= len(sizes) * sizes[-1] * (sizes[-1] + 32)


def test_graphs_go_through_a_data_loader():
    graphs, _ = featurise(["CCO", "C#N", "c1ccccc1", "O"])
    loader = torch.utils.data.DataLoader(graphs, batch_sampler=buckets(graphs.sizes, 2), collate_fn=collate)
    assert [tuple(batch["nodes"].shape) for batch in loader] == [(2, 2, 1), (2, 6, 1)]
