"""``sepnorm.compare`` with training functions of a user's own, and ``compare_scores`` with a table of scores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from models import bert, sentences
from torch import nn

import sepnorm
from sepnorm import SepNormError
from sepnorm.domains.scores import compare_scores

SCORES = {"ln": 0.80, "bn@final": 0.84, "bn+ln@final": 0.90}
ARMS = list(SCORES)


def made_up(arm, seed, folder):
    (folder / "mine.txt").write_text(arm.name)
    return {"accuracy": SCORES[arm.name] + 0.01 * seed + 0.001 * len(arm.name) * torch.rand(()).item(), "loss": 1.0}


def test_arms_and_seeds_are_run_judged_and_drawn(tmp_path):
    found = sepnorm.compare(made_up, ARMS, 4, tmp_path, metrics={"accuracy": True, "loss": False})
    assert {name: each.verdict for name, each in found.decisions().items()} == {
        "bn@final": "better",
        "bn+ln@final": "better",
    }
    plain = json.loads((tmp_path / "results.json").read_text())
    assert plain["primary"] == "accuracy" and plain["decisions"]["bn@final"]["seeds"] == 4
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Better than ln by accuracy: bn+ln@final, bn@final" in page and "Differences by seed" in page
    assert (tmp_path / "runs/bn@final-seed3/mine.txt").read_text() == "bn@final"


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
        ({"accuracy": "high"}, "gave 'accuracy' as 'high', which is no number"),
        (0.9, "the run of ln, seed 0 returned float: return metrics"),
    ],
)
def test_metrics_that_are_none_are_one_sentence(tmp_path, returned, said):
    with pytest.raises(SepNormError, match=said):
        sepnorm.compare(lambda arm, seed, folder: returned, ["ln", "bn"], 1, tmp_path, metrics={"accuracy": True})


def test_metrics_that_differ_between_runs_are_one_sentence(tmp_path):
    def differs(arm, seed, folder):
        return {"accuracy": 0.5 + seed} | ({"extra": 1.0} if arm.norm == "bn" else {})

    with pytest.raises(
        SepNormError, match="runs give different metrics: extra is not in both ln, seed 0, and bn@final, seed 0"
    ):
        sepnorm.compare(differs, ["ln", "bn"], 2, tmp_path, metrics={"accuracy": True})


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
    time.sleep(0.5)
    return {"accuracy": 0.5 + seed / 10 + len(arm.name) / 100 + seed * len(arm.name) / 1e4}

if __name__ == "__main__":
    found = sepnorm.compare(slow, ["ln", "bn@final"], 4, "out", metrics={"accuracy": True})
    print("done", found.decisions()["bn@final"].verdict)
"""


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


# ---- scores that exist --------------------------------------------------------------------------------------------------


def long_table(path: Path) -> Path:
    rows = [
        f"{arm},{seed},accuracy,{SCORES[arm] + seed / 100 + seed * len(arm) / 1e5}" for arm in ARMS for seed in range(4)
    ]
    path.write_text("\n".join(["arm,seed,metric,value", *rows, "ln,0,note,3"]))
    return path


def test_a_table_of_scores_is_judged_in_both_forms(tmp_path):
    wide = tmp_path / "wide.csv"
    rows = [
        f"{arm},{seed},{SCORES[arm] + seed / 100 + seed * len(arm) / 1e5},by hand" for arm in ARMS for seed in range(4)
    ]
    wide.write_text("\n".join(["arm,seed,accuracy,remark", *rows]))
    for number, table in enumerate([long_table(tmp_path / "long.csv"), wide]):
        found, page = compare_scores(table, tmp_path / str(number), {"accuracy": True})
        assert [each.verdict for each in found.decisions().values()] == ["better", "better"]
        assert "Better than ln by accuracy" in page.read_text(encoding="utf-8")
    found, _ = compare_scores(wide, tmp_path / "2", {"accuracy": True}, baseline="bn@final")
    assert found.decisions()["ln"].verdict == "worse"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arm,accuracy\nln,1", "lacks the column seed"),
        ("arm,seed\nln,1", "lacks the column of a metric"),
        ("arm,seed,accuracy\nln,x,1", "row 1 of .* has the seed 'x', which is no whole number"),
        ("arm,seed,accuracy\nln,0,1\nln,0,2\nbn,0,1", "row 2 of .* has accuracy of arm 'ln', seed 0, a second time"),
        ("arm,seed,accuracy\nln,0,1", "has only one arm, 'ln'"),
        ("arm,seed,accuracy\nln,0,1\nbn,1,2", "has no seed that ln and another arm share"),
        ("arm,seed,accuracy\nln,0,nan\nbn,0,2", "row 1 of .* has nan for accuracy"),
        ("arm,seed,accurcy\nln,0,1\nbn,0,2", "has no metric 'accuracy': it has accurcy. Did you mean 'accurcy'"),
        ("arm,seed,metric,value\nln,0,accuracy,high", "has 'high' for accuracy, which is no number"),
        ("arm,seed,accuracy", "holds no rows"),
        ('arm,seed,accuracy\nln,0,"0,8"\nbn,0,1', "row 1 of .* has '0,8' for accuracy, which is no number"),
        ("arm,seed,accuracy,accuracy\nln,0,1,2\nbn,0,1,2", "has two columns 'accuracy'"),
        ("arm;seed;accuracy\nln;0;1", "has a single column, 'arm;seed;accuracy': separate cells by commas"),
        ("arm,seed,accuracy\nln,0,1\n,0,2", "row 2 of .* names no arm"),
    ],
)
def test_tables_that_say_nothing_are_one_sentence(tmp_path, text, said):
    table = tmp_path / "t.csv"
    table.write_text(text)
    with pytest.raises(SepNormError, match=said):
        compare_scores(table, tmp_path / "out", {"accuracy": True})
    with pytest.raises(SepNormError, match="there is no file"):
        compare_scores(tmp_path / "none.csv", tmp_path / "out", {"accuracy": True})


def test_every_metric_that_is_named_must_be_there(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("arm,seed,accuracy,loss\nln,0,1,0.5\nbn,0,2,failed\n")
    with pytest.raises(SepNormError, match=r"has no metric 'los'.* Did you mean 'loss'"):
        compare_scores(table, tmp_path / "out", {"accuracy": True, "los": False})
    with pytest.raises(SepNormError, match=r"row 2 of .* has 'failed' for loss"):
        compare_scores(table, tmp_path / "out", {"accuracy": True, "loss": False})
    assert compare_scores(table, tmp_path / "out", {"accuracy": True})[0].keys == ["accuracy", "loss"]


def test_an_arm_that_shares_no_seed_with_the_baseline_is_said_to(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("arm,seed,accuracy\nln,0,1\nbn,0,2\nrms,7,1\n")
    page = compare_scores(table, tmp_path / "out", {"accuracy": True})[1]
    assert "rms gave no finite values in a seed of ln" in page.read_text(encoding="utf-8")
