from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch

import sepnorm
from sepnorm import SepNormError
from sepnorm.domains.molecules.config import PRESETS
from sepnorm.domains.molecules.data import MoleculeData, MoleculeSet
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphormer import hidden_code
from sepnorm.domains.molecules.masking import masked_batch
from sepnorm.domains.molecules.model import MaskedModel, PropertyModel
from sepnorm.domains.molecules.pictures import draw
from sepnorm.domains.molecules.recipe import MoleculeRecipe, groups
from sepnorm.domains.molecules.scores import PENALTIES, probe, scores
from sepnorm.training.batching import Samples, Steps, by_length

TINY = PRESETS["demo"].changed(
    dict(width=16, depth=2, heads=2, feed_forward=16, max_steps=8, batch_size=16, data="made up", checkpoints=3)
)


def molecules(count: int, shift: int = 0, classes: bool = False) -> MoleculeSet:
    smiles = ["C" * (1 + (i + shift) % 7) + "O" * (1 + i % 2) + "N" * (i % 3) for i in range(count)]
    values = torch.tensor([[float(text.count("C")), float(len(text))] for text in smiles])
    return MoleculeSet(list(featurise(smiles, "ogb")[0]), smiles, (values > 4).float() if classes else values)


def made_up(classes: bool = False) -> MoleculeRecipe:
    recipe = MoleculeRecipe.__new__(MoleculeRecipe)
    train, valid, test = molecules(64, 0, classes), molecules(24, 2, classes), molecules(24, 4, classes)
    train.targets[::5, 1] = float("nan")
    mean = torch.zeros(2) if classes else train.targets.nanmean(0)
    std = torch.ones(2) if classes else torch.tensor([2.0, 3.0])
    recipe.data = MoleculeData(train, valid, test, ["carbons", "atoms"], classes, mean, std, [])
    recipe.probed, recipe.stream = {}, None
    return recipe


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    old, new = a.state_dict(), b.state_dict()
    return old.keys() == new.keys() and all(torch.equal(old[key], new[key]) for key in old)


def batch_of(recipe: MoleculeRecipe) -> dict[str, torch.Tensor]:
    from sepnorm.domains.molecules.batches import collate

    return collate(recipe.data.train.graphs[:12], TINY.max_hops)


# ---- steps --------------------------------------------------------------------------------------------------------------


def test_steps_with_sizes_are_a_function_of_seed_and_number_and_leave_no_molecule_out_for_its_size():
    sizes = [1 + i % 29 for i in range(90)]

    def steps(seed):
        config = TINY.changed({"seed": seed, "max_steps": None, "epochs": 30, "batch_size": 16})
        make = lambda chosen, own, g: {"chosen": chosen, "draw": torch.rand(1, generator=g)}  # noqa: E731
        return Steps(config, Samples(90, make, by_length(sizes, 50)))

    first, again, other = steps(1), steps(1), steps(2)
    for number in (7, 3, 149, 0):
        assert torch.equal(first[number]["chosen"], again[number]["chosen"])
        assert torch.equal(first[number]["draw"], again[number]["draw"])
    assert not torch.equal(first[0]["chosen"], other[0]["chosen"])
    epoch = torch.cat([first[k]["chosen"] for k in range(5)])
    assert len(epoch.unique()) == 80 and all(len(first[k]["chosen"]) == 16 for k in range(5))
    spans = [max(s) - min(s) for s in ([sizes[i] for i in first[k]["chosen"].tolist()] for k in range(5))]
    assert max(spans) < 12
    seen = torch.cat([first[k]["chosen"] for k in range(150)]).bincount(minlength=90)
    assert int(seen.min()) > 15  # of 30 epochs; always cutting the largest would leave 0


def test_batches_are_of_all_sizes_unless_it_is_asked_for_and_never_for_batch_norms(tmp_path, monkeypatch):
    """A batch norm that sees small molecules in one batch and large ones in the next learns to ignore size."""
    found = []
    monkeypatch.setattr("sepnorm.domains.molecules.recipe.train", lambda model, steps, *_: found.append(steps))
    smiles = [f"{'C' * (1 + i % 30)}O,{i}" for i in range(300)]
    (tmp_path / "set.csv").write_text("\n".join(["smiles,y", *smiles]))
    config = TINY.changed({"data": str(tmp_path / "set.csv"), "split": "random", "batch_size": 16, "norm": "ln"})
    recipe = MoleculeRecipe(config)
    recipe.train(config, tmp_path)
    recipe.train(config.changed({"similar_sizes": True}), tmp_path)
    sizes = torch.tensor(recipe.data.train.sizes)
    ranges = [[int(sizes[steps.chosen(k)].max() - sizes[steps.chosen(k)].min()) for k in range(10)] for steps in found]
    assert min(ranges[0]) > 15 and max(ranges[1]) < 10
    for norm in ("bn", "bn+ln", "ln+bn"):
        with pytest.raises(SepNormError, match="leave out similar_sizes, or use a norm without bn"):
            config.changed({"similar_sizes": True, "norm": norm})


@pytest.mark.parametrize(("norm", "task"), [("bn+ln", "supervised"), ("bn", "pretrain"), ("ln", "supervised")])
def test_batch_statistics_are_measured_on_all_training_molecules_after_training(tmp_path, norm, task):
    recipe = made_up()
    kept = []
    measure = recipe.measure
    recipe.measure = lambda model: kept.append(model) or measure(model)  # type: ignore[method-assign]
    recipe.run(TINY.changed({"norm": norm, "task": task, "threads": 1}), tmp_path)
    found = [m for m in kept[0].graphormer.modules() if isinstance(m, torch.nn.BatchNorm1d)]
    assert len(found) == (norm != "ln")
    for layer in found:
        assert layer.num_batches_tracked > 0
        before = layer.running_mean.clone(), layer.running_var.clone()
        recipe.recalibrate(kept[0])
        assert torch.allclose(before[0], layer.running_mean, atol=1e-6) and torch.allclose(before[1], layer.running_var)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_what_is_hidden_is_not_in_the_batch_and_is_asked_for(weight):
    graphs = molecules(20).graphs
    config = TINY.changed({"contrastive_weight": weight, "mask_ratio": 0.3})
    batch = masked_batch(graphs, config, torch.Generator().manual_seed(0))
    assert len(batch["nodes"]) == (40 if weight else 20)
    flat = batch["nodes"].flatten(0, 1)
    assert bool((flat[batch["atoms"]] == hidden_code("ogb")).all())
    assert int((flat[:, 0] == hidden_code("ogb")).sum()) == len(batch["atoms"])
    width = batch["nodes"].shape[1]
    assert set((batch["atoms"] // width).tolist()) == set(range(len(batch["nodes"])))  # one of each molecule at least
    twice = [*graphs, *graphs]
    for place, kind in zip(batch["atoms"].tolist(), batch["atom_kinds"].tolist(), strict=True):
        assert twice[place // width].atoms[place % width, 0] == kind
    bonds = batch["bonds"]
    assert 0 < len(bonds) == len(batch["bond_kinds"])
    for i, j in bonds.tolist():
        row = batch["paths"][i // width, i % width, j % width]
        assert not row.any() and batch["distances"][i // width, i % width, j % width] == 1


# ---- models -------------------------------------------------------------------------------------------------------------


def test_missing_targets_do_not_count():
    recipe = made_up()
    model = PropertyModel(TINY.changed({"attention_dropout": 0.0, "activation_dropout": 0.0}), 2, False)
    batch = batch_of(recipe)
    targets = torch.randn(12, 2)
    predicted = model.head(model.graphormer(**batch).last_hidden_state[:, 0])
    errors = (predicted - targets).abs()
    assert torch.allclose(model(targets, **batch)["loss"], errors.mean())
    targets[3:, 1] = float("nan")
    wanted = torch.cat([errors[:, 0], errors[:3, 1]]).mean()
    loss = model(targets, **batch)["loss"]
    assert torch.allclose(loss, wanted)
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_classes_are_learnt_by_cross_entropy():
    model = PropertyModel(TINY.changed({"attention_dropout": 0.0, "activation_dropout": 0.0}), 1, True)
    batch = batch_of(made_up())
    targets = torch.tensor([[0.0], [1.0]] * 6)
    predicted = model.head(model.graphormer(**batch).last_hidden_state[:, 0])
    wanted = -torch.where(targets == 1, predicted.sigmoid(), 1 - predicted.sigmoid()).log().mean()
    assert torch.allclose(model(targets, **batch)["loss"], wanted, atol=1e-6)


def test_the_terms_of_pretraining_add_up():
    plain = TINY.changed({"attention_dropout": 0.0, "activation_dropout": 0.0, "contrastive_weight": 1e-12})
    batch = masked_batch(molecules(10).graphs, plain, torch.Generator().manual_seed(0))
    base = MaskedModel(plain)(**batch)["loss"]
    hidden = MaskedModel(plain).graphormer(**{k: v for k, v in batch.items() if "atom" not in k and "bond" not in k})
    first, second = hidden.last_hidden_state[:, 0].chunk(2)
    term = sepnorm.losses.info_nce(first, second, temperature=plain.temperature)
    full = MaskedModel(plain.changed({"contrastive_weight": 0.5}))(**batch)["loss"]
    assert torch.allclose(full, base + 0.5 * term, atol=1e-5)
    for on, within in (("cls", "batch"), ("tokens", "batch"), ("both", "sample")):
        changes = {"uniformity_weight": 0.3, "uniformity_on": on, "uniformity_within": within}
        assert float(MaskedModel(plain.changed(changes))(**batch)["loss"]) > float(base)


def test_arms_of_a_seed_start_from_the_same_weights():
    plain, separate = PropertyModel(TINY, 1, False), PropertyModel(TINY.changed({"norm": "bn+ln"}), 1, False)
    old, new = plain.state_dict(), separate.state_dict()
    shared = [key for key in old if key in new and new[key].shape == old[key].shape]
    assert len(shared) >= len(old) - 2
    assert all(torch.equal(old[key], new[key]) for key in shared)


# ---- scores -------------------------------------------------------------------------------------------------------------


def test_scores_have_their_closed_forms_and_pass_over_what_is_missing():
    true = torch.tensor([[1.0, 0.0], [2.0, float("nan")], [4.0, 2.0]])
    found = scores(torch.tensor([[2.0, 1.0], [2.0, 9.0], [2.0, 2.0]]), true, False)
    assert found["mae"] == pytest.approx((1.0 + 0.5) / 2)
    assert found["rmse"] == pytest.approx(((5 / 3) ** 0.5 + 0.5**0.5) / 2)
    labels = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, float("nan")]])
    found = scores(torch.tensor([[0.1, 0.0], [0.6, 0.0], [0.5, 0.0], [0.9, 0.0]]), labels, True)
    assert found["roc_auc"] == pytest.approx(3 / 4)  # of the first target alone: the second has one class
    assert found["average_precision"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert scores(torch.zeros(3, 1), torch.ones(3, 1), True) == {}


@pytest.mark.parametrize("classes", [False, True])
def test_a_probe_finds_what_is_linear(classes):
    rows = torch.randn(300, 6)
    values = rows @ torch.randn(6, 2)
    values = (values > 0).float() if classes else values
    values[::7, 0] = float("nan")
    parts = [(rows[a:b], values[a:b]) for a, b in ((0, 200), (200, 250), (250, 300))]
    found = probe(parts[0], parts[1], parts[2], classes)
    assert found["roc_auc"] > 0.98 if classes else found["mae"] < 0.01


@pytest.mark.parametrize("classes", [False, True])
def test_a_probe_is_the_regression_of_scikit_learn_that_is_best_on_validation(classes):
    from sklearn.linear_model import LogisticRegression, Ridge

    rows = torch.randn(400, 12).double() * torch.logspace(0, -1, 12)
    values = rows @ torch.randn(12, 3).double() + 0.5 * torch.randn(400, 3)
    values = (values > 0).double() if classes else values
    values[::5, 1] = float("nan")
    values[:200, 2] = 1.0  # nothing to learn
    parts = [(rows[a:b], values[a:b]) for a, b in ((0, 200), (200, 300), (300, 400))]
    scaled = [((part - rows[:200].mean(0)) / rows[:200].std(0)).numpy() for part, _ in parts]
    columns = []
    for column in range(2):
        known = parts[0][1][:, column].isfinite()
        tried = []
        for penalty in PENALTIES:
            head = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=9999) if classes else Ridge(alpha=penalty)
            head.fit(scaled[0][known.numpy()], parts[0][1][known, column].numpy())
            guess = head.decision_function if classes else head.predict
            valid, test = (torch.from_numpy(guess(part)) for part in scaled[1:])
            found = scores(valid[:, None], parts[1][1][:, column, None], classes)
            tried.append((found["roc_auc"] if classes else -found["mae"], test))
        columns.append(max(tried, key=lambda each: each[0])[1])
    wanted = scores(torch.stack([*columns, torch.zeros(100)], dim=1), parts[2][1], classes)
    found = probe(*parts, classes)
    assert found == pytest.approx(wanted, abs=1e-3 if classes else 1e-9)


def test_features_that_are_not_finite_are_not_probed():
    rows, values = torch.randn(30, 3), torch.randn(30, 1)
    bad = rows.clone()
    bad[3, 1] = float("nan")
    for parts in ((bad, rows, rows), (rows, bad, rows), (rows, rows, bad)):
        with pytest.raises(sepnorm.SepNormError, match="NaN or infinity"):
            probe(*((part, values) for part in parts), False)


def test_groups_are_fifths_and_structures_are_drawn():
    values = torch.cat([torch.arange(100.0), torch.tensor([float("nan")])])
    assert groups(values)[:-1].bincount().tolist() == [20] * 5 and int(groups(values)[-1]) == -1
    assert draw("CCO").startswith("<svg")


# ---- runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "norm"), [("supervised", "bn+ln"), ("pretrain", "bn")])
def test_a_run_goes_on_from_its_checkpoint_bit_by_bit_with_dropout(tmp_path, task, norm):
    recipe = made_up()
    config = TINY.changed({"task": task, "norm": norm, "dropout": 0.2})
    whole, trained = recipe.train(config, tmp_path / "whole")
    assert (tmp_path / "whole" / "checkpoint-6").is_dir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-6", tmp_path / "part" / "checkpoint-6")
    resumed, again = recipe.train(config, tmp_path / "part")
    assert same(whole, resumed) and again.losses == trained.losses


@pytest.mark.parametrize(
    ("task", "norm", "classes", "expected"),
    [
        ("supervised", "ln", False, {"test_mae", "test_rmse", "valid_mae", "valid_rmse"}),
        ("supervised", "bn+ln", True, {"test_roc_auc", "test_average_precision", "valid_roc_auc"}),
        ("pretrain", "bn+ln", False, {"probe_mae", "probe_rmse"}),
    ],
)
def test_a_run_leaves_metrics_in_the_units_of_the_targets_and_a_model_that_opens(
    tmp_path, task, norm, classes, expected
):
    from sepnorm.experiment.runs import perform

    recipe = made_up(classes)
    perform(recipe, TINY.changed({"task": task, "norm": norm, "checkpoints": 0}), tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert expected | {"cls_uniformity", "cls_effective_rank", "loss"} <= metrics.keys()
    assert all(math.isfinite(value) for value in metrics.values())
    kept = np.load(tmp_path / "predictions.npz")
    assert json.loads((tmp_path / "names.json").read_text()) == recipe.data.test.smiles
    if task == "supervised" and not classes:
        wanted = np.abs(kept["predicted"] - kept["true"]).mean()
        assert metrics["test_mae"] == pytest.approx(wanted, rel=1e-5)
    model = sepnorm.load(tmp_path / "model") if norm != "ln" else None
    if model is not None:
        recipe_model = recipe.build(TINY)
        recipe_model.graphormer = model
        found = recipe.encode(recipe_model, recipe.data.test)
        assert np.allclose(found.numpy(), np.load(tmp_path / "embeddings.npz")["cls"], atol=1e-5)
    assert (tmp_path / "model" / "head.safetensors").is_file() == (task == "supervised")


def test_a_comparison_writes_its_page_with_predictions_and_structures(tmp_path):
    from sepnorm.domains import open_domain
    from sepnorm.domains.comparison import compare_domain, parse_arms, plan

    domain = open_domain("molecules")
    assert domain.arms == "ln,bn@final,bn+ln@final"
    table = tmp_path / "set.csv"
    some = molecules(60)
    rows = [f"{text},{value}" for text, value in zip(some.smiles, some.targets[:, 0].tolist(), strict=True)]
    table.write_text("\n".join(["smiles,y", *rows]))
    small = {"width": 16, "depth": 2, "heads": 2, "feed_forward": 16, "max_steps": 3, "batch_size": 16, "threads": 0}
    base = domain.settings("demo", small | {"data": str(table)})
    _, page = compare_domain(plan(domain, parse_arms("ln,bn+ln@final"), base), [0], tmp_path / "out")
    text = page.read_text()
    assert "Predicted against true" in text and "Nearest molecules" in text and "<svg" in text and "test MAE" in text


def test_readings_on_the_way_change_no_bit_of_a_run(tmp_path):
    recipe, config = made_up(), TINY.changed({"norm": "bn+ln"})
    plain, trained, none = recipe.watched(config.changed({"monitor": 0}), tmp_path / "plain")
    watched, again, found = recipe.watched(config.changed({"monitor": 4}), tmp_path / "watched")
    assert same(plain, watched) and trained.losses == again.losses and none == {}
    assert found["monitor"]["steps"].tolist() == [1, 2, 4, 6, 8]
    assert bool((found["monitor"]["cls_effective_rank_centered"] > 1).all())
