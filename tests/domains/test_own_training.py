"""``sepnorm.compare`` with training functions of a user's own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from models import bert, sentences
from torch import nn

import sepnorm
from sepnorm import Metric, SepNormError
from sepnorm.domains.scores import compare_scores
from sepnorm.errors import SecondLookWarning, SepNormWarning

SCORES = {"ln": 0.80, "bn@final": 0.84, "bn+ln@final": 0.90}
ARMS = list(SCORES)


def made_up(arm, seed, folder):
    (folder / "mine.txt").write_text(arm.name)
    return {"accuracy": SCORES[arm.name] + 0.01 * seed + 0.001 * len(arm.name) * torch.rand(()).item(), "loss": 1.0}


def test_arms_and_seeds_are_run_judged_and_drawn(tmp_path):
    found = sepnorm.compare(made_up, iter(ARMS), 4, tmp_path, metrics={"accuracy": True, "loss": False})
    assert {name: each.verdict for name, each in found.decisions().items()} == {
        "bn@final": "better",
        "bn+ln@final": "better",
    }
    plain = json.loads((tmp_path / "results.json").read_text())
    assert plain["primary"] == "accuracy" and plain["decisions"]["bn@final"]["seeds"] == 4
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Better than ln by accuracy: bn+ln@final, bn@final" in page and "Differences by seed" in page
    assert (tmp_path / "runs/bn@final-seed3/files/mine.txt").read_text() == "bn@final"


def test_runs_of_an_earlier_version_of_the_function_are_warned_of(tmp_path):
    def train(arm, seed, folder):
        return {"accuracy": SCORES[arm.name]}

    old = train
    again = {"arms": ARMS, "seeds": 2, "out": tmp_path, "metrics": {"accuracy": True}}
    for _ in range(2):
        sepnorm.compare(old, **again)

    def train(arm, seed, folder):
        return {"accuracy": 1 - SCORES[arm.name]}

    for _ in range(2):
        with pytest.warns(sepnorm.SepNormWarning, match="has changed since runs in .* were finished"):
            assert sepnorm.compare(train, **again).arms[0].values("accuracy") == {0: 0.8, 1: 0.8}


def test_less_is_better_where_the_user_says_so(tmp_path):
    found = sepnorm.compare(made_up, ARMS, 4, tmp_path, metrics={"accuracy": False})
    assert {each.verdict for each in found.decisions().values()} == {"worse"}


def test_seeds_are_added_until_all_is_decided(tmp_path):
    found = sepnorm.compare(made_up, ARMS, "auto", tmp_path, metrics={"accuracy": True}, most=10)
    assert found.decided and 3 <= len(found.arms[0].metrics) < 10


def plain_loop(arm, seed, folder):
    """A plain PyTorch loop: a tiny BERT that tells two kinds of sentences apart."""
    model = bert()
    arm.apply(model, calibrate=[sentences(8)])
    head = nn.Linear(model.config.hidden_size, 2)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    model.train()
    for _ in range(3):
        batch = sentences(8)
        labels = batch["input_ids"][:, 1] % 2
        logits = head(model(**batch).last_hidden_state[:, 0])
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": loss.item()}


def with_trainer(arm, seed, folder):
    """transformers' Trainer on the same."""
    import transformers

    model = transformers.BertForSequenceClassification(bert().config)
    arm.apply(model, calibrate=[sentences(8)])
    rows = sentences(16)
    data = [
        {key: value[i] for key, value in rows.items()} | {"labels": int(rows["input_ids"][i, 1] % 2)} for i in range(16)
    ]
    options = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), max_steps=2, per_device_train_batch_size=4, report_to="none", use_cpu=True, seed=seed,
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = transformers.Trainer(model, options, train_dataset=data, eval_dataset=data)
    trainer.train()
    return {"loss": trainer.evaluate()["eval_loss"]}


@pytest.mark.parametrize("run", [plain_loop, with_trainer])
def test_a_training_loop_of_ones_own(tmp_path, capsys, run):
    found = sepnorm.compare(run, ["ln", "bn+ln@final"], 2, tmp_path, metrics={"loss": False})
    said = capsys.readouterr().err
    assert "minus ln" in said and said.endswith(f"Report: {tmp_path / 'report.html'}\n")
    plain, separate = (arm.values("loss") for arm in found.arms)
    assert plain.keys() == separate.keys() == {0, 1} and plain != separate
    again = sepnorm.compare(run, ["ln", "bn+ln@final"], 2, tmp_path / "again", metrics={"loss": False}, quiet=True)
    assert capsys.readouterr().err == ""
    assert again.arms[1].values("loss") == separate  # by the seed alone


def test_a_run_may_change_the_working_directory_and_exit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def moves(arm, seed, folder):
        os.chdir(folder)
        (folder / "mine.txt").write_text("mine")
        if seed == 1 and arm.norm == "bn":
            sys.exit(0)
        return made_up(arm, seed, folder)

    with pytest.raises(SepNormError, match=r"the run of bn@final, seed 1 raised SystemExit: 0 .*error\.txt"):
        sepnorm.compare(moves, ["ln", "bn"], 3, "out", metrics={"accuracy": True}, quiet=True)
    assert Path.cwd() == tmp_path and [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(list(tmp_path.rglob("mine.txt"))) == 6 and not list(tmp_path.glob("out/runs/*/files/out"))
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "Unfinished: bn@final, seed 1 failed." in page


def test_runs_that_ignore_their_seed_are_warned_of(tmp_path):
    def copies(arm, seed, folder):
        torch.manual_seed(0)
        return {"accuracy": SCORES[arm.name] + torch.rand(()).item(), "runtime": time.perf_counter()}

    with pytest.warns(SepNormWarning, match=r"copies of one run, and no verdict counts\. Use the seed"):
        found = sepnorm.compare(copies, ARMS, 7, tmp_path, metrics={"accuracy": True}, quiet=True)
    assert {each.verdict for each in found.decisions().values()} == {"undecided"}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "copies of one run" in page and "Better than" not in page and "undecided after" not in page


@pytest.mark.parametrize(
    "value", [np.array([0.9]), torch.tensor([0.9], requires_grad=True), np.float32(0.9), torch.tensor(0.9)]
)
def test_one_number_of_any_library_is_a_metric(tmp_path, value):
    found = sepnorm.compare(lambda *_: {"accuracy": value}, ["ln", "bn"], 1, tmp_path, metrics={"accuracy": True})
    assert found.arms[0].values("accuracy") == {0: pytest.approx(0.9)}


def test_metrics_that_are_not_declared_fail_no_run(tmp_path):
    def more(arm, seed, folder):
        return made_up(arm, seed, folder) | {"model": "resnet", "aux": float("nan") if seed else 0.5, "best": None}

    found = sepnorm.compare(more, ["ln", "bn"], 2, tmp_path, metrics={"accuracy": True})
    assert found.keys == ["accuracy", "loss", "aux"]
    assert json.loads((tmp_path / "results.json").read_text())["arms"][0]["seeds"]["1"]["aux"] is None


def test_pages_of_own_runs_claim_nothing_of_their_data(tmp_path):
    sepnorm.compare(made_up, ["ln", "bn"], 3, tmp_path / "own", metrics={"accuracy": True}, quiet=True)
    page = (tmp_path / "own/report.html").read_text(encoding="utf-8")
    assert "paired by seed. " in page and "first weights" not in page and "Shared norms are hollow" in page
    (tmp_path / "t.csv").write_text("arm,seed,accuracy\nold,0,1\nold,1,2\nnew,0,2\nnew,1,5\n")
    page = compare_scores(tmp_path / "t.csv", tmp_path / "scores", {"accuracy": True})[1].read_text(encoding="utf-8")
    assert "first weights" not in page and "Shared norms are hollow" not in page


def test_a_lambda_is_the_same_in_another_call(tmp_path):
    again = {"arms": ARMS, "out": tmp_path, "metrics": {"accuracy": True}, "quiet": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error", SepNormWarning)
        sepnorm.compare(lambda arm, seed, folder: {"accuracy": SCORES[arm.name] + seed}, seeds=2, **again)
        sepnorm.compare(lambda arm, seed, folder: {"accuracy": SCORES[arm.name] + seed}, seeds=2, title="One", **again)
    with pytest.warns(SepNormWarning, match="has changed"):
        sepnorm.compare(lambda arm, seed, folder: {"accuracy": SCORES[arm.name] - seed}, seeds=2, **again)


def test_a_run_that_raises_is_named_and_does_not_lose_the_others(tmp_path):
    asked = []

    def sometimes(arm, seed, folder):
        asked.append((arm.name, seed))
        if (arm.name, seed) == ("bn@final", 1):
            raise ZeroDivisionError("no luck")
        return made_up(arm, seed, folder)

    with pytest.raises(
        SepNormError, match=r"the run of bn@final, seed 1 raised ZeroDivisionError: no luck .*error\.txt"
    ):
        sepnorm.compare(sometimes, ARMS, 3, tmp_path, metrics={"accuracy": True})
    assert len(asked) == 9
    assert "sometimes" in (tmp_path / "runs/bn@final-seed1/error.txt").read_text()
    sepnorm.compare(made_up, ARMS, 3, tmp_path, metrics={"accuracy": True}, title="sometimes")
    assert not (tmp_path / "runs/bn@final-seed1/error.txt").exists()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"loss": 1.0}, "the run of ln, seed 0 gave no 'accuracy': it gave loss"),
        ({"accuracy": float("nan")}, "the run of ln, seed 0 gave 'accuracy' as nan"),
        ({"accuracy": 10**400}, "the run of ln, seed 0 gave 'accuracy' as a number that is too large for a float"),
        ({"accuracy": "high"}, "gave 'accuracy' as 'high', which is no number"),
        ({"accuracy": torch.zeros((), device="meta")}, r"gave 'accuracy' as tensor\(.*, which is no number"),
        ({"accuracy": torch.tensor(1 + 2j)}, r"gave 'accuracy' as tensor\(.*, which is no number"),
        ({"accuracy": torch.rand(200, 8)}, r"gave 'accuracy' as tensor\(.*…, which is no number"),
        (0.9, "the run of ln, seed 0 returned float: return metrics"),
    ],
)
def test_metrics_that_are_none_are_one_sentence(tmp_path, returned, said):
    with pytest.raises(SepNormError, match=said):
        sepnorm.compare(lambda arm, seed, folder: returned, ["ln", "bn"], 1, tmp_path, metrics={"accuracy": True})


def test_a_declared_metric_that_no_run_gives_is_told_after_the_first(tmp_path):
    asked = []

    def train(arm, seed, folder):
        asked.append(arm.name)
        return made_up(arm, seed, folder)

    with pytest.raises(SepNormError, match="the run of ln, seed 0 gave no 'los': it gave accuracy, loss"):
        sepnorm.compare(train, ARMS, 3, tmp_path, metrics={"accuracy": True, "los": False})
    assert asked == ["ln"]
    sepnorm.compare(train, ARMS, 3, tmp_path, metrics={"accuracy": True}, quiet=True)
    with pytest.raises(SepNormError, match=r"finished run in .*ln-seed0 gave no 'los': it gave accuracy, loss"):
        sepnorm.compare(train, ARMS, 3, tmp_path, metrics={"accuracy": True, "los": False}, quiet=True)


@pytest.mark.parametrize(
    "metrics",
    [
        [Metric("acc*", "acc{}", True, primary=True)],
        [Metric("f1", "F1", True, primary=True), Metric("accuracy", "accuracy", True, primary=True)],
    ],
)
def test_one_primary_metric_that_runs_give_is_enough(tmp_path, metrics):
    assert sepnorm.compare(made_up, ARMS, 2, tmp_path, metrics=metrics, quiet=True).primary.key == "accuracy"


def test_title_and_workers_can_change(tmp_path):
    again = {"seeds": 2, "out": tmp_path, "metrics": {"accuracy": True}, "quiet": True}
    first = sepnorm.compare(made_up, ARMS, title="One", **again)
    assert "One" in (tmp_path / "report.html").read_text(encoding="utf-8")
    second = sepnorm.compare(made_up, ARMS, title="Another", workers=2, **again)
    assert second.arms[0].metrics == first.arms[0].metrics
    assert "Another" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_arms_that_give_the_metrics_of_the_baseline_are_warned_of(tmp_path):
    def forgets(arm, seed, folder):
        return {"accuracy": 0.5 + seed / 10, "eval_runtime": time.perf_counter()}

    again = {"metrics": {"accuracy": True}, "quiet": True}
    with pytest.warns(SepNormWarning, match=r"bn@final gave the metrics of ln in every seed: .* arm\.apply\(model\)"):
        sepnorm.compare(forgets, ["ln", "bn"], 2, tmp_path / "two", **again)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SepNormWarning)
        sepnorm.compare(forgets, ["ln", "bn"], 1, tmp_path / "one", **again)


def saving(arm, seed, folder):
    """Keeps files of the names that a run of ours has, and raises the first time."""
    model = bert()
    arm.apply(model, calibrate=[sentences(8)])
    model.save_pretrained(folder)
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "1").write_text("mine")
    for name in ("metrics.json", "losses.json", "error.txt"):
        (folder / name).write_text("mine")
    if not (folder / "begun").exists():
        (folder / "begun").touch()
        raise RuntimeError("out of luck")
    return {"accuracy": SCORES[arm.name] + 0.01 * seed}


def test_the_folder_of_a_run_is_the_users_alone(tmp_path):
    again = {"out": tmp_path, "metrics": {"accuracy": True}, "quiet": True}
    with pytest.raises(SepNormError, match="out of luck"):
        sepnorm.compare(saving, ["ln", "bn"], 1, **again)
    sepnorm.compare(saving, ["ln", "bn"], 1, **again)
    files = tmp_path / "runs" / "ln-seed0" / "files"
    assert (files / "model.safetensors").is_file() and (files / "config.json").is_file()
    for name in ("checkpoints/1", "metrics.json", "losses.json", "error.txt"):
        assert (files / name).read_text() == "mine"
    with pytest.raises(SepNormError, match="out of luck"):
        sepnorm.compare(saving, ["ln", "bn"], 2, **again)
    found = sepnorm.compare(saving, ["ln", "bn"], 2, **again)
    assert list(found.arms[1].metrics) == [0, 1]


def test_seeds_that_are_complete_are_written_when_a_run_fails(tmp_path):
    asked = []

    def sometimes(arm, seed, folder):
        asked.append(seed)
        if arm.name == "bn@final" and seed == 3:
            raise ZeroDivisionError("no luck")
        values = made_up(arm, seed, folder)
        return values | {"accuracy": 0.8 + (-1) ** seed * len(arm.name) / 100}

    again = {"out": tmp_path, "metrics": {"accuracy": True}, "quiet": True}
    with pytest.raises(SepNormError, match=r"no luck .* The seeds that are complete are in .*report\.html"):
        sepnorm.compare(sometimes, ARMS, "auto", **again)
    assert set(asked) == {0, 1, 2, 3}
    assert [list(arm["seeds"]) for arm in json.loads((tmp_path / "results.json").read_text())["arms"]] == [
        ["0", "1", "2"]
    ] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", SecondLookWarning)  # the same call goes on: it is no second look
        with pytest.raises(SepNormError, match="no luck"):
            sepnorm.compare(sometimes, ARMS, "auto", **again)


def test_seeds_that_are_added_after_a_report_are_warned_of_and_noted(tmp_path):
    def looked(seeds, **more):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = sepnorm.compare(made_up, ARMS, seeds, tmp_path, metrics={"accuracy": True}, quiet=True, **more)
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert ("verdicts come from more than one look" in page) == bool(found.looks)
        return found.looks, [str(each.message) for each in told if each.category is SecondLookWarning]

    assert looked(2) == looked(2) == ([], [])
    looks, told = looked(3)
    assert looks == [2] and "held a report on 2 seeds before" in told[0] and len(told) == 1
    assert looked(3) == ([2], [])  # the same call again
    assert "a report on 2 seeds before this one" in (tmp_path / "report.html").read_text(encoding="utf-8")
    looks, told = looked("auto", most=5)
    assert looks == [2, 3] and "on 3 seeds before" in told[0]
    assert looked("auto", most=5) == ([2, 3], [])
    looks, told = looked("auto", most=8)
    assert looks[:2] == [2, 3] and len(told) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": {}}, "metrics must name at least one metric"),
        ({"metrics": {"accuracy": "up"}}, "metrics must say whether higher is better"),
        ({"arms": ["ln"]}, "at least two arms"),
        ({"arms": "ln,bn"}, "at least two arms"),
        ({"arms": ["ln", "bx+ln"]}, "bx"),
        ({"arms": ["ln", "ln"]}, "arms must differ"),
        ({"seeds": "many"}, "seeds is a number or 'auto'"),
        ({"seeds": 0}, "seeds is a whole number, at least 1"),
        ({"margin": -1}, "margin is a finite number of at least 0, found -1"),
        ({"margin": float("nan")}, "margin is a finite number of at least 0, found nan"),
        ({"margin": "0.01"}, "margin is a finite number of at least 0, found '0.01'"),
        (
            {"workers": 2, "run": lambda arm, seed, folder: {}},
            "lambda>, which other processes cannot import: with workers",
        ),
        ({"arms": (arm for arm in ["ln"])}, r"at least two arms, as .*, found \['ln'\]"),
        ({"arms": 3}, "at least two arms"),
        ({"metrics": [Metric("a", "a", None)], "seeds": "auto"}, "seeds='auto' needs a primary metric with"),
        ({"run": 3}, "run must be a function of an arm"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(tmp_path, changes, said):
    given = {"run": made_up, "arms": ARMS, "seeds": 2, "out": tmp_path, "metrics": {"accuracy": True}} | changes
    with pytest.raises(SepNormError, match=said):
        sepnorm.compare(**given)
    assert not (tmp_path / "runs").exists()


def test_many_processes_that_would_all_compare_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SepNormError, match="a comparison was started in 2 processes"):
        sepnorm.compare(made_up, ARMS, 2, tmp_path / "out", metrics={"accuracy": True})
    assert not (tmp_path / "out").exists()


SCRIPT = """
import sys, time
from pathlib import Path
import sepnorm

def slow(arm, seed, folder):
    print(arm.name, seed, flush=True)
    (folder / "config.json").write_text("mine")  # a file of a run has this name
    (folder / "checkpoints").mkdir(exist_ok=True)
    time.sleep(0.5)
    return {"accuracy": 0.5 + seed / 10 + len(arm.name) / 100 + seed * len(arm.name) / 1e4}

if __name__ == "__main__":
    found = sepnorm.compare(slow, ["ln", "bn@final"], 4, "out", metrics={"accuracy": True})
    print("done", found.decisions()["bn@final"].verdict)
"""


@pytest.mark.parametrize("guarded", [False, None])
def test_parallel_runs_without_an_importable_script_say_so(tmp_path, guarded):
    """A script without a guard, and one from stdin."""
    script = SCRIPT.replace('if __name__ == "__main__":', "if True:").replace("True})", "True}, workers=2)")
    (tmp_path / "script.py").write_text(script)
    paths = os.pathsep.join([str(Path(sepnorm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command, given = ([sys.executable, "-"], script) if guarded is None else ([sys.executable, "script.py"], "")
    ended = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, input=given, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    said = ended.stderr.splitlines()[-1]
    wanted = (
        "slow of a notebook or a shell" if guarded is None else "ended with exit code 1; .* if __name__ == '__main__'"
    )
    assert ended.returncode == 1 and re.search(wanted, said), ended.stderr


@pytest.mark.slow
def test_a_script_that_is_killed_goes_on_with_what_is_missing(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(Path(sepnorm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command, environment = [sys.executable, "script.py"], os.environ | {"PYTHONPATH": paths}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("out/runs/*/metrics.json"))) < 3:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    before = first.communicate()[0].splitlines()
    second = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert second.returncode == 0, second.stderr
    after = second.stdout.splitlines()
    assert after[-1] == "done better"
    assert len(after) - 1 <= 8 - 3 and set(before) | set(after[:-1]) == {
        f"{arm} {seed}" for arm in ("ln", "bn@final") for seed in range(4)
    }
