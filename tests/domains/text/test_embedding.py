from __future__ import annotations

from functools import partial

import pytest
import torch
import transformers
from models import text_model

import sepnorm
from sepnorm import SepNormError
from sepnorm.domains.encoders import Encoder, open_encoder
from sepnorm.domains.images.encoder import ImageEncoder
from sepnorm.domains.text.embedding import embed_distinct, sentence_embedder

SENTENCES = ["the cat sat on the mat and the dog sat on the cat", "a b", "dog", "the number 4 2 and a cat", "c d e", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("model")
    text_model(place)
    model = transformers.AutoModel.from_pretrained(place)
    with torch.no_grad():
        for weight in model.encoder.parameters():
            if weight.dim() == 2:
                weight.mul_(10)  # at the size of fresh weights [CLS] hardly depends on the other tokens, nor on padding
    model.save_pretrained(place)
    return str(place)


@pytest.fixture(params=["transformers", "sentence-transformers", "bn+ln", "bn+bn"])
def encoder(request, folder, tmp_path) -> Encoder:
    if request.param == "transformers":
        return open_encoder(folder)
    if request.param == "sentence-transformers":
        sentence_transformers = pytest.importorskip("sentence_transformers")
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        modules = [Transformer(folder), Pooling(16, "mean")]
        sentence_transformers.SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path))
        return open_encoder(str(tmp_path))
    found = open_encoder(folder)
    sepnorm.convert(found.model, request.param, calibrate=[found.prepare(SENTENCES)], sites="all")
    return found


@pytest.mark.parametrize(("pooling", "size"), [("cls", 16), ("mean", 16), ("cls+mean", 32), ("moments", 17 * 18 // 2)])
def test_a_sentence_has_one_vector_whatever_it_is_batched_with(encoder, pooling, size):
    together = sentence_embedder(encoder, pooling)(SENTENCES)
    close = partial(torch.testing.assert_close, atol=1e-3 if pooling == "moments" else 1e-5, rtol=0)
    assert together.shape == (6, size) and together.dtype == torch.float32
    assert not torch.allclose(together[0], together[1], atol=1e-2)
    for at_once in (1, 2, 5):
        close(sentence_embedder(encoder, pooling, at_once)(SENTENCES), together)
    embed = sentence_embedder(encoder, pooling)
    for sentence, row in zip(SENTENCES, together, strict=True):
        close(embed([sentence])[0], row)


def test_vectors_are_those_of_the_model(folder):
    encoder = open_encoder(folder)
    cls, mean = (sentence_embedder(encoder, pooling)(SENTENCES) for pooling in ("cls", "mean"))
    for number, sentence in enumerate(SENTENCES):
        with torch.no_grad():
            hidden = encoder.model(**encoder.prepare([sentence])).last_hidden_state[0]
        torch.testing.assert_close(cls[number], hidden[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(mean[number], hidden.mean(0), atol=1e-5, rtol=0)


def test_means_are_those_of_sentence_transformers(folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    modules = [Transformer(folder), Pooling(16, "mean")]
    reference = sentence_transformers.SentenceTransformer(modules=modules, device="cpu")
    theirs = reference.encode(SENTENCES, convert_to_tensor=True, show_progress_bar=False)
    ours = sentence_embedder(open_encoder(folder), "mean")(SENTENCES)
    torch.testing.assert_close(ours, theirs.cpu(), atol=1e-5, rtol=0)


def test_a_model_in_training_is_evaluated_without_dropout_and_stays_in_training(folder):
    encoder = open_encoder(folder)
    expected = sentence_embedder(encoder)(SENTENCES)
    encoder.model.train()
    assert torch.equal(sentence_embedder(encoder)(SENTENCES), expected)
    assert encoder.model.training


def test_other_poolings_other_encoders_and_no_sentences_are_refused(folder):
    encoder = open_encoder(folder)
    with pytest.raises(
        SepNormError, match=r"unknown pooling 'means': choose from cls, mean, cls\+mean, moments. Did you mean 'mean'"
    ):
        sentence_embedder(encoder, "means")
    with pytest.raises(SepNormError, match="takes images, not text"):
        sentence_embedder(ImageEncoder("pictures", encoder.model, None))
    with pytest.raises(SepNormError, match="no sentences to embed"):
        sentence_embedder(encoder)([])


def test_each_distinct_sentence_is_embedded_once():
    seen: list[list[str]] = []

    def embed(sentences: list[str]) -> torch.Tensor:
        seen.append(sentences)
        return torch.tensor([[float(len(s)), float(ord(s[0]))] for s in sentences])

    first, second = embed_distinct(embed, ["a", "bb", "a"], ["ccc", "a"])
    assert seen == [["a", "bb", "ccc"]]
    assert first.tolist() == [[1, 97], [2, 98], [1, 97]] and second.tolist() == [[3, 99], [1, 97]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.ones(2), r"shape \(2,\) for 2 sentences"),
        (torch.ones(3, 4), r"shape \(3, 4\) for 2 sentences"),
        (torch.tensor([[1.0], [torch.nan]]), "hold NaN or infinity"),
    ],
)
def test_embeddings_that_are_none_are_refused(rows, message):
    with pytest.raises(SepNormError, match=message):
        embed_distinct(lambda sentences: rows, ["a", "b"])
