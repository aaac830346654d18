"""The commands on molecules, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.molecules.batches import collate
from sepnorm.domains.molecules.features import featurise

RINGS = [f"{a}1{'C' * n}{a}1" for n in range(2, 12) for a in "CN"]  # twenty scaffolds
SMILES = ["C" * (i % 5) + ring + "O" * (i % 3) for i in range(5) for ring in RINGS]
TINY = "width=16 depth=2 heads=2 feed_forward=16 batch_size=16 max_steps=4 threads=0 checkpoints=0".split()
SETTINGS = [word for setting in [*TINY, "task=pretrain"] for word in ("--set", setting)]


@pytest.fixture
def sets(tmp_path) -> str:
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "README.md").write_text("not a table")
    lengths = [f"{text},{len(text) + 0.5}" for text in SMILES]
    (folder / "lengths.csv").write_text("\n".join(["smiles,y", *lengths]))
    oxygen = [f"{text},{int(len(text) % 2)}" for text in SMILES]
    (folder / "odd.csv").write_text("\n".join(["smiles,p_np", *oxygen]))
    (tmp_path / "plain.csv").write_text("\n".join(["smiles,comment", *(f"{text},x" for text in SMILES), "C1CC,open"]))
    return str(folder)


def pretrained(run, sets: str, norm: str = "bn+ln@final") -> tuple[str, str]:
    code, out, err = run(
        "pretrain", "molecules", "--data", "plain.csv", "--norm", norm, *SETTINGS, "--set", f"test={sets}", "--out", "o"
    )
    assert code == 0, err
    return "o", out


@pytest.mark.parametrize("norm", ["ln", "bn+ln@final"])
def test_a_model_without_labels_is_probed_on_other_tables_and_again_by_evaluate(run, sets, norm):
    folder, out = pretrained(run, sets, norm)
    metrics = json.loads(Path(folder, "metrics.json").read_text())
    assert {"probe_lengths_rmse", "probe_lengths_mae", "probe_odd_roc_auc"} < metrics.keys()
    assert not any(key in metrics for key in ("probe_mae", "probe_roc_auc"))
    assert "sepnorm embed o/model" in out
    code, _, err = run("evaluate", folder, "--data", sets, "--out", "again")
    assert code == 0, err
    found = json.loads(Path("again/results.json").read_text())["metrics"]
    assert {key.partition("probe_")[0] for key in found} == {"", "mean_", "moments_"}
    assert found == {key: pytest.approx(value, abs=1e-5) for key, value in metrics.items() if "probe_" in key}


@pytest.mark.slow
def test_a_comparison_shows_each_table_and_draws_molecules_on_hover(run, sets):
    words = ["--norms", "ln,bn+ln@final", "--seeds", "1", *SETTINGS, "--set", f"test={sets}", "--out", "c"]
    code, out, err = run("compare", "molecules", "--data", "plain.csv", *words)
    assert code == 0, err
    assert err.count("Note: 1 of 101 rows of plain.csv are not valid molecules, such as row 101 'C1CC'") == 1
    written = Path("c/results.md").read_text()
    assert "[CLS] probe of lengths, RMSE" in out and "[CLS] probe of odd, ROC AUC" in written
    page = Path("c/report.html").read_text()
    start = page.index('id="pictures">') + len('id="pictures">')
    pictures = json.loads(page[start : page.index("</script>", start)])
    assert pictures and all(picture.startswith("<svg") and picture.rstrip().endswith("</svg>") for picture in pictures)
    assert '"customdata":[' in page


def test_vectors_of_smiles_are_those_of_the_model_in_the_order_of_the_rows(run, sets):
    folder, _ = pretrained(run, sets)
    some = ["CCO", "c1ccccc1CCN", "C", "CC(=O)O"]
    Path("some.csv").write_text(
        "\n".join(["id,smiles", *(f"{i},{s}" for i, s in enumerate([*some[:2], "C(", *some[2:]]))])
    )
    code, out, err = run("embed", folder, "some.csv", "--out", "v.parquet")
    assert code == 0, err
    assert "(4 x 16)" in out and "1 in all" in err
    table = pyarrow.parquet.read_table("v.parquet")
    assert table["name"].to_pylist() == some
    model = open_encoder(f"{folder}/model").model
    with torch.no_grad():
        wanted = [model(**collate(featurise([s], "ogb")[0])).last_hidden_state[0, 0].numpy() for s in some]
    # [VNode] of a model that has hardly learnt is nearly the same for all, and BatchNorm enlarges what rounding leaves
    assert np.allclose(np.array(table["embedding"].to_pylist()), np.array(wanted), atol=1e-4)
    Path("some.smi").write_text("\n".join(f"{s} name{i}" for i, s in enumerate(some)))
    assert run("embed", folder, "some.smi", "--out", "v.npy")[0] == 0
    assert np.allclose(np.load("v.npy"), np.array(wanted), atol=1e-4)
    code, _, err = run("evaluate", folder, "--data", sets, "--pooling", "moments", "--out", "m")
    assert code == 0, err
    found = json.loads(Path("m/results.json").read_text())["metrics"]
    assert found and all(key.startswith("moments_probe_") for key in found)


def test_evaluate_takes_molecules_that_are_larger_than_those_of_the_demo(run, sets):
    folder, _ = pretrained(run, sets)
    rows = [f"{'C' * (30 + i % 30)}{ring},{i}" for i, ring in enumerate(RINGS * 8)]
    Path("large.csv").write_text("\n".join(["smiles,value", *rows]))
    code, _, err = run("evaluate", folder, "--data", "large.csv", "--pooling", "cls,moments", "--out", "m")
    assert code == 0, err


def test_single_atoms_have_the_moments_of_one_token(run, sets):
    folder, _ = pretrained(run, sets)
    Path("methane.smi").write_text("C one\nO two\n")
    for pooling in ("mean", "cls+mean", "moments"):
        code, _, err = run("embed", folder, "methane.smi", "--out", f"{pooling}.npy", "--pooling", pooling)
        assert code == 0, err
    means, moments = np.load("mean.npy"), np.load("moments.npy")
    one = np.concatenate([np.ones((2, 1)), means], axis=1)
    norms = np.linalg.norm(one, axis=1)
    assert np.allclose(np.linalg.norm(moments, axis=1), norms, rtol=1e-2)  # the root of x x' is x x' / |x|
    assert np.allclose(moments[:, 0], 1 / norms, atol=1e-2)


def test_a_model_of_molecules_is_diagnosed_and_converted(run, sets):
    folder, _ = pretrained(run, sets, "ln")
    code, _, err = run("diagnose", f"{folder}/model", "--data", "plain.csv", "--out", "d")
    assert code == 0, err
    assert "final_norm" in Path("d/report.html").read_text()
    code, _, err = run(
        "convert", f"{folder}/model", "--norm", "bn+ln", "--sites", "final", "--data", "plain.csv", "--out", "new"
    )
    assert code == 0, err
    code, _, err = run("embed", "new", "plain.csv", "--out", "v.npy")
    assert code == 0 and np.load("v.npy").shape == (len(SMILES), 16), err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "o", "--out", "m.onnx"], "which are not exported"),
        (["evaluate", "o"], "add --data with a table"),
        (["evaluate", "o", "--data", "sets", "--on", "linear"], "leave --on out"),
        (["evaluate", "o", "--data", "nowhere"], "nowhere is no table of molecules and no folder"),
        (
            ["embed", "o", "bad.csv", "--out", "v.npy"],
            "holds SMILES is not clear (it has a, b): name it by --column NAME",
        ),
        (["embed", "o", "broken.csv", "--out", "v.npy"], "gives nothing to embed"),
    ],
)
def test_what_cannot_be_done_is_said(run, sets, words, said):
    pretrained(run, sets)
    Path("bad.csv").write_text("a,b\n1,2\n")
    Path("broken.csv").write_text("smiles\nC(\n")
    code, _, err = run(*words)
    assert code == 1 and said in err.replace("\n", " "), err


def test_a_column_of_the_data_is_not_looked_for_in_the_tables_to_probe_on(run, sets):
    Path("other.csv").write_text("\n".join(["structure", *SMILES]))
    words = ["--data", "other.csv", *SETTINGS, "--set", "column=structure", "--set", f"test={sets}", "--out", "o"]
    code, _, err = run("pretrain", "molecules", *words)
    assert code == 0, err
    assert "probe_odd_roc_auc" in json.loads(Path("o/metrics.json").read_text())


def test_tables_to_probe_on_need_pretraining(run, sets):
    code, _, err = run("pretrain", "molecules", "--set", f"test={sets}")
    assert code == 1 and "add --set task=pretrain" in err


@pytest.mark.slow
def test_a_model_with_shared_norms_opens_in_a_process_that_has_not_trained_one(tmp_path):
    from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel

    GraphormerModel(GraphormerConfig("ogb", 16, 2, 2, 16)).save_pretrained(tmp_path / "model")
    code = "import sys\nfrom sepnorm.domains.encoders import open_encoder\nprint(open_encoder(sys.argv[1]).kind)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], capture_output=True, text=True)
    assert done.stdout == "molecules\n", done.stderr
