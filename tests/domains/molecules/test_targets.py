"""Which columns are targets, and that a table is pretrained on without labels only if none can be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sepnorm import SepNormError
from sepnorm.domains import open_domain
from sepnorm.domains.molecules.config import PRESETS, MoleculeConfig
from sepnorm.domains.molecules.data import load_molecules, load_probed
from sepnorm.domains.molecules.tables import read_table
from sepnorm.errors import GuessWarning

SMILES = [f"C1{'C' * (number + 2)}1O" for number in range(60)]  # a scaffold each


def table(folder: Path, header: str, *columns: object, name: str = "set.csv") -> str:
    """A table with SMILES and, for each row, what the functions of its number make."""
    rows = [",".join([text, *(str(make(row)) for make in columns)]) for row, text in enumerate(SMILES)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join([f"smiles,{header}", *rows]))
    return str(folder / name)


def half(row: int) -> float:
    return row / 2 + 0.25


def odd(row: int) -> int:
    return row % 2


def number(row: int) -> int:
    return row + 7


def word(row: int) -> str:
    return f"m{row}"


def censored(row: int) -> object:
    return ">10" if row % 6 == 0 else half(row)


def settings(data: str, **given: object) -> MoleculeConfig:
    return open_domain("molecules").settings(None, {"data": data, **given})


@pytest.mark.parametrize("stream", [{}, {"stream": 16}])
@pytest.mark.parametrize(
    ("header", "columns"),
    [("p,q", (half, half)), ("id,value", (number, half)), ("a,ic50", (half, censored)), ("ic50,ec50", (censored,) * 2)],
)
def test_a_table_of_several_possible_targets_is_not_pretrained_on_in_silence(tmp_path, header, columns, stream):
    data = table(tmp_path, header, *columns)
    with pytest.raises(
        SepNormError, match=r"the target is not clear .*name it by --set targets=NAME, or .* by --set task=pretrain"
    ):
        settings(data, **stream)
    assert settings(data, task="pretrain", **stream).task == "pretrain"
    assert settings(data, targets=header.split(",")[1], **stream).task == "supervised"
    if not stream:
        assert load_molecules(settings(data, task="pretrain")).names == (["a"] if header == "a,ic50" else [])


@pytest.mark.parametrize("header", ["ic50", "y"])
def test_a_censored_target_is_no_number_and_pretraining_goes_without_it(tmp_path, header):
    data = table(tmp_path, header, censored)
    chosen = settings(data)
    assert chosen.task == "supervised"
    with pytest.raises(SepNormError, match=r"no number in row 1, found '>10': a target is a number, or empty"):
        load_molecules(chosen)
    assert load_molecules(settings(data, task="pretrain")).names == []


def test_a_table_without_a_possible_target_is_pretrained_on(tmp_path):
    assert settings(table(tmp_path, "name,split", word, lambda row: "train")).task == "pretrain"
    assert settings("nci").task == "supervised"


def test_an_id_beside_classes_is_no_target(tmp_path):
    data = table(tmp_path, "id,A,B,name", number, odd, odd, word)
    assert settings(data).task == "supervised"
    assert list(read_table(data).targets) == ["A", "B"]
    assert list(read_table(table(tmp_path, "id,active", number, odd)).targets) == ["active"]
    assert list(read_table(table(tmp_path, "value", number)).targets) == ["value"]  # alone it is one


def test_the_class_of_bace_is_its_target(tmp_path):
    data = table(tmp_path, "CID,Class,Model,pIC50,MW", word, odd, lambda row: "Train", half, half)
    assert list(read_table(data).targets) == ["Class"]


def qm8(folder: Path) -> str:
    return table(folder, "id,E1,E2", number, half, lambda row: "" if row % 3 else row * 2.5, name="qm8.csv")


def test_all_numbers_of_a_table_to_test_on_are_its_targets(tmp_path):
    qm8(tmp_path)
    table(tmp_path, "y,weight", half, half, name="esol.csv")
    pretraining = PRESETS["demo"].changed({"task": "pretrain", "test": str(tmp_path)})
    with pytest.warns(GuessWarning, match=r"all 2 columns of numbers in .*qm8\.csv are its targets, such as 'E1'"):
        found = load_probed(pretraining)
    assert {name: one.names for name, one in found.items()} == {"esol": ["y"], "qm8": ["E1", "E2"]}
    assert bool(found["qm8"].train.targets.isnan().any())


def test_targets_that_are_named_are_those_of_the_tables_that_have_them(tmp_path):
    qm8(tmp_path)
    table(tmp_path, "y,weight", half, half, name="esol.csv")
    pretraining = PRESETS["demo"].changed({"task": "pretrain", "test": str(tmp_path)})
    found = load_probed(pretraining, target="E2")
    assert {name: one.names for name, one in found.items()} == {"esol": ["y"], "qm8": ["E2"]}
    found = load_probed(pretraining, target="E1, weight,E2")
    assert {name: one.names for name, one in found.items()} == {"esol": ["weight"], "qm8": ["E1", "E2"]}
    with pytest.raises(SepNormError, match=r"has no column 'E9': it has smiles, y, weight, id, E1, E2\."):
        load_probed(pretraining, target="E1,E9")


def split_in_three(folder: Path) -> Path:
    for name, rows in {"train-0": SMILES[:40], "val-0": SMILES[40:50], "test-0": SMILES[50:]}.items():
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["smiles,y", *(f"{text},{len(text)}" for text in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("inside", ["", "mine"])
def test_a_table_per_split_is_one_table_to_test_on(tmp_path, inside):
    split_in_three(tmp_path / inside)
    if inside:
        table(tmp_path, "y", half, name="other.csv")
    found = load_probed(PRESETS["demo"].changed({"task": "pretrain", "test": str(tmp_path)}), target="y")
    assert list(found) == (["mine", "other"] if inside else [tmp_path.name])
    one = next(iter(found.values()))
    assert [len(part) for part in (one.train, one.valid, one.test)] == [40, 10, 10]
    assert one.test.smiles == SMILES[50:]


def test_a_table_beside_a_split_and_two_tables_for_one_split_are_refused(tmp_path):
    split_in_three(tmp_path)
    assert len(read_table(str(tmp_path)).smiles) == 60
    table(tmp_path, "y", half, name="train-1.csv")
    with pytest.raises(SepNormError, match=r"has several tables for train, train-0\.csv and train-1\.csv: join them"):
        read_table(str(tmp_path))
    table(tmp_path, "y", half, name="other.csv")
    with pytest.raises(SepNormError, match=r"and other\.csv of no split: give the three a folder of their own"):
        load_probed(PRESETS["demo"].changed({"task": "pretrain", "test": str(tmp_path)}))
