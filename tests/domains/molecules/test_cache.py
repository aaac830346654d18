"""Many molecules are read once, by several processes, and opened the next time."""

from __future__ import annotations

import numpy as np
import pytest

from sepnorm.data.records import quiet_datasets
from sepnorm.domains.molecules import cache
from sepnorm.domains.molecules.features import featurise

SMILES = ["CCO", "no molecule", "c1ccccc1O", "C", "", "C" * 60, "CC(=O)Oc1ccccc1C(=O)O", "[Na+].[Cl-]"] * 30


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_FEW", 100)
    monkeypatch.setattr(cache, "_AT_ONCE", 32)
    monkeypatch.setattr(quiet_datasets().config, "HF_DATASETS_CACHE", tmp_path)
    return tmp_path / "sepnorm"


def same(found, expected) -> bool:
    arrays = ("atoms", "bonds", "bond_features", "sizes")
    equal = all(np.array_equal(getattr(found[0], name), getattr(expected[0], name)) for name in arrays)
    return equal and found[1] == expected[1] and [len(g.bonds) for g in found[0]] == [len(g.bonds) for g in expected[0]]


@pytest.mark.parametrize("kind", ["zinc", "ogb"])
def test_what_was_read_once_is_opened_and_the_same(place, monkeypatch, kind):
    expected = featurise(SMILES, kind, max_atoms=50)
    assert same(cache.featurise_many(SMILES, kind, 50), expected)
    monkeypatch.setattr(cache, "featurise", None)  # it is not called again
    assert same(cache.featurise_many(SMILES, kind, 50), expected)


def test_other_molecules_or_limits_are_read_anew(place):
    first = cache.featurise_many(SMILES, "zinc", 50)
    assert len(cache.featurise_many(SMILES, "zinc", 100)[0]) > len(first[0])
    changed = [*SMILES[:-1], "CCCCC"]
    assert same(cache.featurise_many(changed, "zinc", 50), featurise(changed, "zinc", max_atoms=50))


def test_damaged_files_and_a_place_that_cannot_be_written_are_done_without(place, monkeypatch):
    expected = featurise(SMILES, "zinc", max_atoms=50)
    cache.featurise_many(SMILES, "zinc", 50)
    for file in place.iterdir():
        file.write_bytes(file.read_bytes()[:100])
    assert same(cache.featurise_many(SMILES, "zinc", 50), expected)
    (place.parent / "file").write_text("")
    monkeypatch.setattr(quiet_datasets().config, "HF_DATASETS_CACHE", place.parent / "file")
    assert same(cache.featurise_many(SMILES, "zinc", 50), expected)


def test_few_molecules_leave_no_files(place, monkeypatch):
    monkeypatch.setattr(cache, "_FEW", 1000)
    cache.featurise_many(SMILES, "zinc", 50)
    assert not place.exists()
