from __future__ import annotations

import json

import numpy as np
import pytest
import torch
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
    with pytest.raises(SepNormError, match=r"lines\.txt gave 1 samples, and at least two"):
        diagnose(str(tmp_path / "model"), str(tmp_path / "lines.txt"))
    with pytest.raises(SepNormError, match="--label names a column"):
        diagnose(str(tmp_path / "model"), str(tmp_path / "lines.txt"), label="x")
