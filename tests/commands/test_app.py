"""The command line as users see it: what it prints, where results are, and one sentence for what goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from models import text_model

from sepnorm.report.terminal import fitted


@pytest.fixture
def clouds(tmp_path):
    rng = np.random.default_rng(0)
    made = {
        "isotropic": rng.standard_normal((600, 128)),
        "rank5": rng.standard_normal((600, 5)) @ rng.standard_normal((5, 128)),
        "narrow": 1 + 0.05 * rng.standard_normal((600, 128)),
        "constant": np.ones((600, 128)),
    }
    for name, x in made.items():
        np.save(tmp_path / f"{name}.npy", x.astype(np.float32))
    return made


def test_every_file_has_its_verdict(run, clouds):
    for name, level, illnesses in (
        ("isotropic", "healthy", []),
        ("narrow", "partly collapsed", ["off-centre"]),
        ("rank5", "partly collapsed", ["few dimensions"]),
        ("constant", "collapsed", ["off-centre", "few dimensions", "duplicates"]),
    ):
        code, out, _ = run("diagnose", f"{name}.npy")
        assert code == 0
        assert f"Verdict: {level}{': ' * bool(illnesses)}{', '.join(illnesses)}\n" in out
        assert f"Report: sepnorm-diagnosis/{name}.npy/report.html" in out
        with open(f"sepnorm-diagnosis/{name}.npy/results.json") as file:
            verdict = json.load(file)["verdict"]
        assert verdict["level"] == level and verdict["illnesses"] == illnesses
        assert os.path.getsize(f"sepnorm-diagnosis/{name}.npy/report.html") > 1_000_000


def test_json_is_all_that_is_printed(run, clouds):
    code, out, err = run("diagnose", "rank5.npy", "--json", "--out", "here", "--max-samples", "300")
    found = json.loads(out)
    assert code == 0 and "Report: here/report.html" in err
    assert found["embeddings"]["count"] == 300
    assert found["embeddings"]["effective_rank"] == pytest.approx(5, abs=0.2)
    assert found["embeddings"]["dominance_one"] is None  # not a number there


def test_control_c_says_that_it_ended(run, clouds, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("sepnorm.domains.diagnosis.diagnose", interrupted)
    assert run("diagnose", "rank5.npy") == (130, "", "Interrupted.\n")


def test_two_targets_side_by_side(run, clouds):
    code, out, _ = run("diagnose", "isotropic.npy", "--compare", "constant.npy")
    assert code == 0
    assert "isotropic.npy: healthy" in out and "constant.npy: collapsed" in out
    with open("sepnorm-diagnosis/isotropic.npy-constant.npy/results.json") as file:
        assert len(json.load(file)["targets"]) == 2


def test_a_model_layer_by_layer_then_converted_and_compared(run, tmp_path):
    text_model(tmp_path / "model")
    lines = [f"the cat number {i % 7} sat on mat {i % 5} and dog {i % 3}" for i in range(60)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    code, out, err = run("diagnose", "model", "--data", "lines.txt")
    assert code == 0, err
    assert "5 norm sites" in out and "*embeddings.LayerNorm" in out and "* degenerate" in out
    assert "Verdict: " in out and "60 x 16" in out
    code, out, err = run("convert", "model", "--data", "lines.txt", "--sites", "final", "--out", "new")
    assert code == 0, err
    assert "1 of 5 norms changed" in out and "Saved: new" in out
    code, out, err = run("diagnose", "new", "--data", "lines.txt", "--compare", "model", "--json")
    assert code == 0, err
    new, old = json.loads(out)["targets"]
    assert [site["norm"] for site in new["layers"]] == ["ln"] * 4 + ["bn+ln"]
    assert new["layers"][-1]["discrepancy"] < 0.1
    assert old["layers"][0]["degenerate"]
    code, _, err = run("convert", "model", "--data", "lines.txt", "--out", "new")
    assert code == 1 and err == "Error: new already exists and is not empty: choose a new folder with --out.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["diagnose", "nowhere.npy"], "there is no file nowhere.npy."),
        (["diagnose", "./nowhere/model"], "there is no file or folder ./nowhere/model."),
        (["diagnose", "isotropic.npy", "--data", "x.txt"], "leave out --data, which is for models"),
        (["diagnose", "isotropic.npy", "--max-samples", "1"], "max_samples must be at least 2"),
        (["diagnose", "isotropic.npy", "--column", "x"], "holds one array"),
        (["diagnose", "some/model"], "there is no file or folder some/model. A model on the hub needs --data"),
        (["diagnose", "some/model", "--data", "x.txt"], "It was looked up on the Hugging Face Hub"),
        (["diagnose", "cut.npy"], "cut.npy cannot be read as a .npy file of embeddings"),
        (["diagnose", "nan.npy"], "every one of the 5 embeddings holds NaN"),
        (["diagnose", "one.npy"], "at least two embeddings"),
        (["diagnose", "isotropic.npy", "--out", "isotropic.npy/x"], "isotropic.npy"),
        (["convert", "some/model", "--data", "x", "--out", "o", "--norm", "bm+ln"], "Did you mean"),
    ],
)
def test_bad_input_is_one_sentence(run, clouds, tmp_path, words, said):
    whole = (tmp_path / "isotropic.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "nan.npy", np.full((5, 3), np.nan))
    np.save(tmp_path / "one.npy", np.ones((1, 3)))
    code, out, err = run(*words)
    assert code == 1
    assert out == ""
    assert said in err
    assert err.strip().splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in err


def test_an_unknown_option_or_command_is_refused_with_the_nearest(run):
    code, _, err = run("diagnos", "x.npy")
    assert code == 2 and "diagnose" in err
    code, _, err = run("diagnose", "x.npy", "--comumn", "a")
    assert code == 2 and "--column" in err


def test_help_answers_without_torch():
    code = "import sys; sys.argv = ['sepnorm', '--help']\nfrom sepnorm.commands.app import main\ntry:\n    main()\nfinally:\n"
    code += "    print('torch' in sys.modules, 'transformers' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "diagnose" in found.stdout and found.stdout.strip().endswith("False False")


def test_control_c_during_an_import_ends_at_once_though_the_import_drops_exceptions(tmp_path):
    (tmp_path / "dropping.py").write_text(  # as initialisers in C do
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept BaseException:\n    pass"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "from sepnorm.__main__ import main\nfrom sepnorm.commands import app\n"
    code += "def run():\n    import dropping\n    print('went on')\n"
    code += "app.main = run; main()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "Interrupted.\n")


def test_without_its_extra_the_command_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None\nfrom sepnorm.__main__ import main\nmain()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr == "Error: the sepnorm command needs typer: pip install 'sepnorm[report]'.\n"


def test_a_table_of_sites_fits_the_terminal():
    header = "site,norm,|cls|,|tok|,var cls,var tok,cos cls,cos tok,cls~tok,rank cls,rank tok,train/eval,".split(",")
    row = ["0.model.encoder.layer.0.attention.output.LayerNorm", "ln", *["0.0926"] * 9, "", ""]
    first = ["0.model.embeddings.LayerNorm", "ln", *["0.1"] * 9, "", "degenerate"]
    for width in (80, 120, 200):
        lines = fitted([header, first, row], width)[:-1]
        assert max(map(len, lines)) <= width
        assert "cos cls" in lines[0] and "rank cls" in lines[0] and "train/eval" not in lines[0]
        assert lines[1].startswith("*embeddings.LayerNorm")
    assert "encoder.layer.0.attention.output.LayerNorm" in fitted([header, first, row], 200)[2]


def test_values_that_single_precision_cannot_hold_are_diagnosed_and_drawn(run):
    rows = np.random.default_rng(0).standard_normal((40, 6))
    rows[3, 2], rows[5, 1] = 1e300, -1e305
    np.save("large.npy", rows)
    code, _, err = run("diagnose", "large.npy", "--quiet")
    assert code == 0, err


def test_a_name_with_lines_is_refused_in_one_line(run):
    code, _, err = run("diagnose", "\na\nb", "--data", "c.txt")
    assert code == 1 and err.startswith("Error: ") and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("said", ["could not create a primitive", "[...] can't allocate memory: you tried", "other"])
def test_memory_that_ran_out_is_told_and_other_errors_are_not_hidden(run, monkeypatch, said):
    def fail(*_, **__):
        raise RuntimeError(said)

    np.save("e.npy", np.eye(3))
    monkeypatch.setattr("sepnorm.domains.diagnosis.diagnose", fail)
    if said == "other":
        with pytest.raises(RuntimeError, match="other"):
            run("diagnose", "e.npy")
    else:
        code, _, err = run("diagnose", "e.npy")
        assert code == 1 and err.startswith("Error: memory ran out (")
