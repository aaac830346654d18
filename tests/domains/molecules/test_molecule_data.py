from __future__ import annotations

import gzip
import math
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch

from sepnorm import SepNormError
from sepnorm.domains import open_domain
from sepnorm.domains.molecules.config import PRESETS
from sepnorm.domains.molecules.data import load_molecules, load_probed
from sepnorm.domains.molecules.look import look_at
from sepnorm.domains.molecules.splits import scaffold
from sepnorm.domains.molecules.tables import read_table
from sepnorm.errors import LeftOutWarning, SepNormWarning

SMILES = [
    "CCO",
    "CCN",
    "c1ccccc1",
    "c1ccccc1O",
    "c1ccccc1N",
    "C1CCCCC1",
    "C1CCCCC1O",
    "CC",
    "CCC",
    "CCCC",
    "CCCCC",
    "CO",
]


def table(tmp_path, rows, header="smiles,y", name="set.csv"):
    path = tmp_path / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def config(data, **changes):
    return PRESETS["demo"].changed({"data": data} | changes)


def many(count=40):
    return [f"{SMILES[i % len(SMILES)]},{i * 0.5 - 3}" for i in range(count)]


def test_a_setting_that_keeps_molecules_out_is_said(tmp_path):
    with pytest.warns(
        SepNormWarning, match=r"^10 of 32 training molecules are used, because train_molecules=10; --set"
    ):
        found = load_molecules(config(table(tmp_path, many()), train_molecules=10, split="random"))
    assert len(found.train) == 10


def test_a_table_is_split_into_parts_that_do_not_overlap(tmp_path):
    data = load_molecules(config(table(tmp_path, many())))
    assert (len(data.train), len(data.valid), len(data.test)) == (32, 4, 4)
    values = torch.cat([part.targets[:, 0] for part in (data.train, data.valid, data.test)])
    assert sorted(values.tolist()) == [i * 0.5 - 3 for i in range(40)]
    assert data.names == ["y"] and not data.classes
    assert float(data.mean) == pytest.approx(float(data.train.targets.mean()))
    assert float(data.std) == pytest.approx(float(data.train.targets.std()))
    for smiles, graph in zip(data.test.smiles, data.test.graphs, strict=True):
        assert len(graph) == {"CCO": 3, "CCN": 3, "c1ccccc1": 6, "CC": 2, "CO": 2, "CCC": 3}.get(smiles, len(graph))


def test_the_split_is_the_same_every_time_and_whatever_the_seed(tmp_path):
    source = table(tmp_path, many())
    first, second = load_molecules(config(source)), load_molecules(config(source, seed=7))
    assert first.test.smiles == second.test.smiles and torch.equal(first.test.targets, second.test.targets)


def test_a_column_of_splits_is_followed_and_validation_may_be_missing(tmp_path):
    rows = [f"{line},{('train', 'val', 'test')[i % 3]}" for i, line in enumerate(many(30))]
    data = load_molecules(config(table(tmp_path, rows, "smiles,y,split")))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [10, 10, 10]
    assert data.test.targets[:, 0].tolist() == [i * 0.5 - 3 for i in range(2, 30, 3)]
    rows = [f"{line},{'train' if i < 24 else 'test'}" for i, line in enumerate(many(30))]
    data = load_molecules(config(table(tmp_path, rows, "smiles,y,split")))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [22, 2, 6]


def test_a_folder_of_three_files_and_compressed_and_parquet_tables_are_read(tmp_path):
    for number, name in enumerate(("train.csv", "valid.csv", "test.csv")):
        table(tmp_path, many()[number::3], name=name)
    data = load_molecules(config(str(tmp_path)))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [14, 13, 13]
    packed = tmp_path / "one.csv.gz"
    packed.write_bytes(gzip.compress("\n".join(["smiles,y", *many()]).encode()))
    columns = {"SMILES": [row.split(",")[0] for row in many()], "target": [float(i) for i in range(40)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "one.parquet")
    assert len(read_table(str(packed)).smiles) == 40
    assert list(read_table(str(tmp_path / "one.parquet")).targets) == ["target"]


def test_scaffolds_do_not_cross_splits(tmp_path):
    assert scaffold("c1ccccc1CCO") == scaffold("Cc1ccccc1") == "c1ccccc1" and scaffold("CCO") == ""
    rings = [
        "C1CC1",
        "C1CCC1",
        "C1CCCC1",
        "C1CCCCC1",
        "c1ccccc1",
        "c1ccncc1",
        "c1ccoc1",
        "c1ccsc1",
        "C1CCNCC1",
        "C1COC1",
    ]
    rows = [f"{'C' * (1 + i // 10)}{rings[i % 10]},{i}" for i in range(60)]
    data = load_molecules(config(table(tmp_path, rows), split="scaffold"))
    found = [{scaffold(s) for s in part.smiles} for part in (data.train, data.valid, data.test)]
    assert not found[0] & found[1] and not found[0] & found[2] and not found[1] & found[2]
    assert [len(part) for part in (data.train, data.valid, data.test)] == [48, 6, 6]


def test_a_split_without_molecules_is_refused_before_a_run_with_what_would_help(tmp_path):
    chains = table(tmp_path, [f"{'C' * (i % 30)}O" for i in range(120)], "smiles")
    said = r"set.csv, split by scaffold, has 0 molecules for train, and 2 are needed: use more molecules, or --set split=random\.$"
    for look in (look_at, load_molecules):
        with pytest.raises(SepNormError, match=said):
            look(config(chains, task="pretrain"))
        look(config(chains, task="pretrain", split="random"))
    given = table(tmp_path, [f"{'C' * i}O,{i},train" for i in range(1, 31)], "smiles,y,split")
    for look in (look_at, load_molecules):
        with pytest.raises(
            SepNormError,
            match=r"split by its own column or files, has 0 (labelled )?molecules for test.* or --set split=random",
        ):
            look(config(given))
    probed = config("nci", task="pretrain", test=given)
    with pytest.raises(
        SepNormError, match=r"has 0 labelled molecules for test, and 2 are needed: use more molecules\.$"
    ):
        load_probed(probed)
    with pytest.raises(SepNormError, match="more molecules, or give it a column 'split'"):
        load_probed(probed.changed({"test": table(tmp_path, [f"{'C' * i}O,{i}" for i in range(1, 31)])}))


def test_the_look_reads_only_what_it_can_and_not_a_large_table(tmp_path, monkeypatch):
    rows = [*(f"C1CC{'C' * i}1,{i}" for i in range(1, 41)), "C1CC,3", ",4", f"{'C' * 200_001},5"]
    assert look_at(config(table(tmp_path, rows), split="scaffold")).samples == 34
    monkeypatch.setattr("sepnorm.domains.molecules.splits._LOOKED_AT", 20)
    monkeypatch.setattr("sepnorm.domains.molecules.splits.scaffold", None)  # would raise
    assert look_at(config(table(tmp_path, rows), split="scaffold")).samples == 34


def test_of_scaffolds_as_frequent_as_each_other_the_first_are_for_testing(tmp_path):
    rings = [f"C1{'C' * size}N1" for size in range(1, 11)]  # ten scaffolds of one molecule each, after one of ten
    rows = [*(f"C1CCCCC1{'C' * i},{i}" for i in range(10)), *(f"{ring},{i}" for i, ring in enumerate(rings))]
    data = load_molecules(config(table(tmp_path, rows), split="scaffold"))
    assert data.test.smiles == rings[1::-1] and data.valid.smiles == rings[3:1:-1]


def test_a_part_with_one_class_is_refused_and_not_left_without_a_score(tmp_path):
    rings = [f"C1{'C' * size}N1" for size in range(1, 41)]
    rows = [f"{ring},{int(i >= 6)}" for i, ring in enumerate(rings)]
    with pytest.raises(SepNormError, match=r"all molecules of .* for test have class 0, so nothing can be scored"):
        load_molecules(config(table(tmp_path, rows), split="scaffold"))
    assert load_molecules(
        config(table(tmp_path, [f"{ring},{i % 2}" for i, ring in enumerate(rings)]), split="scaffold")
    )


def test_several_targets_may_be_missing_here_and_there(tmp_path):
    rows = [f"{SMILES[i % 12]},{i % 2 if i % 3 else ''},{(i // 2) % 2 if i % 5 else ''}" for i in range(60)]
    data = load_molecules(config(table(tmp_path, rows, "smiles,a,b"), targets="a,b"))
    assert data.classes and data.names == ["a", "b"]
    assert data.mean.tolist() == [0, 0] and data.std.tolist() == [1, 1]
    sizes = [len(part) for part in (data.train, data.valid, data.test)]
    assert sum(sizes) == 56  # four rows have neither
    assert bool(data.train.targets.isnan().any())


def several_classes(folder: Path) -> str:
    """A table with three columns of classes, as Tox21 has twelve; the last is the same for every molecule."""
    rings = [f"{'C' * (i // 12)}C1{'C' * (i % 12 + 2)}1" for i in range(60)]
    rows = [f"{ring},{i // 12 % 2 if i % 5 else ''},{(i // 2) % 2},0,id{i}" for i, ring in enumerate(rings)]
    return table(folder, rows, "smiles,NR-AR,NR-ER,SR-p53,mol_id")


def test_all_columns_of_classes_are_targets_where_there_are_no_other_numbers(tmp_path):
    assert list(read_table(several_classes(tmp_path)).targets) == ["NR-AR", "NR-ER", "SR-p53"]


def test_a_target_that_is_constant_in_training_is_left_out_of_several(tmp_path):
    with pytest.warns(LeftOutWarning, match=r"1 of 3 targets of .* are always the same in training, such as 'SR-p53'"):
        data = load_molecules(config(several_classes(tmp_path)))
    assert data.names == ["NR-AR", "NR-ER"] and data.train.targets.shape[1] == 2
    source = table(tmp_path, [f"{SMILES[i % 12]},{i % 2},5" for i in range(40)], "smiles,a,b")
    with pytest.warns(LeftOutWarning):
        data = load_molecules(config(source, targets="a,b"))
    assert data.classes  # as those say that are kept


def test_graphs_that_are_too_large_or_empty_are_left_out_as_rows_of_smiles_are(tmp_path):
    sizes = [3] * 38 + [0, 9]
    bonds = [[list(range(size - 1)), [i + 1 for i in range(size - 1)]] for size in sizes]
    columns = {
        "node_feat": [[[0]] * size for size in sizes],
        "edge_index": [[a + b, b + a] for a, b in bonds],
        "edge_attr": [[[1]] * (2 * len(a)) for a, _ in bonds],
        "y": [[float(row)] for row in range(40)],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "graphs.parquet")
    chosen = config(str(tmp_path / "graphs.parquet"), features="zinc", max_atoms=8)
    with pytest.warns(
        LeftOutWarning, match=r"2 of 40 .* such as row 39: it has 0 atoms, .*row 40: it has 9 atoms, .*=8"
    ):
        data = load_molecules(chosen)
    assert [each.row for each in data.rejected] == [38, 39]
    assert sorted(torch.cat([part.targets for part in (data.train, data.valid, data.test)])[:, 0].tolist()) == [
        *range(38)
    ]
    with pytest.raises(SepNormError, match=r"2 of 40 rows.*allow more with --set max_rejected"):
        load_molecules(chosen.changed({"max_rejected": 0.01}))


def test_a_table_of_several_targets_is_a_test_of_a_pretrained_model_too(tmp_path):
    pretraining = config("nci", task="pretrain", test=several_classes(tmp_path), train_molecules=50, molecules=100)
    with pytest.warns(LeftOutWarning, match=r"1 of 3 targets of .* are always the same in training, such as 'SR-p53'"):
        (found,) = load_probed(pretraining).values()
    assert found.names == ["NR-AR", "NR-ER"] and found.classes
    assert [part.targets.shape[1] for part in (found.train, found.valid, found.test)] == [2, 2, 2]
    assert bool(found.train.targets.isnan().any())


def test_the_demos_limits_are_for_its_own_molecules(tmp_path):
    rings = table(tmp_path, [f"C1{'C' * size}1,{size}" for size in range(2, 60)])
    molecules = open_domain("molecules")
    assert molecules.settings(None, {"data": "nci"}) == molecules.settings("demo", {}) == PRESETS["demo"]
    assert molecules.settings(None, {"data": rings}).max_atoms == 128
    assert molecules.settings(None, {"data": rings, "max_atoms": 50}).max_atoms == 50
    assert molecules.settings(None, {"data": rings}).train_molecules == PRESETS["demo"].train_molecules
    assert molecules.settings(None, {"data": rings, "stream": 64}).train_molecules is None
    (tested,) = load_probed(PRESETS["demo"].changed({"task": "pretrain", "test": rings})).values()
    assert not tested.rejected


def test_rows_that_are_no_molecule_are_named_and_left_out_up_to_a_limit(tmp_path):
    source = table(tmp_path, [*many(), "C1CC,1", ",2"])
    with pytest.warns(SepNormWarning, match=r"2 of 42 rows.*row 41 'C1CC'.*row 42 '': the SMILES is empty"):
        data = load_molecules(config(source))
    assert [each.row for each in data.rejected] == [40, 41]
    with pytest.raises(SepNormError, match=r"2 of 42 rows.*allow more with --set max_rejected"):
        load_molecules(config(source, max_rejected=0.01))


def test_one_atom_and_salts_are_molecules_and_large_ones_or_unknown_elements_are_not(tmp_path):
    rows = [*many(), "C,1", "[Na+].[Cl-],2", f"{'C' * 200},3"]
    with pytest.warns(SepNormWarning, match=r"1 of 43 rows.*it has 200 atoms"):
        data = load_molecules(config(table(tmp_path, rows)))
    assert sum(map(len, (data.train, data.valid, data.test))) == 42
    with pytest.warns(SepNormWarning, match="none of ZINC's 28 types"):
        load_molecules(config(table(tmp_path, [*many(), "[Na+],2"]), features="zinc"))


@pytest.mark.parametrize(
    ("rows", "header", "changes", "words"),
    [
        (many(), "smiles,y", {"targets": "z"}, "has no column 'z': it has smiles, y"),
        (many(), "smiles,y", {"column": "smile"}, "Did you mean 'smiles'"),
        (many(), "molecule,y", {}, "which column of .* holds SMILES is not clear"),
        ([f"CCO,{i},{i}" for i in range(9)], "smiles,p,q", {}, "is the target is not clear"),
        ([f"{s},5" for s in SMILES * 3], "smiles,y", {}, "'y' of .* is always 5 in training"),
        ([f"{s}," for s in SMILES], "smiles,y", {}, "0 labelled molecules for train"),
        ([f"{s},high" for s in SMILES], "smiles,y", {}, "holds no number in row 1, found 'high'"),
        (many(), "smiles,y", {"kind": "classification"}, "classes are 0 and 1"),
        (many(), "smiles,y", {"split": "given"}, "has no column 'split'"),
        (
            many(4),
            "smiles,y",
            {},
            "split at random, has . labelled molecules for valid, and 2 are needed: use more molecules\\.$",
        ),
        ([f"{row},x" for row in many()], "smiles,y,split", {}, "a split is train, valid or test, found 'x'"),
        ([], "smiles,y", {}, "holds no rows"),
    ],
)
def test_data_that_cannot_be_used_are_refused_in_a_sentence(tmp_path, rows, header, changes, words):
    with pytest.raises(SepNormError, match=words):
        load_molecules(config(table(tmp_path, rows, header), **changes))


def test_files_that_are_no_tables_are_refused(tmp_path):
    with pytest.raises(SepNormError, match=r"there is no file .*gone\.csv"):
        read_table(str(tmp_path / "gone.csv"))
    (tmp_path / "a.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(SepNormError, match="cannot be read as a table"):
        read_table(str(tmp_path / "a.csv.gz"))
    (tmp_path / "a.sdf").write_text("x")
    with pytest.raises(SepNormError, match="is no table of molecules"):
        read_table(str(tmp_path / "a.sdf"))
    (tmp_path / "b.csv").write_text("smiles;y\nCCO;1\n")
    with pytest.raises(SepNormError, match=r"has a single column, 'smiles;y': separate cells by commas"):
        read_table(str(tmp_path / "b.csv"))
    (tmp_path / "b.tsv").write_text("smiles,y\nCCO,1\n")
    with pytest.raises(SepNormError, match=r"has a single column, 'smiles,y': separate cells by tabs"):
        read_table(str(tmp_path / "b.tsv"))
    with pytest.raises(SepNormError, match="has no table for train"):
        read_table(str(tmp_path))


def test_the_packaged_molecules_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nci").mkdir()  # as --out nci leaves it: no data
    found = read_table("nci")
    assert len(found.smiles) == len(found.targets["polar surface area"]) == 4999
    assert found.smiles[0] == "CC1=CC(=O)C=CC1=O" and math.isclose(found.targets["polar surface area"][0], 34.14)


@pytest.mark.parametrize("content", [b"smiles,y\nC\xff\xfe,1\n\xaa,2\n", b"smiles,smiles\nC,C\n"])
def test_a_table_that_is_no_text_or_has_a_column_twice_is_one_sentence(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(SepNormError, match=r"cannot be read as a table|not valid molecules|has two columns 'smiles'"):
        load_molecules(PRESETS["demo"].changed({"data": str(tmp_path / "t.csv")}))


def test_a_table_that_is_probed_needs_a_target_and_is_told_how_to_name_it(tmp_path):
    (tmp_path / "a.csv").write_text("smiles,p,q\n" + "".join(f"{'C' * i}O,{i},{i}\n" for i in range(1, 30)))
    pretraining = config("nci", task="pretrain", test=str(tmp_path / "a.csv"))
    with pytest.raises(
        SepNormError, match=r"is the target is not clear \(it has smiles, p, q\): call it y, target or label"
    ):
        load_probed(pretraining)
    with pytest.raises(SepNormError, match="name it by --label NAME"):
        load_probed(pretraining, naming="name it by --label NAME")


def test_the_gap_of_pcqm4mv2_is_its_target(tmp_path):
    rows = [f"{i},{SMILES[i % 12]},{i / 7 if i % 6 else ''}" for i in range(60)]
    preset = PRESETS["pcqm4mv2"].changed({"data": table(tmp_path, rows, "idx,smiles,homolumogap")})
    data = load_molecules(preset)
    assert data.names == ["homolumogap"] and not data.classes
    assert sum(map(len, (data.train, data.valid, data.test))) == 50
