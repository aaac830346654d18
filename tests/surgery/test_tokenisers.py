"""Tokenisers whose steps make a text many times longer, and those that people have."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from sepnorm import SepNormError
from sepnorm.surgery.opening.tokenisers import require_bounded


def opened(normalizer=None, pre_tokenizer=None, post_processor=None):
    backend = Tokenizer(models.WordLevel({"a": 0}, "a"))
    for name, part in (
        ("normalizer", normalizer),
        ("pre_tokenizer", pre_tokenizer),
        ("post_processor", post_processor),
    ):
        if part is not None:
            setattr(backend, name, part)
    return require_bounded(SimpleNamespace(backend_tokenizer=backend), Path("model"))


def template(ids: int):
    found = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 0)])
    word = {"id": "[CLS]", "ids": [0] * ids, "tokens": ["a"] * ids}
    return processors.TemplateProcessing(single="[CLS] $A", special_tokens=[word]) if ids else found


def sequence(*steps):
    return normalizers.Sequence(list(steps))


TEN = normalizers.Replace("a", "a" * 10)
EMPTY = normalizers.Replace(Regex("(?=a)"), "aa")


@pytest.mark.parametrize(
    ("normalizer", "growth"),
    [
        (sequence(TEN, TEN), 100),
        (sequence(TEN, sequence(normalizers.NFC(), TEN, sequence(TEN))), 1000),
        (sequence(*[EMPTY] * 4), 81),
        (normalizers.Prepend("a" * 50), 50),
        (sequence(*[normalizers.ByteLevel()] * 3), 64),
        (sequence(*[normalizers.BertNormalizer()] * 4), 81),
    ],
)
def test_a_tokeniser_that_makes_many_letters_of_one_is_refused(normalizer, growth):
    with pytest.raises(
        SepNormError, match=f"model has a tokeniser that may make {growth:,} letters of one, and 40 are"
    ):
        opened(normalizer)


def test_its_other_parts_count_too():
    bytes_twice = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(), pre_tokenizers.ByteLevel()])
    with pytest.raises(SepNormError, match="may make 160 letters of one"):
        opened(TEN, bytes_twice)
    with pytest.raises(SepNormError, match="puts 100 tokens around a text, and 64 are the most"):
        opened(None, None, processors.Sequence([processors.ByteLevel(), template(100)]))


def test_usual_tokenisers_are_opened():
    spaces = normalizers.Replace(Regex(" {2,}"), "\u2581")
    for normalizer in (
        None,
        normalizers.BertNormalizer(),
        sequence(normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")),
        sequence(normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), spaces),
        sequence(normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()),
    ):
        opened(normalizer, pre_tokenizers.ByteLevel(), template(0))
    assert require_bounded("no fast tokeniser", Path("model")) == "no fast tokeniser"


@pytest.mark.parametrize(("letters", "fits"), [(18, True), (50, False)])
def test_rules_that_were_compiled_are_looked_into(letters, fits):
    rules = base64.b64encode((8).to_bytes(4, "little") + bytes(8) + b"a\0" + "\u0627".encode() * letters + b"\0")

    class Compiled:
        def __getstate__(self):
            return b'{"type": "Precompiled", "precompiled_charsmap": "%s"}' % rules

    part = SimpleNamespace(normalizer=Compiled(), pre_tokenizer=None, post_processor=None)
    tokenizer = SimpleNamespace(backend_tokenizer=part)
    if fits:
        assert require_bounded(tokenizer, Path("model")) is tokenizer
        return
    with pytest.raises(SepNormError, match="may make 50 letters of one"):
        require_bounded(tokenizer, Path("model"))
