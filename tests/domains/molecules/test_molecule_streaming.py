"""Molecules that are read while a model is trained: lines, tables, what is held out, and graphs that are made ahead."""

from __future__ import annotations

import gzip
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from sepnorm import SepNormError
from sepnorm.domains.molecules import streaming
from sepnorm.domains.molecules.config import PRESETS, MoleculeConfig
from sepnorm.domains.molecules.data import load_molecules
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.look import has_targets, look_at
from sepnorm.domains.molecules.recipe import MoleculeRecipe
from sepnorm.domains.molecules.streaming import MoleculeStream
from sepnorm.errors import LeftOutWarning

SMILES = [f"{'C' * (number % 9)}N{'C' * (number // 9)}O" for number in range(120)]
TINY = PRESETS["demo"].changed(
    {"train_molecules": None, "width": 16, "depth": 1, "heads": 2, "feed_forward": 16, "batch_size": 8, "max_steps": 10}
)


def config(data: object, **changes: object) -> MoleculeConfig:
    return TINY.changed({"data": str(data), "stream": 24, "split": "random"} | changes)


def lines(folder: Path, texts: list[str] = SMILES) -> Path:
    """A packed file of SMILES with names, under a heading."""
    path = folder / "molecules.smi.gz"
    with gzip.open(path, "wt") as file:
        file.write("smiles name\n" + "".join(f"{text}\tm{number}\n" for number, text in enumerate(texts)))
    return path


def labelled(folder: Path, kind: str) -> Path:
    """Shards of a table with a target that some molecules do not have, and a column that is of no matter."""
    folder.mkdir()
    for shard in range(2):
        rows = range(shard * 60, shard * 60 + 60)
        columns = {"idx": list(rows), "smiles": [SMILES[row] for row in rows]}
        columns["homolumogap"] = [None if row % 10 == 0 else row / 4 for row in rows]
        table = pyarrow.table(columns)
        if kind == "parquet":
            pyarrow.parquet.write_table(table, folder / f"{shard}.parquet")
        else:
            pyarrow.csv.write_csv(table, folder / f"{shard}.csv")
    return folder


def codes(samples: list[streaming.Sample]) -> list[bytes]:
    return [graph.atoms.tobytes() + graph.bonds.tobytes() for graph, _ in samples]


def test_lines_give_their_molecules_and_not_those_that_are_held_out(tmp_path):
    stream = MoleculeStream(config(lines(tmp_path), task="pretrain"))
    held_out = {*stream.data.valid.smiles, *stream.data.test.smiles}
    assert len(held_out) == 24
    source = stream.open(0)
    found = source.take(96)
    source.close()
    wanted = featurise([text for text in SMILES if text not in held_out], "ogb")[0]
    assert codes(found) == codes([(graph, []) for graph in wanted])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_give_targets_too(tmp_path, kind):
    chosen = config(labelled(tmp_path / "data", kind))
    assert has_targets(chosen) and "a stream of data" in look_at(chosen).data
    stream = MoleculeStream(chosen)
    assert stream.data.names == ["homolumogap"] and not stream.data.classes
    source = stream.open(0)
    found = source.take(60)
    source.close()
    known = {SMILES[row]: row / 4 for row in range(120) if row % 10}
    of_code = {
        codes([(graph, [])])[0]: known[text]
        for text, graph in zip(known, featurise(list(known), "ogb")[0], strict=True)
    }
    assert [targets for _, targets in found] == [[of_code[code]] for code in codes(found)]


@pytest.mark.parametrize("task", ["pretrain", "supervised"])
def test_a_run_on_a_stream_goes_on_bit_by_bit(tmp_path, task):
    chosen = config(labelled(tmp_path / "data", "csv"), task=task, checkpoints=1)
    whole, _ = MoleculeRecipe(chosen).train(chosen, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole/checkpoint-5", tmp_path / "part/checkpoint-5")
    resumed, _ = MoleculeRecipe(chosen).train(chosen, tmp_path / "part")
    assert all(torch.equal(value, resumed.state_dict()[key]) for key, value in whole.state_dict().items())


def test_what_was_read_ahead_is_read_again_from_a_state(tmp_path):
    stream = MoleculeStream(config(lines(tmp_path), task="pretrain"))
    first, second = stream.open(3), stream.open(3)
    first.take(40)
    state = first.state()
    wanted = codes(first.take(40))
    second.restore(state)
    assert codes(second.take(40)) == wanted
    first.close(), second.close()


def test_a_process_that_may_have_none_of_its_own_does_the_same(tmp_path, monkeypatch):
    stream = MoleculeStream(config(lines(tmp_path), task="pretrain"))
    source = stream.open(0)
    wanted = codes(source.take(90))
    source.close()
    monkeypatch.setattr(streaming.multiprocessing, "current_process", lambda: type("P", (), {"daemon": True}))
    alone = stream.open(0)
    assert alone._pool is None and codes(alone.take(90)) == wanted


def test_a_row_that_is_no_molecule_is_replaced_and_many_are_refused(tmp_path, monkeypatch):
    stream = MoleculeStream(config(lines(tmp_path, [*SMILES[:60], "C1CC", *SMILES[60:]]), task="pretrain"))
    source = stream.open(0)
    with pytest.warns(
        LeftOutWarning, match=r"such as 'C1CC': RDKit cannot read it.*Each is replaced by the molecule before it"
    ):
        found = codes(source.take(97))
    source.close()
    twice = [code for code, following in pairwise(found) if code == following]
    assert len(found) == 97 and len(set(found)) == 96 and len(twice) == 1
    monkeypatch.setattr(streaming, "_SOME", 100)
    later = MoleculeStream(config(lines(tmp_path, SMILES + ["C1CC"] * 20), task="pretrain")).open(0)
    with (
        pytest.warns(LeftOutWarning),
        pytest.raises(SepNormError, match=r"of the first .* are not valid molecules"),
    ):
        later.take(118)
    later.close()


def csv(path: Path, rows: list[str], header: str = "smiles,y") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def taken(stream: MoleculeStream, count: int) -> list[streaming.Sample]:
    source = stream.open(0)
    try:
        return source.take(count)
    finally:
        source.close()


def as_pairs(samples: list[streaming.Sample], known: dict[str, float]) -> list[tuple[str, float]]:
    """The SMILES and the target of each sample."""
    graphs = featurise(list(known), "ogb")[0]
    names = {codes([(graph, [])])[0]: text for text, graph in zip(known, graphs, strict=True)}
    return [(names[code], targets[0]) for code, (_, targets) in zip(codes(samples), samples, strict=True)]


@pytest.mark.parametrize("broken", ["C1CC", "C" * 60])
def test_a_row_that_is_replaced_does_not_leave_its_target_behind(tmp_path, broken):
    known = {text: float(number) for number, text in enumerate(SMILES)}
    rows = [f"{text},{value}" for text, value in known.items()]
    for place in (0, 40, 41, 90):
        rows.insert(place, f"{broken},777")
    with pytest.warns(LeftOutWarning, match="They are left out"):
        stream = MoleculeStream(config(csv(tmp_path / "a.csv", rows)))
    with pytest.warns(LeftOutWarning, match="replaced by the molecule before it"):
        found = as_pairs(taken(stream, 100), known)
    assert all(known[text] == value for text, value in found)
    assert len(found) == 100 and len(set(found)) == 96


@pytest.mark.parametrize("names", ["{}.csv", "{}-00000-of-00001.csv", "{}/part.csv"])
@pytest.mark.parametrize("pattern", [False, True])
def test_files_of_the_other_splits_are_not_trained_on(tmp_path, names, pattern):
    known = {text: float(number) for number, text in enumerate(SMILES)}
    rows = [f"{text},{value}" for text, value in known.items()]
    parts = {"train": rows[:80], "valid": rows[80:100], "test": rows[100:]}
    for name, part in parts.items():
        csv(tmp_path / "data" / names.format(name), part)
    csv(tmp_path / "data" / "more.csv", ["CCCCl,3"])  # of no split
    data = tmp_path / ("data/**/*.csv" if pattern else "data")
    stream = MoleculeStream(config(data, split="auto"))
    assert stream.data.test.smiles == SMILES[100:] and stream.data.valid.smiles == SMILES[80:100]
    assert as_pairs(taken(stream, 80), known) == list(known.items())[:80]
    assert "a stream of" in look_at(config(data, split="auto")).data


def test_lines_may_be_in_a_file_a_split_and_validation_may_be_missing(tmp_path):
    for name, part in (("train", SMILES[:80]), ("test", SMILES[80:])):
        (tmp_path / f"{name}.smi").write_text("smiles\n" + "".join(f"{text} name\n" for text in part))
    stream = MoleculeStream(config(tmp_path, split="given", task="pretrain"))
    assert stream.data.test.smiles == SMILES[80:] and len(stream.data.valid) == 8
    assert not set(codes(taken(stream, 72))) & set(codes([(graph, []) for graph in stream.data.test.graphs]))


def test_held_out_files_without_one_to_train_on_and_folders_of_ogb_are_refused(tmp_path):
    csv(tmp_path / "test.csv", ["CC,1"])
    csv(tmp_path / "more.csv", ["CC,1"])
    with pytest.raises(SepNormError, match=r"has files for test, and none for train: name one train, as train\.csv"):
        MoleculeStream(config(tmp_path))
    csv(tmp_path / "mapping/mol.csv.gz", [])
    with pytest.raises(SepNormError, match=r"is a folder of OGB, whose split needs the whole table: leave stream out"):
        MoleculeStream(config(tmp_path))


def test_names_beside_held_out_molecules_do_not_bring_them_into_training(tmp_path):
    known = {text: float(number) for number, text in enumerate(SMILES)}
    rows = [f"{text} name{number},{number}" for number, text in enumerate(SMILES)]
    stream = MoleculeStream(config(csv(tmp_path / "a.csv", rows)))
    held_out = {text.split()[0] for text in (*stream.data.valid.smiles, *stream.data.test.smiles)}
    assert len(held_out) == 24
    assert not held_out & {text for text, _ in as_pairs(taken(stream, 96), known)}


def test_a_column_of_splits_is_followed_where_the_splits_come_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_SOME", 20)
    known = {text: float(number) for number, text in enumerate(SMILES)}
    names = ["Train"] * 60 + ["val"] * 30 + ["test"] * 30
    rows = [f"{text},{value},{name}" for (text, value), name in zip(known.items(), names, strict=True)]
    stream = MoleculeStream(config(csv(tmp_path / "a.csv", rows, "smiles,y,split"), split="auto"))
    parts = stream.data.train, stream.data.valid, stream.data.test
    assert [part.smiles for part in parts] == [SMILES[:20], SMILES[60:80], SMILES[90:110]]
    assert as_pairs(taken(stream, 60), known) == list(known.items())[:60]


def test_a_target_that_is_constant_in_training_is_left_out_of_a_stream(tmp_path):
    rows = [f"{text},5,{number}" for number, text in enumerate(SMILES)]
    chosen = config(csv(tmp_path / "a.csv", rows, "smiles,a,b"), targets="a,b")
    with pytest.warns(LeftOutWarning, match="1 of 2 targets"):
        stream = MoleculeStream(chosen)
    assert stream.data.names == ["b"]
    known = {text: float(number) for number, text in enumerate(SMILES)}
    assert all(known[text] == value for text, value in as_pairs(taken(stream, 24), known))
    with pytest.warns(LeftOutWarning):
        MoleculeRecipe(chosen).train(chosen, tmp_path / "run")


def run(folder: Path, **given: object) -> None:
    chosen = config(**given)
    MoleculeRecipe(chosen).train(chosen, folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "nci"}, "nci is small and is read whole: leave stream out"),
        ({"train_molecules": 100}, "--set train_molecules=null"),
        ({"molecules": 100}, "--set molecules=null"),
        ({"max_steps": None}, "a stream has no end: say how long to train by --set max_steps=STEPS"),
        ({"stream": 4}, "stream=4 is smaller than a batch of 8"),
        ({"column": "mol"}, "has no column 'mol': it has smiles"),
    ],
)
def test_what_a_stream_cannot_have_is_refused(tmp_path, changes, message):
    given = {"data": lines(tmp_path), "task": "pretrain"} | changes
    with pytest.raises(SepNormError, match=message):
        run(tmp_path / "run", **given)


def test_a_stream_without_molecules_is_refused(tmp_path):
    with pytest.raises(SepNormError, match="are not valid molecules"):
        MoleculeStream(config(lines(tmp_path, ["x y"] * 50), task="pretrain"))
    (tmp_path / "a.sdf").write_text("x")
    with pytest.raises(SepNormError, match=r"names no file of a kind that can be streamed: \.smi"):
        MoleculeStream(config(tmp_path / "a.sdf"))


def test_numbers_of_texts():
    assert streaming._typed(["1", "", "2.5"]) == [1.0, None, 2.5]
    assert streaming._typed(["1", "x"]) == ["1", "x"]
    assert streaming._typed([1, None]) == [1, None]
    assert streaming._typed(["NA", None, "2"]) == [None, None, 2.0]
    assert np.isnan([streaming.as_number(word) for word in ("", "NA", None)]).all() and streaming.as_number(0) == 0


@pytest.mark.parametrize("missing", ["", "NA", "N/A", "null", "nan"])
def test_missing_labels_are_the_same_in_a_stream_as_in_a_whole_table(tmp_path, missing):
    rows = [f"{text},{missing if number % 3 else number % 2},{number // 3 % 2}" for number, text in enumerate(SMILES)]
    chosen = config(csv(tmp_path / "a.csv", rows, "smiles,NR-AR,SR-p53"))
    whole = chosen.changed({"stream": None})
    assert has_targets(chosen) and has_targets(whole)
    streamed, data = MoleculeStream(chosen), load_molecules(whole)
    assert streamed.data.names == data.names == ["NR-AR", "SR-p53"] and streamed.data.classes
    assert torch.equal(streamed.data.train.targets.isnan(), data.train.targets.isnan())
    found = np.array([targets for _, targets in taken(streamed, 96)])
    assert found.shape == (96, 2) and 0 < np.isnan(found[:, 0]).sum() < 96 and not np.isnan(found[:, 1]).any()


def test_rows_that_are_not_trained_on_count_among_those_that_are_read(tmp_path):
    names = ["valid"] * 30 + ["test"] * 30 + ["train"] * 60
    rows = [f"{text},{number},{name}" for number, (text, name) in enumerate(zip(SMILES, names, strict=True))]
    rows += ["C1CC,1,train"] * 12  # a sixth of the rows to train on, an eleventh of all
    data = csv(tmp_path / "a.csv", rows, "smiles,y,split")
    with pytest.warns(LeftOutWarning):
        stream = MoleculeStream(config(data, split="auto", max_rejected=0.1))
    with pytest.warns(LeftOutWarning):
        assert len(taken(stream, 72)) == 72
    stream._config = stream._config.changed({"max_rejected": 0.05})
    with (
        pytest.warns(LeftOutWarning),
        pytest.raises(SepNormError, match=r"12 of the first 132 rows of .* are not valid molecules"),
    ):
        taken(stream, 72)


def test_missing_smiles_are_empty_and_not_the_word_none(tmp_path):
    texts = [None if number % 20 == 0 else text for number, text in enumerate(SMILES)]
    pyarrow.parquet.write_table(pyarrow.table({"smiles": texts}), tmp_path / "a.parquet")
    with pytest.warns(LeftOutWarning):
        stream = MoleculeStream(config(tmp_path / "a.parquet", task="pretrain", max_rejected=0.2))
    with pytest.warns(LeftOutWarning, match=r"such as '': the SMILES is empty"):
        taken(stream, 90)
