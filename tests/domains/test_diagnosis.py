from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers as T
from models import text_model

from sepnorm import SepNormError
from sepnorm.domains.diagnosis import diagnose
from sepnorm.domains.encoders import open_encoder


def test_points_keep_their_labels_and_names_where_rows_are_left_out(tmp_path):
    pandas = pytest.importorskip("pandas")
    x = np.random.default_rng(0).standard_normal((3000, 4))
    x[5] = np.nan
    frame = pandas.DataFrame(
        {"embedding": list(x), "label": np.arange(3000) % 7, "text": [f"t{i}" for i in range(3000)]}
    )
    frame.to_parquet(tmp_path / "x.parquet")
    found = diagnose(str(tmp_path / "x.parquet"))
    assert found.embeddings.nonfinite == 1 and found.embeddings.count == 2999
    numbers = [int(name[1:]) for name in found.points.names]
    assert len(numbers) == 2000 and len(set(numbers)) == 2000 and 5 not in numbers and max(numbers) > 2900
    assert found.points.labels == [str(i % 7) for i in numbers]
    assert np.allclose(found.points.rows.numpy(), x[numbers], atol=1e-6)


def test_a_model_is_diagnosed_on_the_vectors_that_it_gives(tmp_path):
    text_model(tmp_path / "model")
    lines = [" ".join(["the cat"] * (i % 9 + 1) + [str(i % 10), "abcde"[i % 5]]) for i in range(90)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    seen = []
    found = diagnose(
        str(tmp_path / "model"),
        str(tmp_path / "lines.txt"),
        max_samples=80,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (80, 80) and found.embeddings.count == 80
    encoder = open_encoder(str(tmp_path / "model"))
    for name, row in zip(found.points.names, found.points.rows, strict=True):
        encoded = encoder.encode(encoder.prepare([name]))
        assert torch.allclose(encoded.cls[0], row, atol=1e-5)
    assert sorted(found.points.names) == sorted(lines[:80])
    single = encoder.encode(encoder.prepare(["the cat 3 a"]))
    assert single.tokens.shape == (1, 5, 16)
    assert found.mean_of_tokens.count == 80
    final = found.layers.sites[-1]
    assert final.after.cls.cosine == pytest.approx(found.embeddings.mean_cosine, abs=1e-6)
    assert final.after.cls.effective_rank == pytest.approx(found.embeddings.effective_rank, rel=1e-6)
    json.dumps(found.as_dict(), allow_nan=False)


def test_more_data_than_asked_for_is_not_read(tmp_path, monkeypatch):
    text_model(tmp_path / "model")
    taken = []

    def endless(*args):
        from sepnorm.data.records import Record

        i = 0
        while True:
            i += 1
            taken.append(i)
            yield Record(f"the cat {i % 10}", None, str(i))

    monkeypatch.setattr("sepnorm.domains.text.encoder.read_texts", endless)
    assert diagnose(str(tmp_path / "model"), "anything", max_samples=40).embeddings.count == 40
    assert len(taken) <= 41


def test_too_little_data_is_refused(tmp_path):
    text_model(tmp_path / "model")
    (tmp_path / "lines.txt").write_text("the cat\n\n")
    with pytest.raises(SepNormError, match=r"lines\.txt has 1 samples, and at least two"):
        diagnose(str(tmp_path / "model"), str(tmp_path / "lines.txt"))
    with pytest.raises(SepNormError, match="--label is only for files of embeddings"):
        diagnose(str(tmp_path / "model"), str(tmp_path / "lines.txt"), label="x")


def _rows(count: int = 300, dim: int = 16) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, dim))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_vectors_of_half_precision_are_diagnosed_as_those_of_double(tmp_path, kind):
    rows = _rows()
    np.save(tmp_path / "double.npy", rows)
    half = torch.from_numpy(rows).to(getattr(torch, kind))
    if kind == "float16":
        np.save(tmp_path / "half.npy", half.numpy())
        np.savez(tmp_path / "half.npz", cls=half.numpy())
    else:  # as NumPy writes the type of packages that have one
        np.save(tmp_path / "half.npy", half.view(torch.int16).numpy().view("V2"))
        np.savez(tmp_path / "half.npz", cls=half.view(torch.int16).numpy().view("V2"))
    expected = diagnose(str(tmp_path / "double.npy")).embeddings
    for name in ("half.npy", "half.npz"):
        found = diagnose(str(tmp_path / name)).embeddings
        assert found.effective_rank == pytest.approx(expected.effective_rank, abs=0.01)
        assert found.mean_cosine == pytest.approx(expected.mean_cosine, abs=0.001)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_checkpoint_of_half_precision_is_diagnosed_and_embedded(run, tmp_path, kind):
    text_model(tmp_path / "model")
    T.AutoModel.from_pretrained(tmp_path / "model").to(kind).save_pretrained(tmp_path / "model")
    lines = [f"the cat number {i % 7} sat on mat {i % 5} and dog {i % 3}" for i in range(60)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    code, out, err = run("diagnose", "model", "--data", "lines.txt")
    assert code == 0 and "5 norm sites" in out, err
    code, _, err = run("embed", "model", "lines.txt", "--out", "e.npy", "--pooling", "mean")
    assert code == 0 and np.load("e.npy").dtype == np.float32, err


def test_a_key_is_no_dimension_and_what_was_taken_is_said(run, tmp_path):
    rows = _rows(200, 8)
    header = "sample_id," + ",".join(f"d{i}" for i in range(8))
    lines = [f"{1000 + 7 * i}," + ",".join(f"{v:.5f}" for v in row) for i, row in enumerate(rows)]
    (tmp_path / "e.csv").write_text("\n".join([header, *lines]))
    code, out, err = run("diagnose", "e.csv")
    assert code == 0, err
    assert "Verdict: healthy" in out and "200 x 8" in out
    assert "8 columns are taken for dimensions, d0, d1 to d7; 'sample_id' is left out, as a key." in out


def test_a_key_that_numpy_wrote_is_no_dimension_either(run, tmp_path):
    rows = np.column_stack([np.arange(200), _rows(200, 8)])
    names = ",".join(["number", *"abcdefgh"])
    np.savetxt(tmp_path / "e.csv", rows, delimiter=",", header=names, comments="")  # 0.000000000000000000e+00 and so on
    code, out, err = run("diagnose", "e.csv")
    assert code == 0, err
    assert "Verdict: healthy" in out and "'number' is left out, as a key." in out


def test_a_column_of_another_scale_is_named(run, tmp_path):
    rows = _rows(200, 8)
    rows[:, 3] = 5000 + 100 * rows[:, 3]
    header = ",".join("abcdefgh")
    (tmp_path / "e.csv").write_text("\n".join([header, *(",".join(f"{v:.5f}" for v in row) for row in rows)]))
    code, out, err = run("diagnose", "e.csv")
    assert code == 0 and "Dimension 3 has " in out and "times the scale of the others" in out, err


def test_whole_numbers_are_dimensions_unless_they_count(tmp_path):
    from sepnorm.data.vectors import EmbeddingFile

    rows = np.random.default_rng(0).integers(-128, 128, (50, 4))
    rows[:, 1] = np.random.default_rng(1).permutation(50) * 3  # all different, as may happen
    lines = [f"{i}," + ",".join(map(str, row)) for i, row in enumerate(rows)]
    (tmp_path / "e.csv").write_text("\n".join(["row,a,b,c,d", *lines]))
    file = EmbeddingFile(tmp_path / "e.csv")
    (part,) = file.parts()
    assert part.rows.tolist() == rows.tolist() and "'row' is left out" in file.note


def test_a_table_of_texts_is_told_from_one_of_embeddings(run, tmp_path):
    (tmp_path / "t.csv").write_text("id,text\n1,hello\n2,good day\n")
    code, _, err = run("diagnose", "t.csv")
    assert code == 1 and "t.csv holds texts (id, text) and no embeddings" in err and "sepnorm embed MODEL t.csv" in err
