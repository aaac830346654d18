"""Describes the training and evaluation data of a run on text, without torch."""

from __future__ import annotations

import glob
from pathlib import Path

from sepnorm.data.places import is_address, require_here
from sepnorm.domains import Look
from sepnorm.domains.targets import find_model
from sepnorm.domains.text.config import TextConfig
from sepnorm.domains.text.corpus import load_corpus, load_development
from sepnorm.domains.text.lee import lee_pairs
from sepnorm.domains.text.sets import load_sets
from sepnorm.domains.text.sts import Pairs


def look_at(config: TextConfig) -> Look:
    """Reads the data and the evaluation sets; the model is located, not opened."""
    sets = load_sets(config.sets, config.test)
    if config.development is not None:
        load_development(config.development)
    where = "" if config.test is None else f" of {config.test}"
    names = ", ".join(f"{name} ({len(one):,} pairs)" if isinstance(one, Pairs) else name for name, one in sets.items())
    scored = f"{names}{where}"
    foreign = list(sets) == ["lee"] and config.data != "lee"
    if list(sets) == ["lee"]:
        scored = f"the {len(lee_pairs()):,} pairs of news of the Lee corpus that people rated"
        if foreign:
            scored += ", which are not of your data: --test PATH scores on rated pairs or labelled sentences of yours"
    corpus = None
    if config.stream is None:
        corpus = load_corpus(config)
    elif not glob.has_magic(config.data) and not is_address(config.data):
        require_here(config.data)
    if config.model not in ("minilm", "scratch"):
        find_model(config.model)
    model = f"a BERT of {config.depth} layers from scratch" if config.model == "scratch" else Path(config.model).name
    name = "the Lee corpus" if config.data == "lee" else Path(config.data).name
    if corpus is None:
        return Look(f"{model} (SimCSE)", f"a stream of {name}", scored, foreign=foreign)
    what = "triples" if corpus.supervised else "sentences"
    return Look(f"{model} (SimCSE)", f"{corpus.samples:,} {what} of {name}", scored, corpus.samples, foreign)
