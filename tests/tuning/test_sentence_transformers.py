"""Vectors in a model of sentence-transformers, which takes its input as one mapping and sorts sentences."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import pytest
import torch
from models import text_model

import sepnorm
from sepnorm import SepNormError, tuning

library = pytest.importorskip("sentence_transformers")
sys.path.insert(0, str(Path(__file__).parent))
from test_tuning import SEP

TEXTS = ["the cat sat", "dog", "a b c d e"]


@pytest.fixture
def model(tmp_path):
    """With the random sets "a" and "b", of which "b" is in use."""
    text_model(tmp_path)
    found = library.SentenceTransformer(str(tmp_path), device="cpu")
    for seed, name in enumerate("ab"):
        sepnorm.tune_special(found, name=name)
        with torch.no_grad():
            found.special_tokens.vectors(name).normal_(generator=torch.Generator().manual_seed(seed))
    return found


def test_it_brings_its_tokeniser(tmp_path):
    text_model(tmp_path)
    model = library.SentenceTransformer(str(tmp_path), device="cpu")
    before, children = model.encode(TEXTS), len(model)
    report = sepnorm.tune_special(model)
    special = model.special_tokens
    assert special is model[0].auto_model.special_tokens and len(model) == children  # a child of it would be run
    assert [kind.token for kind in special.kinds] == [None, SEP] and not report.head
    assert (model.encode(TEXTS) == before).all()
    with torch.no_grad():
        special.vectors("default")[:, 1] = 1.0  # at [SEP] alone
    assert abs(model.encode(TEXTS) - before).max() > 1e-3
    tuning.remove(model)
    assert (model.encode(TEXTS) == before).all()
    assert not {"set_special", "special_tokens", "encode"} & vars(model).keys()


def test_a_copy_has_vectors_of_its_own(model):
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.special_tokens is twin[0].auto_model.special_tokens is not model.special_tokens
        twin.set_special(["a", "b", "a"])
        with pytest.raises(SepNormError, match="encode sorts sentences"):
            twin.encode(TEXTS)
        model.encode(TEXTS)  # one set is in use here
        tuning.remove(twin)
        twin.encode(TEXTS)


def test_encode_refuses_a_list_of_sets_as_it_sorts_sentences(model):
    apart = {name: model.set_special(name) or model.encode(TEXTS) for name in "ab"}
    model.set_special(["a", "b", "b"])
    for encode in (model.encode, model.encode_query):
        with pytest.raises(
            SepNormError, match="encode sorts sentences by length, so a list of sets would not fit them"
        ):
            encode(TEXTS)
    with torch.no_grad():  # in the order of the batch
        found = model(model.preprocess(TEXTS))["sentence_embedding"].numpy()
    for row, name in enumerate("abb"):
        assert abs(found[row] - apart[name][row]).max() < 1e-5
    model.set_special("a")
    assert (model.encode(TEXTS) == apart["a"]).all()


def test_predict_refuses_a_list_of_sets(tmp_path):
    text_model(tmp_path)
    model = library.CrossEncoder(str(tmp_path), device="cpu", num_labels=1)
    sepnorm.tune_special(model)
    pairs = [(text, "cat") for text in TEXTS]
    model.predict(pairs)
    model.set_special(["default", None, None])
    with pytest.raises(SepNormError, match="predict sorts sentences"):
        model.predict(pairs)


def test_a_mask_in_the_mapping_marks_special_tokens(model):
    features = model.preprocess(TEXTS)
    mask = torch.zeros_like(features["input_ids"])

    def embedded(**more):
        handed = features | more
        with torch.no_grad():
            found = model(handed)["sentence_embedding"]
        assert ("special_mask" in handed) == bool(more)  # the caller's own mapping stays whole
        return found

    with_vectors, nowhere = embedded(), embedded(special_mask=mask)
    mask[:, 0] = 1
    cls_alone = embedded(special_mask=mask)
    model.set_special(None)
    assert torch.equal(nowhere, embedded())
    assert not torch.allclose(cls_alone, with_vectors) and not torch.allclose(cls_alone, nowhere)
