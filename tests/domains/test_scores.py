"""``compare_scores`` and ``sepnorm compare scores``: verdicts on a table of scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from sepnorm import Metric, SepNormError
from sepnorm.domains.scores import compare_scores

SCORES = {"ln": 0.80, "bn@final": 0.84, "bn+ln@final": 0.90}
ARMS = list(SCORES)


def test_the_baseline_is_named_by_the_command(run, tmp_path):
    table = long_table(tmp_path / "long.csv")
    code, out, _ = run("compare", "scores", table, "--higher", "accuracy", "--baseline", "bn@final", "--out", "out")
    assert code == 0 and "accuracy against bn@final: ln is worse" in out
    code, _, err = run("compare", "images", "--baseline", "bn@final")
    assert code != 0 and "--lower and --baseline are only for compare scores" in err
    code, _, err = run("compare", "text", "my texts.txt", "--norms", "ln,bn+ln")
    assert code != 0 and "compare text takes no TABLE: write --data 'my texts.txt'." in err


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


def test_rows_that_are_added_after_a_report_are_noted_by_the_command(run, tmp_path):
    header, *rows = long_table(tmp_path / "long.csv").read_text().splitlines()
    words = ("compare", "scores", "some.csv", "--higher", "accuracy", "--out", "out")
    (tmp_path / "some.csv").write_text("\n".join([header, *(row for row in rows if row.split(",")[1] in "01")]))
    code, _, err = run(*words)
    assert code == 0 and "Note:" not in err
    (tmp_path / "some.csv").write_text("\n".join([header, *rows]))
    code, _, err = run(*words)
    assert code == 0 and err.count("Note: out held a report on 2 seeds before, so verdicts on more") == 1


def test_an_arm_that_shares_no_seed_with_the_baseline_is_said_to(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("arm,seed,accuracy\nln,0,1\nbn,0,2\nrms,7,1\n")
    page = compare_scores(table, tmp_path / "out", {"accuracy": True})[1]
    table.write_text("arm,seed,accuracy\n" + "".join(f"ln,{i},{i / 100}\nbn,{i + 2},{i}\n" for i in range(9)))
    assert "better after" not in compare_scores(table, tmp_path / "other", {"accuracy": True})[1].read_text("utf-8")
    text = page.read_text(encoding="utf-8")
    assert text.count("no seed in common with ln") == 2 and "no finite value" not in text  # in words and in the plot


@pytest.mark.parametrize("metrics", [[Metric("acc*", "acc{}", True, primary=True)], {"accuracy": True}])
def test_metrics_are_declared_by_pattern_or_by_name(tmp_path, metrics):
    found, _ = compare_scores(long_table(tmp_path / "long.csv"), tmp_path / "scores", metrics)
    assert found.primary.key == "accuracy"


def test_a_column_without_a_name_is_no_metric(tmp_path):
    """pandas writes its index so."""
    table = tmp_path / "t.csv"
    rows = [f"{i},{arm},{seed},{len(arm) + seed / 10}" for i, (arm, seed) in enumerate(PAIRS)]
    table.write_text("\n".join([",arm,seed,accuracy", *rows]))
    found, page = compare_scores(table, tmp_path / "out", {"accuracy": True})
    assert found.keys == ["accuracy"] and found.beside is None
    assert "Best means" not in page.read_text(encoding="utf-8")


def test_spaces_around_names_of_columns_do_not_matter(tmp_path):
    table = tmp_path / "t.csv"
    rows = [f"{arm}, {seed}, {len(arm) + seed / 10}" for arm, seed in PAIRS]
    table.write_text("\n".join(["arm, seed, accuracy", *rows]))
    assert compare_scores(table, tmp_path / "out", {"accuracy": True})[0].keys == ["accuracy"]
    table.write_text("arm,seed,accuracy, accuracy\nln,0,1,2\n")
    with pytest.raises(SepNormError, match="has two columns 'accuracy'"):
        compare_scores(table, tmp_path / "out", {"accuracy": True})


PAIRS = [(arm, seed) for arm in ("ln", "bn2") for seed in range(4)]


def test_seeds_that_an_arm_lacks_are_named_with_what_that_means(tmp_path):
    table = tmp_path / "t.csv"
    rows = [f"{arm},{seed},{len(arm) + seed / 10}" for arm, seed in PAIRS if (arm, seed) != ("bn2", 2)]
    table.write_text("\n".join(["arm,seed,accuracy", *rows]))
    found, _ = compare_scores(table, tmp_path / "out", {"accuracy": True})
    assert found.lacking(found.primary) == [("bn2", 2)]
    said = (tmp_path / "out/results.md").read_text(encoding="utf-8")
    assert said.startswith("Without accuracy: bn2, seed 2. Such seeds are left out") and "if failing depends" in said
    table.write_text(table.read_text() + "\nbn2,2,3.3\n")
    assert "Without accuracy" not in compare_scores(table, tmp_path / "new", {"accuracy": True})[1].read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("metrics", [{"accuracy": True}, {"accuracy": True, "loss": False}])
@pytest.mark.parametrize("form", ["wide", "long"])
def test_what_does_not_decide_may_be_unknown(tmp_path, metrics, form):
    """As in a table of results that sepnorm.compare writes."""
    table = tmp_path / "t.csv"
    rows = []
    for arm, seed in PAIRS:
        loss = "nan" if (arm, seed) == ("bn2", 2) else 1 - seed / 10
        if form == "wide":
            rows.append(f"{arm},{seed},{len(arm) + seed / 10},{loss}")
        else:
            rows += [f"{arm},{seed},accuracy,{len(arm) + seed / 10}", f"{arm},{seed},loss,{loss}"]
    table.write_text("\n".join(["arm,seed,accuracy,loss" if form == "wide" else "arm,seed,metric,value", *rows]))
    found, _ = compare_scores(table, tmp_path / "out", metrics)
    assert found.decisions()["bn2"].count == 4 and found.arms[1].interval("loss").count == 3
    assert found.difference(found.arms[1], found.declared.find("loss")).count == 3
    said = (tmp_path / "out/results.md").read_text(encoding="utf-8")
    assert ("Not finite or missing, and left out: loss of bn2, seed 2." in said) == ("loss" in metrics)
    assert "nan" not in said
    again, _ = compare_scores(tmp_path / "out/results.csv", tmp_path / "again", metrics)
    assert again.as_dict()["decisions"] == found.as_dict()["decisions"]


def test_seeds_that_were_added_one_by_one_are_judged_so(run, tmp_path):
    table = tmp_path / "t.csv"
    rows = [f"{arm},{seed},{len(arm) / 100 + seed / 10 + seed**2 * len(arm) / 700}" for arm, seed in PAIRS]
    table.write_text("\n".join(["arm,seed,accuracy", *rows]))
    fixed, _ = compare_scores(table, tmp_path / "fixed", {"accuracy": True}, margin=0)
    added, _ = compare_scores(table, tmp_path / "added", {"accuracy": True}, margin=0, most=12)
    assert added.most == 12 and added.decisions()["bn2"].high > fixed.decisions()["bn2"].high
    with pytest.raises(SepNormError, match="has 4 seeds, but most is 3"):
        compare_scores(table, tmp_path / "few", {"accuracy": True}, most=3)
    code, out, err = run(
        "compare", "scores", table, "--higher", "accuracy", "--margin", "0", "--most", "12", "--out", "out"
    )
    assert code == 0, err
    assert "looking after every seed" in Path("out/results.md").read_text(encoding="utf-8")
    assert str(added.decisions()["bn2"]) in out
    code, _, err = run("compare", "scores", table, "--higher", "accuracy", "--most", "2")
    assert code == 1 and "--most is a number from 3 to 100, found 2" in err
