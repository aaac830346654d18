from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from molecule_reference import SMILES, ZINC

from sepnorm import SepNormError
from sepnorm.domains.molecules.features import ZINC_ATOMS, as_graphs, featurise, from_pyg
from sepnorm.domains.molecules.graphs import FEATURE_SETS, offsets


def categories(graph, part="atoms"):
    """The categories of each feature without what makes codes of different features different."""
    codes = graph.atoms if part == "atoms" else graph.bond_features
    return codes - offsets(getattr(FEATURE_SETS[graph.kind], part))


def zinc_types(smiles):
    graphs, rejected = featurise([smiles])
    assert not rejected
    return [ZINC_ATOMS[code] for code in graphs[0].atoms[:, 0]]


def test_zinc_types_know_charge_and_written_hydrogens():
    assert zinc_types("C[C@H](N)[NH3+]") == ["C", "C H1", "N", "N H3 +"]
    assert zinc_types("c1cc[nH]c1") == ["C", "C", "C", "N", "C"]
    assert zinc_types("O=[N+]([O-])C") == ["O", "N +", "O -", "C"]
    assert zinc_types("CN(=O)=O") == ["C", "N +", "O -", "O"]  # RDKit's form of a nitro group


def test_zinc_bonds_alternate_where_rings_are_aromatic():
    graph = featurise(["c1ccccc1C#N"])[0][0]
    assert Counter(graph.bond_features[:, 0].tolist()) == {1: 4, 2: 3, 3: 1}
    assert sorted(map(sorted, graph.bonds.tolist())) == [[0, 1], [0, 5], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7]]


@pytest.mark.skipif(ZINC is None, reason="SEPNORM_ZINC names no folder with the published graphs of ZINC")
@pytest.mark.parametrize("split", ["val", "test"])
def test_zinc_atoms_and_bonds_are_those_of_the_published_graphs(split):
    import csv
    import gzip

    with gzip.open(ZINC / "zinc12k.csv.gz", "rt") as file:
        texts = [row["smiles"] for row in csv.DictReader(file) if row["split"] == split]
    graphs, rejected = featurise(texts)
    assert not rejected
    ours = Counter(
        (tuple(sorted(graph.atoms[:, 0].tolist())), tuple(sorted(graph.bond_features[:, 0].tolist())))
        for graph in graphs
    )
    published = np.load(ZINC / "zinc12k_official_val_test_graphs.npz")
    x, attributes = published[f"{split}_x"], published[f"{split}_edge_attr"]
    nodes, edges = published[f"{split}_node_ptr"], published[f"{split}_edge_ptr"]
    theirs = Counter(
        (
            tuple(sorted(x[nodes[k] : nodes[k + 1]].tolist())),
            tuple(sorted(attributes[edges[k] : edges[k + 1]].tolist())[::2]),
        )
        for k in range(len(nodes) - 1)
    )
    assert ours == theirs


def test_ogb_features_of_alanine_are_as_worked_out_by_hand():
    graph = featurise(["N[C@@H](C)C(=O)O"], "ogb")[0][0]
    # element - 1, chirality, degree, charge + 5, hydrogens, radicals, hybridisation (SP, SP2, SP3), aromatic, ring
    assert categories(graph).tolist() == [
        [6, 0, 3, 5, 2, 0, 2, 0, 0],
        [5, 1, 4, 5, 1, 0, 2, 0, 0],  # @@ is clockwise
        [5, 0, 4, 5, 3, 0, 2, 0, 0],
        [5, 0, 3, 5, 0, 0, 1, 0, 0],
        [7, 0, 1, 5, 0, 0, 1, 0, 0],
        [7, 0, 2, 5, 1, 0, 1, 0, 0],
    ]
    assert categories(graph, "bonds").tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0, 1], [0, 0, 1]]


def test_ogb_features_of_rings_charges_radicals_and_double_bonds():
    pyridine = featurise(["c1ccncc1"], "ogb")[0][0]
    assert categories(pyridine)[3].tolist() == [6, 0, 2, 5, 0, 0, 1, 1, 1]
    assert {tuple(row) for row in categories(pyridine, "bonds")} == {(3, 0, 1)}
    assert categories(featurise(["C[N+](C)(C)C"], "ogb")[0][0])[1][3] == 6
    assert categories(featurise(["C[CH2]"], "ogb")[0][0])[1][5] == 1
    cis_trans = featurise(["C/C=C\\C", "C/C=C/C", "CC=CC"], "ogb")[0]
    assert [categories(graph, "bonds")[1].tolist() for graph in cis_trans] == [[1, 1, 0], [1, 2, 0], [1, 0, 0]]


def test_what_ogb_has_no_category_for_gets_the_last():
    graph = featurise(["*C"], "ogb")[0][0]
    assert categories(graph)[0][0] == 118
    dative = featurise(["[NH3]->[Cu]"], "ogb")[0][0]
    assert categories(dative, "bonds").tolist() == [[4, 0, 0]]
    assert categories(featurise(["[U+6]"], "ogb")[0][0])[0][3] == 11


@pytest.mark.parametrize("kind", ["zinc", "ogb"])
def test_codes_stay_within_the_categories(kind):
    graphs, rejected = featurise(SMILES, kind)
    assert not rejected and len(graphs) == len(SMILES)
    for graph in graphs:
        assert (categories(graph) < FEATURE_SETS[kind].atoms).all()
        assert (categories(graph, "bonds") < FEATURE_SETS[kind].bonds).all()
        assert len(graph.bonds) == 0 or graph.bonds.max() < len(graph)


def test_rows_that_are_no_molecule_are_named_with_the_reason(capfd):
    rows = ["CCO", "", "C(C", "C(C)(C)(C)(C)C", None, "C" * 129, "[Si](C)C", "  ", "C\udc80", "C"]
    graphs, rejected = featurise(rows)
    assert graphs.sizes.tolist() == [3, 1]
    reasons = {row: reason for row, _, reason in rejected}
    assert list(reasons) == [1, 2, 3, 4, 5, 6, 7, 8] and [entry.smiles for entry in rejected] == rows[1:9]
    assert "empty" in reasons[1] and "empty" in reasons[7]
    assert "not valid SMILES" in reasons[2] and "greater than permitted" in reasons[3]
    assert "NoneType" in reasons[4] and "129 atoms" in reasons[5] and "Si is none of ZINC's 28" in reasons[6]
    assert "half of a character" in reasons[8]
    assert not capfd.readouterr().err


def test_nothing_gives_no_graphs():
    graphs, rejected = featurise([])
    assert len(graphs) == 0 and rejected == [] and graphs.sizes.tolist() == []


def test_graphs_can_be_counted_from_the_end_and_cut():
    graphs, _ = featurise(["C", "CC", "CCC"])
    assert [len(graph) for graph in graphs[1:]] == [2, 3] and len(graphs[-1]) == 3
    with pytest.raises(IndexError):
        graphs[3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(smiles="CCO"), "found one text"),
        (dict(smiles=["C"], kind="zink"), "Did you mean 'zinc'"),
        (dict(smiles=["C"], max_atoms=300), "between 1 and 255"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(SepNormError, match=words):
        featurise(**arguments)


# ---- graphs of PyTorch Geometric ----------------------------------------------------------------------------------------


def pyg(x, edges, attributes):
    return SimpleNamespace(
        x=torch.tensor(x), edge_index=torch.tensor(edges).T.reshape(2, -1), edge_attr=torch.tensor(attributes)
    )


def ethanol(**changes):
    parts = dict(x=[[0], [0], [1]], edges=[[0, 1], [1, 0], [1, 2], [2, 1]], attributes=[1, 1, 1, 1])
    return pyg(**(parts | changes))


@pytest.mark.parametrize("kind", ["zinc", "ogb"])
def test_graphs_of_pyg_are_those_of_the_same_smiles(kind):
    wanted, _ = featurise(["CCO", "C", "c1ccccc1C#N"], kind)
    data = []
    for graph in wanted:
        both = np.concatenate([graph.bonds, graph.bonds[:, ::-1]]).astype(np.int64).reshape(-1, 2)
        bonds = categories(graph, "bonds")
        data.append(
            SimpleNamespace(
                x=categories(graph), edge_index=torch.tensor(both).T, edge_attr=np.concatenate([bonds, bonds])
            )
        )
    for graph, other in zip(wanted, from_pyg(data, kind), strict=True):
        assert np.array_equal(graph.atoms, other.atoms)
        mine = {
            (*sorted(ends), *codes)
            for ends, codes in zip(graph.bonds.tolist(), graph.bond_features.tolist(), strict=True)
        }
        theirs = {
            (*sorted(ends), *codes)
            for ends, codes in zip(other.bonds.tolist(), other.bond_features.tolist(), strict=True)
        }
        assert mine == theirs and len(graph.bonds) == len(other.bonds)


def test_flat_features_of_pyg_are_taken_too():
    flat = ethanol(x=[0, 0, 1], attributes=[[1], [1], [1], [1]])
    assert np.array_equal(from_pyg([flat])[0].atoms, from_pyg([ethanol()])[0].atoms)


def test_tensors_of_pyg_may_need_gradients():
    item = ethanol(x=[[0.0], [0.0], [1.0]])
    item.x.requires_grad_()
    assert np.array_equal(from_pyg([item])[0].atoms, from_pyg([ethanol()])[0].atoms)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (SimpleNamespace(x=torch.zeros(1, 1)), "has no edge_index and no edge_attr: a graph has x"),
        (ethanol(x=[[0], [0], [28]]), "x of graph 0 has categories below"),
        (ethanol(attributes=[1, 1, 4, 4]), "edge_attr of graph 0"),
        (ethanol(x=[[0.0], [0.5], [1.0]]), "x of graph 0"),
        (ethanol(x=[[0, 0], [0, 0], [1, 1]]), "one row of 1 features"),
        (ethanol(attributes=[1, 1, 1]), "has the shape"),
        (ethanol(edges=[[0, 1], [1, 0], [1, 3], [3, 1]]), "there are 3"),
        (ethanol(edges=[[0, 1.5], [1.5, 0], [1, 2], [2, 1]]), "names atoms by whole numbers, found 1.5"),
        (ethanol(attributes=[1, 1, 1, 2]), "no direction"),
        (ethanol(edges=[[0, 1], [1, 0], [1, 2], [2, 2]]), "no direction"),
        (ethanol(edges=[[0, 1], [1, 0], [0, 1], [1, 0]]), "no direction"),
    ],
)
def test_broken_graphs_of_pyg_are_refused(item, words):
    with pytest.raises(SepNormError, match=words):
        from_pyg([item])


def test_graphs_with_codes_of_their_own_are_refused():
    """PyG's ``from_smiles`` counts elements from 0, OGB from 1: codes that differ by one, and fit all the same."""
    item = ethanol(x=[[0], [0], [1]])
    item.smiles = "CCO"
    assert len(from_pyg([item])) == 1
    item.x = item.x + 1
    with pytest.raises(SepNormError, match=r"x of graph 0 does not have the codes of zinc for its SMILES, 'CCO'"):
        from_pyg([item])


def test_a_batch_of_graphs_is_taken_apart_and_is_no_molecule():
    class Batch:
        def to_data_list(self):
            return [ethanol(), ethanol()]

    assert len(from_pyg(Batch())) == 2
    item = ethanol()
    item.ptr = np.array([0, 1, 3])
    with pytest.raises(SepNormError, match=r"graph 0 is a batch of several graphs"):
        from_pyg([item])


def test_what_a_loader_of_pyg_gives_is_taken_apart():
    batch = SimpleNamespace(to_data_list=lambda: [ethanol(), ethanol()])
    assert [len(from_pyg(data)) for data in ([batch, batch], batch, [ethanol(), batch])] == [4, 2, 3]
    assert np.array_equal(from_pyg([batch])[1].atoms, from_pyg([ethanol()])[0].atoms)


class DataSet:
    """As a data set of PyG, which answers ``edge_index`` with that of all its graphs, joined."""

    edge_index = torch.zeros(2, 8)

    def indices(self):
        return range(2)

    def get(self, index):
        return [ethanol(), ethanol()][index]

    def __iter__(self):
        return iter(map(self.get, self.indices()))


def test_a_data_set_of_pyg_is_its_graphs_and_not_one_molecule():
    assert [len(as_graphs(data, "zinc")) for data in (DataSet(), [DataSet(), ethanol()], ethanol())] == [2, 3, 1]
    assert len(from_pyg(DataSet())) == 2


@pytest.mark.parametrize("data", [None, 3])
def test_what_holds_no_graphs_is_refused(data):
    with pytest.raises(SepNormError, match=f"a DataLoader of PyG, found {type(data).__name__}"):
        as_graphs(data, "zinc")
