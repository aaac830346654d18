from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import text_model

import sepnorm
from sepnorm import SepNormError, heal
from sepnorm.domains.healing import load_map
from sepnorm.domains.healing.choice import best_of, by_hits, by_ranks
from sepnorm.domains.healing.thresholds import thresholds

WORDS = "the cat dog sat on mat and number a b c d e 0 1 2 3 4 5 6 7 8 9".split()


def lines(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, 8)) for _ in range(count)]


def drowned(count: int = 900, dim: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes that small dimensions tell apart, beside loud ones that say nothing."""
    labels = torch.randint(4, (count,))
    x = torch.randn(count, dim) + 3 * torch.randn(4, dim)[labels]
    x[:, :3] = 40 * torch.randn(count, 3)
    return x, labels


def test_what_labels_say_is_better_is_taken():
    x, labels = drowned()
    found = heal(x, labels=labels)
    assert found.how == "labels" and found.changed
    nothing, taken = found.scored[0], next(each for each in found.scored if each.name == found.chosen)
    assert taken.better and taken.score > nothing.score + 0.2
    assert taken.score == max(each.score for each in found.scored)
    fresh, _ = drowned()
    assert torch.allclose(found.transform(fresh[0]), found.transform(fresh)[0], atol=1e-5)


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_missing_labels_are_no_class(missing):
    x, labels = drowned(600)
    some, few = ([missing if i % every == 0 else int(label) for i, label in enumerate(labels)] for every in (20, 2))
    found = heal(x, labels=some)
    assert found.how == "labels" and set(found.source.labels) == {"0", "1", "2", "3"}
    assert found.count == 600 and found.notes[-1] == "30 of 600 vectors have no label and are left out of the choice."
    found = heal(x, labels=few)
    assert found.how == "verdict" and found.notes[-1] == "300 of 600 vectors have no label, so labels are not used."


def test_nothing_wins_where_nothing_is_better():
    labels = torch.randint(3, (600,))
    x = torch.randn(600, 10) + 2 * torch.randn(3, 10)[labels]
    found = heal(x, labels=labels)
    assert found.chosen == "nothing" and not found.changed
    assert torch.equal(found.transform(x), x)
    assert heal(torch.randn(600, 10), labels=labels).chosen == "nothing"


def test_bare_vectors_are_centred_or_standardised_by_the_verdict_and_never_whitened():
    x = torch.randn(500, 16)
    loud = x.clone()
    loud[:, 3] *= 80
    low = torch.randn(500, 3) @ torch.randn(3, 16) + 0.01 * x
    assert [heal(each).chosen for each in (x, x + 4, loud, low)] == ["nothing", "centre", "standardise", "nothing"]
    assert "give labels" in heal(low).notes[-1]
    assert heal(x + 4).verdicts[1].level == "healthy"
    assert heal(low, method="whiten 0.5").how == "asked"


def test_hits_and_ranks_have_the_intervals_of_their_differences():
    hits = torch.zeros(3, 400, dtype=torch.bool)
    hits[0, :200] = hits[1, :200] = hits[2, :200] = True
    hits[1, 200:240] = True  # 40 more
    hits[2, 200:206] = True  # 6 more
    found = by_hits(hits, ["nothing", "b", "c"])
    gap = np.r_[np.ones(40), np.zeros(360)]
    assert found[1].difference == pytest.approx(0.1) and found[1].half == pytest.approx(
        2.2414 * gap.std(ddof=1) / 20, rel=1e-3
    )
    assert best_of(found) == 1
    assert best_of(by_hits(hits[[0, 2]] & False, ["nothing", "c"])) == 0
    ratings = torch.arange(300).double()
    noisy = ratings + 200 * torch.randn(300, dtype=torch.float64)
    from scipy.stats import spearmanr

    scored = by_ranks(torch.stack([noisy, ratings, noisy.round(decimals=-2)]), ratings, ["nothing", "b", "c"])
    assert scored[0].score == pytest.approx(spearmanr(noisy, ratings).statistic)
    assert scored[2].score == pytest.approx(spearmanr(noisy.round(decimals=-2), ratings).statistic)  # ties
    assert scored[1].better and not scored[2].better and scored[0].half == 0


def test_thresholds_are_those_of_random_directions():
    from scipy.stats import beta

    found = thresholds(torch.randn(2000, 20))
    assert [t.rate for t in found] == [100, 1000, 10000]
    for threshold in found:
        expected = 2 * beta.ppf(1 - 1 / threshold.rate, 9.5, 9.5) - 1  # the cosine of random directions
        assert threshold.low <= threshold.value <= threshold.high
        assert threshold.value == pytest.approx(expected, abs=0.03)
    assert thresholds(torch.randn(30, 4)) == []  # too few pairs for any
    labels = torch.arange(1000) % 2
    x = torch.randn(1000, 8) * 0.1 + torch.eye(8)[labels]
    assert thresholds(x, labels)[0].value < 0.7 < thresholds(x)[0].value  # those of one label are related


@pytest.mark.parametrize(
    ("x", "more", "said"),
    [
        (torch.randn(1, 4), {}, "1 samples of 4 dimensions.*at least 8 are needed"),
        (torch.randn(519, 384), {}, "519 samples of 384 dimensions.*at least 768 are needed"),
        (torch.ones(100, 4), {}, "all the same"),
        (torch.full((100, 4), float("nan")), {}, "every one of the 100 embeddings holds NaN"),
        (torch.randn(100, 4), {"labels": ["a"] * 100}, "all labels are 'a'"),
        (torch.randn(100, 4), {"labels": range(100)}, "every label occurs once"),
        (torch.randn(100, 4), {"labels": ["a", "b"]}, "2 labels for 100 vectors"),
        (torch.randn(100, 4), {"data": "lines.txt"}, "data is for models"),
        (torch.randn(100, 4), {"method": "whitten 0.5"}, "unknown remedy 'whitten 0.5'.*Did you mean 'whiten 0.5'"),
        (torch.randn(100), {}, "samples, dimensions"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(x, more, said):
    with pytest.raises(SepNormError, match=said):
        heal(x, **more)


def test_rows_of_nan_are_left_out_and_counted():
    x = torch.randn(300, 4) + 5
    x[7] = float("nan")
    with pytest.warns(sepnorm.SepNormWarning, match="1 of 300"):
        found = heal(x)
    assert found.count == 299 and found.chosen == "centre" and "1 of 300" in found.notes[0]


def test_a_file_is_healed_in_parts_and_numpy_alone_reads_what_is_written(run, tmp_path):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3000, 8)) + 6).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    code, out, err = run("heal", "x.npy", "--out", "healed")
    assert code == 0 and "x.npy: centre, by the verdict" in out, err
    with np.load(tmp_path / "healed/healing.npz", allow_pickle=False) as kept:
        expected = x @ kept["weight"].T + kept["bias"]
    assert np.allclose(np.load(tmp_path / "healed/vectors.npy"), expected, atol=1e-5)
    assert np.abs(expected.mean(0)).max() < 1e-4
    results = json.loads((tmp_path / "healed/results.json").read_text())
    assert results["chosen"] == "centre" and results["verdict"]["before"]["illnesses"] == ["off-centre"]
    assert [t["rate"] for t in results["thresholds"]["after"]] == [100, 1000, 10000]
    found, pooling = load_map(tmp_path / "healed")
    assert pooling == "" and np.allclose(found.transform(x), expected, atol=1e-5)
    code, _, err = run("heal", "x.npy", "--out", "healed")
    assert code == 1 and "already exists and is not empty" in err
    code, _, err = run("heal", "x.npy", "--data", "x.txt", "--out", "other")
    assert code == 1 and "--data is for models" in err


ALONE = """
import sys
from types import SimpleNamespace
sys.modules["sepnorm"] = None  # so that importing it fails
import numpy, sentence_transformers
model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
texts = open(sys.argv[2]).read().splitlines()[:20]
numpy.save(sys.argv[3], model.encode(texts))
numpy.save(sys.argv[3] + "-one", model.encode(texts[3]))
"""


@pytest.mark.slow
def test_a_healed_encoder_opens_in_sentence_transformers_without_us(run, tmp_path):
    text_model(tmp_path / "model")
    (tmp_path / "lines.txt").write_text("\n".join(lines(80)))
    code, out, err = run("heal", "model", "--data", "lines.txt", "--method", "whiten 0.5", "--out", "healed")
    assert code == 0 and "cls: whiten 0.5" in out, err
    done = subprocess.run(
        [sys.executable, "-c", ALONE, "healed", "lines.txt", "e"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code, _, err = run("embed", "model", "lines.txt", "--out", "cls.npy")
    assert code == 0, err
    found, pooling = load_map(tmp_path / "healed")
    expected = found.transform(np.load(tmp_path / "cls.npy")[:20])
    assert pooling == "cls"
    assert np.allclose(np.load(tmp_path / "e.npy"), expected, atol=1e-6)
    assert np.allclose(np.load(tmp_path / "e-one.npy"), expected[3], atol=1e-6)
    code, _, err = run("embed", "healed", "lines.txt", "--out", "healed.npy", "--pooling", "healed")
    assert code == 0 and np.allclose(np.load(tmp_path / "healed.npy")[:20], expected, atol=1e-5), err
    code, _, err = run("embed", "model", "lines.txt", "--out", "x.npy", "--pooling", "healed")
    assert code == 1 and "model was not written by heal" in err


def test_a_sentence_transformer_in_memory_by_the_sum_of_cls_and_mean(tmp_path):
    from sentence_transformers import SentenceTransformer

    from sepnorm.domains.healing.models import healed_parts, save_parts
    from sepnorm.geometry.linear_maps import Moments, whitening

    text_model(tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = lines(100)
    found = heal(model, texts)
    assert (
        found.how == "views"
        and found.source.own == "mean"
        and len(found.scored) == 3 * len([each for each in found.scored if each.name.startswith("mean: ")])
    )
    rows = found.source.rows
    assert torch.equal(rows["sum"], rows["cls"] + rows["mean"])
    assert np.allclose(model.encode(texts), rows["mean"].numpy(), atol=1e-5)
    moments = Moments(16)
    moments.add(rows["sum"])
    made = whitening(moments, 1.0, 5)
    save_parts(healed_parts(list(model), made, "sum"), tmp_path / "healed")
    opened = SentenceTransformer(str(tmp_path / "healed"), device="cpu")
    assert np.allclose(opened.encode(texts), made(rows["sum"]).numpy(), atol=1e-4)


def test_rated_pairs_choose_and_bad_ones_are_refused(tmp_path):
    text_model(tmp_path / "model")
    target, texts = str(tmp_path / "model"), lines(100)
    rows = ["split\tsentence1\tsentence2\tscore"]
    rows += [f"{'dev' if i % 2 else 'test'}\t{texts[i]}\t{texts[i + 1]}\t{i % 6}" for i in range(90)]
    (tmp_path / "rated.tsv").write_text("\n".join(rows))
    found = heal(target, texts, test=str(tmp_path / "rated.tsv"))
    assert found.how == "pairs" and "45 pairs for development" in found.notes[0]
    assert not found.changed  # ratings by chance
    (tmp_path / "same.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t1\n")
    with pytest.raises(SepNormError, match=r"all pairs of .*same\.tsv have the same score"):
        heal(target, texts, test=str(tmp_path / "same.tsv"))
    (tmp_path / "other.tsv").write_text("text\tlabel\na\tb\n")
    with pytest.raises(SepNormError, match="has the columns text, label: rated pairs have sentence1, sentence2, score"):
        heal(target, texts, test=str(tmp_path / "other.tsv"))
    with pytest.raises(SepNormError, match="20 samples of 16 dimensions"):
        heal(target, texts[:20])
    with pytest.raises(SepNormError, match="gave 1 samples"):
        heal(target, texts[:1])
    with pytest.raises(SepNormError, match="a model is healed on data"):
        heal(target)


@pytest.mark.slow
def test_onnx_has_the_healed_embedding_too(run, tmp_path):
    import onnxruntime
    import transformers

    text_model(tmp_path / "model")
    (tmp_path / "lines.txt").write_text("\n".join(lines(80)))
    code, _, err = run("heal", "model", "--data", "lines.txt", "--method", "whiten 1", "--out", "healed")
    assert code == 0, err
    code, out, err = run("export", "healed", "--out", "healed.onnx")
    assert code == 0 and "Outputs: cls, last_hidden_state, healed." in out, err
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "healed")
    batch = tokenizer(lines(5), padding=True, return_tensors="np")
    session = onnxruntime.InferenceSession(str(tmp_path / "healed.onnx"))
    names = [each.name for each in session.get_inputs()]
    cls, _, embedding = session.run(None, {name: batch[name] for name in names})
    assert np.allclose(embedding, load_map(tmp_path / "healed")[0].transform(cls), atol=1e-4)


@pytest.mark.slow
def test_a_vision_transformer_is_healed_by_labels_and_written_as_onnx(run, tmp_path):
    import onnxruntime
    import transformers
    from PIL import Image

    config = transformers.ViTConfig(
        image_size=16, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(40):
            pixels = rng.integers(0, 200, (16, 16, 3)) + (40 if label == "a" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / label / f"{i}.png")
    code, out, err = run("heal", "vit", "--data", "images", "--out", "healed")
    assert code == 0 and "accuracy of nearest neighbours" in out, err
    session = onnxruntime.InferenceSession(str(tmp_path / "healed/model.onnx"))
    assert [each.name for each in session.get_outputs()] == ["cls", "last_hidden_state", "healed"]


def test_a_model_of_molecules_is_healed_on_graphs_and_on_loaders_of_pyg():
    from sepnorm.domains.molecules.features import featurise
    from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel
    from sepnorm.domains.molecules.tables import read_table

    graphs = featurise(read_table("nci").smiles[:600], "zinc")[0]
    items = [
        SimpleNamespace(
            x=graph.atoms, edge_index=np.concatenate([ends, ends[:, ::-1]]).T, edge_attr=np.concatenate([codes] * 2)
        )
        for graph in graphs
        for ends, codes in [(graph.bonds.astype(int), graph.bond_features)]
    ]
    loader = [
        SimpleNamespace(edge_index=None, to_data_list=lambda start=start: items[start : start + 50])
        for start in range(0, len(items), 50)
    ]
    torch.manual_seed(0)
    net = GraphormerModel(GraphormerConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    wanted = sepnorm.heal(net, graphs, method="centre", max_samples=500)
    found = sepnorm.heal(net, loader, method="centre", max_samples=500)
    assert wanted.count == found.count == 500
    x = torch.randn(3, 16)
    assert torch.equal(found.transform(x), wanted.transform(x))


def test_very_wide_vectors_are_not_healed(tmp_path):
    np.save(tmp_path / "e.npy", np.ones((4, 8193), np.float32))
    with pytest.raises(SepNormError, match="has vectors of 8,193 dimensions, and 8,192 are the most"):
        sepnorm.heal(str(tmp_path / "e.npy"), out=tmp_path / "out")
