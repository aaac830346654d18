"""What is uploaded, and names that tell models apart."""

from __future__ import annotations

import copy

import huggingface_hub
import pytest
import torch
import transformers as T
from models import bert, embeddings, sentences, text_model
from torch import nn

import sepnorm
from sepnorm import SepNormError
from sepnorm.integrations.mteb import identify


@pytest.fixture
def uploads(monkeypatch, tmp_path):
    """What was sent, as a folder by name."""
    import shutil

    def upload_folder(self, *, folder_path, repo_id, commit_message):
        shutil.copytree(folder_path, tmp_path / repo_id)
        return f"https://hub/{repo_id}"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda self, name, **options: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    return tmp_path


def test_what_is_uploaded_is_opened_by_the_library_and_says_what_it_is(uploads):
    model = bert()
    sepnorm.convert(model, "bn+ln", calibrate=[sentences(), sentences()])
    assert sepnorm.push_to_hub(model, "me/bert-bn-ln") == "https://hub/me/bert-bn-ln"
    folder, batch = uploads / "me/bert-bn-ln", sentences()
    for loaded in (sepnorm.load(folder), T.AutoModel.from_pretrained(folder)):
        assert torch.equal(embeddings(loaded, batch), embeddings(model, batch))
    card = (folder / "README.md").read_text()
    assert "| `encoder.layer.1.output.LayerNorm` | ln | bn+ln |" in card
    assert "import sepnorm\nfrom transformers import AutoModel" in card and "library_name: transformers" in card


def test_models_of_no_library_are_uploaded_as_we_save_them(uploads):
    def build():
        torch.manual_seed(0)
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2)

    model = build()
    sepnorm.convert(model, "bn+ln")
    sepnorm.push_to_hub(model, "me/own")
    x = torch.randn(3, 4, 16)
    assert torch.equal(sepnorm.load(uploads / "me/own", build())(x), model.eval()(x))
    assert "sepnorm.load('me/own')" in (uploads / "me/own/README.md").read_text()


def test_what_is_not_converted_and_what_the_hub_refuses_is_said(monkeypatch):
    with pytest.raises(SepNormError, match=r"has no separate norms"):
        sepnorm.push_to_hub(bert(), "me/plain")
    model = bert()
    sepnorm.convert(model, "bn+ln", calibrate=[sentences()])
    monkeypatch.setattr(
        huggingface_hub.HfApi, "create_repo", lambda *a, **k: (_ for _ in ()).throw(OSError("no login"))
    )
    with pytest.raises(SepNormError, match=r"me/model cannot be uploaded to the hub: no login"):
        sepnorm.push_to_hub(model, "me/model")


def test_mteb_can_tell_models_apart(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    text_model(tmp_path)
    model = SentenceTransformer(modules=[modules.Transformer(str(tmp_path)), modules.Pooling(16, "cls")], device="cpu")
    before = identify(model, "me/plain")
    sepnorm.convert(model, "bn+ln", calibrate=[["the cat", "a dog", "a b c"]])
    after = identify(model, "me/converted")
    assert (model.model_card_data.model_name, model.model_card_data.base_model_revision) == ("me/converted", after)
    assert before != after == identify(copy.deepcopy(model), "me/copy") and len(after) == 40
    next(module for module in model.modules() if isinstance(module, sepnorm.SepNorm)).cls_norm.running_mean[0] += 1e-4
    assert identify(model, "me/converted") != after
    with pytest.raises(SepNormError, match=r"a name such as 'me/my-model'"):
        identify(model, "model")
    with pytest.raises(SepNormError, match=r"the card of a SentenceTransformer"):
        identify(bert(), "me/model")
