"""The paper's tables and figures, and studies of ours, as commands."""

from __future__ import annotations

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from sepnorm import SepNormError
from sepnorm.commands.app import app
from sepnorm.domains import open_domain
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.domain import METRICS
from sepnorm.domains.probes import centred, whitened
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.estimate import measure
from sepnorm.files import write_arrays
from sepnorm.studies import published
from sepnorm.studies.drawing import DRAWERS, lambda_figures, uniformity_figures
from sepnorm.studies.estimate import estimate
from sepnorm.studies.own_drawing import merged_table, part_tables, pooling_tables, whitening_tables
from sepnorm.studies.parts import SCALES, Part, configs_of, parts_of
from sepnorm.studies.plan import STUDIES, find_study
from sepnorm.studies.steps import steps_tables
from sepnorm.training.configs import preset

pytestmark = pytest.mark.slow

# two threads: one run at a time, in this process
TINY = dict(
    width=16, depth=1, heads=2, decoder_width=8, decoder_depth=1, decoder_heads=2, max_steps=2, threads=64
)  # one run at a time
WORDS = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]


def test_every_study_has_a_drawer_and_settings_that_fit_at_every_scale():
    for study in STUDIES.values():
        assert study.draw in DRAWERS or study.draw in ("calibration", "tuning")
        for scale in SCALES:
            for part in study.parts[scale]:
                base, configs = configs_of(part, {})
                assert part.preset in open_domain(part.domain).presets
                assert len({config.arm for config in configs}) == len(configs)
                assert all(config.batch_size == base.batch_size for config in configs)


def test_parts_that_share_a_folder_differ_in_nothing_but_their_arms():
    kept: dict[tuple[str, str], dict] = {}
    free = {"norm", "sites", "uniformity_weight", "uniformity_on"}
    for study in STUDIES.values():
        for scale in SCALES:
            for part in study.parts[scale]:
                base = {k: v for k, v in configs_of(part, {})[0].model_dump().items() if k not in free}
                assert kept.setdefault((scale, part.folder), base) == base


def test_mixtures_are_studied_on_flowers_too():
    cifar, flowers = STUDIES["mixture"].parts["small"]
    assert (cifar.name, flowers.name) == ("cifar10-steps", "flowers-steps") and cifar.norms == flowers.norms
    assert (configs_of(cifar, {})[0].epochs, configs_of(flowers, {})[0].epochs) == (8, 12)
    assert configs_of(flowers, {})[0].probes
    assert "bn@final" in cifar.norms  # whose best accuracy the others should reach


def test_published_tables_are_whole():
    for header, rows in (published.IMAGES, published.UNIFORMITY, published.TEXT, published.MOLECULES, published.LAMBDA):
        assert all(len(row) == len(header) for row in rows)
    for row in published.TEXT[1]:
        assert float(row[8]) == pytest.approx(sum(map(float, row[1:8])) / 7, abs=0.03)  # as printed in the paper


@pytest.mark.parametrize(
    ("name", "ours", "message"),
    [
        ("tabel1", False, "Did you mean 'table1'"),
        ("sites", False, "It is one of our own: sepnorm study"),
        ("table1", True, "It is the paper's: sepnorm reproduce"),
    ],
)
def test_a_name_that_is_not_there_is_refused(name, ours, message):
    with pytest.raises(SepNormError, match=message):
        find_study(name, ours)


def test_other_data_and_seeds_are_for_the_parts_that_are_named():
    found = parts_of(STUDIES["table1"], "paper", {"svhn": "/here"}, 2)
    assert [part.changes["data"] for part in found] == ["stl10", "aircraft", "/here", "flowers"]
    assert {part.seeds for part in found} == {2}
    assert parts_of(STUDIES["batch-size"], "small", {"cifar10": "x"})[1].changes["data"] == "x"
    with pytest.raises(SepNormError, match=r"--data names 'shvn', and there are stl10.*Did you mean 'svhn'"):
        parts_of(STUDIES["table1"], "paper", {"shvn": "/here"})
    with pytest.raises(SepNormError, match=r"unknown scale 'papre'.*Did you mean 'paper'"):
        parts_of(STUDIES["table1"], "papre")


def test_how_many_steps_a_run_has():
    paper = PRESETS["paper"]
    assert paper.steps_on(5000) == 4000 * (5000 // 512)
    assert paper.changed({"max_steps": 100}).steps_on(5000) == 100
    assert paper.changed({"accumulation": 3, "epochs": 1}).steps_on(5120) == 4
    assert paper.changed({"epochs": 2}).steps_on(100) == 2


def test_a_table_and_a_figure_from_the_same_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["reproduce", "table1", "--seeds", "2", *WORDS])
    assert said.exit_code == 0, said.output
    assert "93.84" in said.output and "digits, top-1" in said.output and "minus ln" in said.output
    assert said.output.rstrip().endswith("Report: runs/reproduce-demo/table1.html")
    runs = sorted((tmp_path / "runs/reproduce-demo/images-digits/runs").iterdir())
    assert [run.name for run in runs] == [f"{arm}-seed{s}" for arm in ("bn+bn@final", "bn@final", "ln") for s in (0, 1)]
    before = {run.name: (run / "metrics.json").stat().st_mtime_ns for run in runs}
    rows = json.loads((tmp_path / "runs/reproduce-demo/table1.json").read_text())["tables"][0]["rows"]
    metrics = [json.loads((run / "metrics.json").read_text())["cls_linear_top1"] for run in runs[4:]]
    assert rows[0][0] == "ln" and float(rows[0][1].split()[0]) == pytest.approx(50 * sum(metrics), abs=0.006)

    dry = CliRunner().invoke(app, ["reproduce", "figure4", "--seeds", "2", "--dry-run", *WORDS])
    cells = [cell.strip() for cell in dry.output.strip().splitlines()[-1].strip("|").split("|")]
    assert cells[:4] == ["digits", "8", "6", "2"]  # two seeds of four arms, of which three are there
    said = CliRunner().invoke(app, ["reproduce", "figure4", "--seeds", "2", "--quiet", *WORDS])
    assert said.exit_code == 0, said.output
    page = (tmp_path / "runs/reproduce-demo/figure4.html").read_text()
    assert "Loss of training" in page and "singular values" in page.lower()
    assert before == {run.name: (run / "metrics.json").stat().st_mtime_ns for run in runs}

    # a study of ours, two of whose four runs are there
    said = CliRunner().invoke(app, ["study", "num-cls", "--seeds", "1", "--quiet", *WORDS])
    assert said.exit_code == 0, said.output
    table = json.loads((tmp_path / "runs/reproduce-demo/num-cls.json").read_text())["tables"][0]
    names = ["ln", "bn+bn@final, num_cls 1", "bn+bn@final, num_cls 2", "bn+bn@final, num_cls 4"]
    assert [row[0] for row in table["rows"]] == names and all(all(row) for row in table["rows"])


def test_data_that_are_missing_are_named_with_the_way_to_get_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = CliRunner().invoke(app, ["reproduce", "table4", "--scale", "small"])
    assert isinstance(said.exception, SepNormError)
    assert "name a copy by --data 'zinc12k=PATH'" in str(said.exception)


def some(values: dict[str, dict[int, float]], changes: dict | None = None) -> Comparison:
    config = preset(PRESETS, "demo").changed(changes or {})
    arms = []
    for name, found in values.items():
        norm = config.changed({"norm": name})
        arms.append(Arm(norm.arm, norm, {seed: {"cls_knn": value} for seed, value in found.items()}))
    return Comparison(arms, METRICS)


def part(name: str) -> Part:
    return Part(name, "images", "demo", ("ln",), 10)


def test_tables_have_means_intervals_and_paired_differences():
    first = some({"ln": {0: 0.5, 1: 0.6, 2: 0.7}, "bn+bn": {0: 0.55, 1: 0.65, 2: 0.75}})
    second = some({"ln": {0: 0.5, 1: 0.6, 2: 0.7}, "bn+bn": {0: 0.5, 1: 0.5, 2: 0.9}})
    tables = part_tables([(part("a"), first), (part("b"), second)]).tables
    assert tables[0] == (["ours, 3 seeds", "a, [CLS] kNN"], [["ln", "0.600 ± 0.248"], ["bn+bn@final", "0.650 ± 0.248"]])
    assert tables[1] == (["minus ln", "a, [CLS] kNN"], [["bn+bn@final", "+0.050 ± 0.000 better"]])
    assert "undecided" in tables[3][1][0][1]
    merged = merged_table([(part("a"), first), (part("b"), some({"bn+bn": {0: 0.5, 1: 0.5, 2: 0.9}}))]).tables
    assert [row[0] for row in merged[0][1]] == ["ln", "bn+bn@final, a", "bn+bn@final, b"]
    assert re.match(r"\+0\.033 ± 0\.\d+ undecided", merged[1][1][1][1])


def test_the_question_of_a_study_is_answered_within_an_arm_too():
    """Whether whitening the baseline does as much as another norm: paired by seed, across two scores."""
    comparison = some({"ln": {0: 0.5, 1: 0.6, 2: 0.7}, "bn+bn": {0: 0.6, 1: 0.7, 2: 0.8}})
    for arm, gain in zip(comparison.arms, (0.2, 0.0), strict=True):
        for found in arm.metrics.values():
            found["cls_whitened_knn"] = found["cls_knn"] + gain
    tables = whitening_tables([(part("a"), comparison)]).tables
    assert tables[2] == (
        ["in each arm", "a, [CLS] kNN, whitened, minus [CLS] kNN"],
        [["ln", "+0.200 ± 0.000 better"], ["bn+bn@final", "+0.000 ± 0.000 undecided"]],
    )
    assert tables[3] == (
        ["ours, against ln", "a, [CLS] kNN, minus [CLS] kNN, whitened, of ln"],
        [["bn+bn@final", "-0.100 ± 0.000 worse"]],
    )


def test_moments_are_compared_with_cls_and_mean_and_errors_are_better_where_they_are_lower():
    values = {"probe_bbbp_rmse": 1.0, "mean_probe_bbbp_rmse": 0.9, "moments_probe_bbbp_rmse": 1.2}
    arms = [
        Arm(norm, PRESETS["demo"], {seed: {key: value + seed for key, value in values.items()} for seed in range(3)})
        for norm in ("ln", "bn+ln")
    ]
    molecules = Part("a", "molecules", "demo", ("ln",), 10)
    tables = pooling_tables([(molecules, Comparison(arms, open_domain("molecules").metrics))]).tables
    head, rows = tables[-1]
    assert len(head) == 4 and head[1] == "a, mean probe of bbbp, RMSE, minus [CLS] probe of bbbp, RMSE"
    assert rows[0] == ["ln", "-0.100 ± 0.000 better", "+0.200 ± 0.000 worse", "+0.300 ± 0.000 worse"]


def test_a_part_may_be_tested_on_other_data():
    found = parts_of(STUDIES["pooling"], "small", {"stsb": "texts", "stsb.test": "rated", "flowers": "x"})
    assert {part.name: part.changes.get("test") for part in found} == {
        "cifar10": None,
        "flowers": None,
        "stsb": "rated",
        "moleculenet": None,
    }
    assert found[2].changes["data"] == "texts"


def test_time_and_size_are_told_before_a_run(tmp_path):
    header, rows = estimate(parts_of(STUDIES["table4"], "demo"), {"width": 16, "heads": 2, "depth": 1}, tmp_path)
    assert header[:5] == ["part", "runs", "finished", "steps a run", "parameters"]
    assert rows[0][:4] == ["nci", "9", "0", "368"] and all(float(cell.replace(",", "")) > 0 for cell in rows[0][5:])


def test_what_grows_with_the_batch_and_what_does_not_are_told_apart(monkeypatch):
    """A step of 1 second and a quarter for each sample, by a clock of ours."""
    clock = [0.0]

    def batch(count: int) -> dict[str, torch.Tensor]:
        clock[0] += 1 + 0.25 * count
        return {"x": torch.zeros(count)}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.weight * x).sum()}

    monkeypatch.setattr("sepnorm.experiment.estimate.time.perf_counter", lambda: clock[0])
    config = PRESETS["paper"].changed({"batch_size": 100, "accumulation": 2})
    assert measure(Model(), batch, config) == pytest.approx(2 * (1 + 25))


def test_whitened_rows_have_no_correlation_and_dead_directions_are_left_out():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(500, 6, generator=generator) @ torch.randn(6, 6, generator=generator) + 3
    rows[:, 5] = rows[:, 4]  # one direction has no variance
    free = whitened(rows, rows)
    assert free.shape == (500, 5)
    assert torch.allclose(torch.cov(free.T), torch.eye(5), atol=1e-4) and float(free.mean(0).abs().max()) < 1e-4
    assert torch.allclose(whitened(rows, rows[:7]), free[:7])
    assert torch.allclose(centred(rows, rows).mean(0), torch.zeros(6), atol=1e-5)
    assert torch.allclose(centred(rows, rows[:7]), rows[:7] - rows.mean(0), atol=1e-5)


def test_a_sweep_is_arranged_as_in_the_paper():
    config = preset(PRESETS, "demo")
    arms = []
    for norm in ("ln", "bn+bn"):
        for weight, on in ((1, "cls"), (0, "cls"), (0.1, "cls"), (0.1, "both")):
            changed = config.changed({"norm": norm, "uniformity_weight": weight, "uniformity_on": on})
            arms.append(Arm(changed.arm, changed, {0: {"cls_linear_top1": weight / 2, "cls_uniformity": -weight}}))
    header, rows = lambda_figures([(part("a"), Comparison(arms, METRICS))]).tables[0]
    assert header == ["ours, a, [CLS] linear, λ=0.1 / 1", "λ=0", "on tokens", "on [CLS]", "on both"]
    assert rows == [[norm, "0.00", "", "5.00 / 50.00", "5.00"] for norm in ("ln", "bn+bn")]
    assert uniformity_figures([(part("a"), Comparison(arms, METRICS))]).tables[0][1][0][3] == "-0.100 / -1.000"


def read_on_the_way(folder, name: str, lines: dict[int, list[float]]) -> Arm:
    config = PRESETS["demo"].changed({"norm": name})
    folders = {seed: folder / f"{config.norm}-{seed}" for seed in lines}
    for seed, values in lines.items():
        found = torch.tensor(values, dtype=torch.float64)
        folders[seed].mkdir()
        arrays = {"steps": torch.tensor([1, 10, 20]), "cls_linear_top1": found, "cls_knn": found}
        write_arrays(folders[seed] / "monitor.npz", arrays)
    return Arm(config.arm, config, {seed: {"cls_knn": 0.5} for seed in lines}, {}, folders)


def test_steps_to_the_best_of_another_arm(tmp_path):
    reference = read_on_the_way(tmp_path, "bn+bn", {0: [0.1, 0.2, 0.6], 1: [0.1, 0.5, 0.4]})
    quick = read_on_the_way(tmp_path, "bn+mix", {0: [0.2, 0.6, 0.7], 1: [0.5, 0.2, 0.2]})
    never = read_on_the_way(tmp_path, "ln", {0: [0.1, 0.2, 0.3], 1: [0.5, 0.5, 0.5]})
    tables = steps_tables("here", Comparison([never, reference, quick], METRICS))
    assert [header[0] for header, _ in tables] == ["here, [CLS] linear, on the way", "here, [CLS] kNN, on the way"]
    rows = {row[0]: row[1:] for row in tables[0][1]}
    assert rows["ln"][1:] == ["1 of 2", "", ""]
    assert rows["bn+bn@final"][1:] == ["2 of 2", "15 ± 64", "1.00 ± 0.00"]  # steps 20 and 10
    assert rows["bn+mix@final"][1:] == ["2 of 2", "6 ± 57", "0.30 ± 2.54"]  # at 10 of 20, at 1 of 10
    assert steps_tables("here", Comparison([never, quick], METRICS)) == []
    shared = read_on_the_way(tmp_path, "bn", {0: [0.1, 0.2, 0.3], 1: [0.1, 0.4, 0.5]})
    tables = steps_tables("here", Comparison([never, shared, reference, quick], METRICS))
    assert [header[2].removeprefix("seeds that reach ") for header, _ in tables] == ["bn@final", "bn+bn@final"] * 2
    assert {row[0]: row[2] for row in tables[0][1]}["ln"] == "2 of 2"


def test_probes_on_the_way_change_nothing_of_a_run(tmp_path):
    small = {**TINY, "norm": "bn+mix", "max_steps": 4, "monitor": 2}
    recipe = open_domain("images").recipe(PRESETS["demo"])
    found = []
    for probes in (False, True):
        config = PRESETS["demo"].changed({**small, "probes": probes})
        model, trained, arrays = recipe.watched(config, tmp_path / str(probes))
        found.append((model.state_dict(), trained.losses, arrays["monitor"]))
    (weights, losses, without), (others, other_losses, probed) = found
    assert losses == other_losses
    assert all(torch.equal(value, others[key]) for key, value in weights.items())
    assert probed["steps"].tolist() == [1, 2, 4]
    assert set(probed) - set(without) == {"cls_linear_top1", "cls_knn"}
    assert probed["cls_knn"].shape == (3,) and bool((probed["cls_knn"] > 0.2).all())
