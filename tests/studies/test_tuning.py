"""The study of tuning: learning rates from development data, then every method with every seed."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from models import text_model

from sepnorm import SepNormError
from sepnorm.domains.text.config import PRESETS
from sepnorm.studies import tuning_runs
from sepnorm.studies.parts import parts_of
from sepnorm.studies.plan import STUDIES
from sepnorm.studies.tuning import base_config, planned, tuning
from sepnorm.studies.tuning_runs import RATES, TuningConfig, TuningRecipe
from sepnorm.tuning import save

PEFT = Path(__file__).parents[2] / ".peft"


@pytest.fixture
def base(tmp_path) -> TuningConfig:
    """A tiny model, and a table in which the class of a text is said by one of its words."""
    text_model(tmp_path / "model")
    draw = random.Random(0)
    rows = ["task\tsplit\tlabel\ttext"]
    for task, splits in (("MR", ("all",)), ("SST2", ("train", "dev", "test")), ("TREC", ("train", "test"))):
        for split in splits:
            for number in range(120 if split in ("all", "train") else 20):
                words = draw.choices("the on mat and number a b c".split(), k=draw.randint(1, 5))
                words.insert(draw.randint(0, len(words)), ("cat", "dog")[number % 2])
                rows.append(f"{task}\t{split}\t{number % 2}\t{' '.join(words)}")
    (tmp_path / "table.tsv").write_text("\n".join(rows))
    given = dict(model=str(tmp_path / "model"), steps=4, batch_size=8, length=8, held_out=16, threads=0)
    return base_config("demo", given, {"transfer": str(tmp_path / "table.tsv")})


def test_parts_do_not_overlap_and_do_not_depend_on_the_seed(base):
    for task, test in (("mr", 12), ("sst2", 20), ("trec", 20)):
        recipe = TuningRecipe(base.changed({"task": task}))
        rows = torch.cat(list(recipe.parts.values()))
        assert len(rows.unique()) == len(rows) and len(recipe.parts["test"]) == test
        assert len(recipe.parts["validation"]) == 16
        other = TuningRecipe(base.changed({"task": task, "seed": 3}))
        assert all(torch.equal(recipe.parts[name], other.parts[name]) for name in recipe.parts)


@pytest.mark.parametrize("method", ["full", "linear", "pasta", "cls-norm"])
def test_a_method_trains_what_it_says(base, method, tmp_path):
    config = base.changed({"task": "trec", "method": method, "learning_rate": 0.01})
    found = TuningRecipe(config).run(config, tmp_path, None).metrics
    again = TuningRecipe(config).run(config, tmp_path, None).metrics
    assert found["accuracy"] == again["accuracy"] and 0 <= found["accuracy"] <= 1
    sizes = {"linear": 0, "pasta": 2 * 2 * 16, "cls-norm": 4 * 2 * 16}
    assert found["tuned_parameters"] == sizes.get(method, found["tuned_parameters"])
    assert 0 < found["bytes"] - 4 * (found["tuned_parameters"] + 2 * 17) < 6000  # the names, of 39 tensors at most
    assert ("seconds_a_step" in found) == (method != "linear")


@pytest.mark.parametrize("method", ["pasta", "cls-norm"])
def test_bytes_are_those_of_the_files_that_a_task_leaves(base, method, tmp_path):
    from safetensors.torch import save_file

    config = base.changed({"task": "trec", "method": method, "learning_rate": 0.01})
    recipe = TuningRecipe(config)
    found = recipe.run(config, tmp_path, None).metrics["bytes"]
    model, _, _ = recipe.train(recipe.start.fresh(PRESETS["demo"])[0], config, recipe.parts["train"][:32], None)
    save(model, tmp_path / "vectors")
    save_file(dict(model.head.named_parameters()), tmp_path / "head.safetensors")
    files = [tmp_path / "vectors" / "special.safetensors", tmp_path / "head.safetensors"]
    assert abs(found - sum(file.stat().st_size for file in files)) < 300  # two headers instead of one


def test_settings_are_checked_before_anything_is_run(base, monkeypatch, tmp_path):
    with pytest.raises(SepNormError, match="method is what the study compares"):
        base_config("demo", {"method": "pasta"}, {})
    with pytest.raises(SepNormError, match="uniformity_weight has no effect on the study of tuning"):
        base_config("demo", {"uniformity_weight": 0.1}, {})
    with pytest.raises(SepNormError, match="device='cuda'"):
        base_config("demo", {"device": "cuda"}, {})
    with pytest.raises(SepNormError, match="need 8,000 texts to train on, and mr has 92"):
        TuningRecipe(base.changed({"steps": 1000}))
    with pytest.raises(SepNormError, match="--data names 'mr', and there are transfer"):
        parts_of(STUDIES["tuning"], "demo", {"mr": "x"})
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(SepNormError, match="LoRA and LN tuning of peft: pip install 'sepnorm\\[tuning\\]'"):
        tuning(base, 1, tmp_path)


def test_the_plan_has_the_time_of_every_part(base):
    header, rows = planned(base, 2)
    assert header == ["part", "runs", "steps a run", "hours in all"]
    assert [row[:3] for row in rows[:2]] == [["mr, learning rates", "15", "2"], ["mr", "12", "4"]]
    assert len(rows) == 6 and all(0 < float(row[3]) < 1 for row in rows)


@pytest.mark.slow
@pytest.mark.skipif(not (PEFT / "peft").is_dir(), reason="peft is tested from a folder of its own: see the Makefile")
def test_the_whole_study(base, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PEFT))
    drawn = tuning(base, 2, tmp_path / "out")
    (_, accuracy), (_, gaps), (_, costs) = drawn.tables
    assert [row[0] for row in accuracy] == list(RATES) and [row[0] for row in gaps] == list(RATES)[1:]
    assert [row[1] for row in costs[2:]] == ["64", "128", "128", "160"]
    assert all("±" in cell for row in accuracy for cell in row[1:])
    rates = json.loads((tmp_path / "out/tuning-mr/runs/pasta-seed1/config.json").read_text())["learning_rate"]
    assert rates in RATES["pasta"]
    monkeypatch.setattr(tuning_runs.TuningRecipe, "run", None)  # what is finished is not run again
    assert tuning(base, 2, tmp_path / "out").tables == drawn.tables
