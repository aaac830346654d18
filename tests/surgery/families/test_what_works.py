"""Over a hundred tiny models: the norm that ``convert`` takes for the last is the last that [CLS] passes, or the reason is named.

What is right is found without sepnorm, by hooks and autograd (``survey.py``). The survey takes 15 s on one core.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("SEPNORM_TIMM") or ROOT / ".timm").absolute()
spec = importlib.util.spec_from_file_location("what_works", ROOT / "docs/results/what_works.py")
what_works = importlib.util.module_from_spec(spec)
spec.loader.exec_module(what_works)

NOT_FOUND = r"has no \[CLS\] that could be found"
NO_NAME = r"has no \[CLS\] token that sepnorm knows.*It is a register"
REFUSED = {
    "transformers": {
        "BERT, decoder": "causal decoder",
        "GPT-2": "causal decoder",
        "CLIP, text": "causal decoder",
        "Longformer": "pass example=",
        "T5": r"T5 has no \[CLS\]",
        "XLNet": r"puts \[CLS\] last",
        "BART": "encoder-decoder model",
        "CLIP, both": "two towers",
        "I-JEPA": NOT_FOUND,
        "AIMv2": NOT_FOUND,
        "SigLIP, images": NOT_FOUND,
        "Swin": NOT_FOUND,
        "SigLIP 2, images": r"has no \[CLS\] token",
        "VideoMAE": r"has no \[CLS\] token",
        "V-JEPA 2": r"has no \[CLS\] token",
        "BLIP, images": r"post_layernorm, which is called in two ways.*\(after pooling\)",
        "BLIP-2, images": r"post_layernorm, which is called in two ways.*\(after pooling\)",
    },
    "timm": {
        "ViT, no class token": NOT_FOUND,
        "SigLIP": NOT_FOUND,
        "Swin": NOT_FOUND,
        "LeViT": NOT_FOUND,
        "ViT, registers and no class token": NO_NAME,
        "NaFlexViT, no class token": NO_NAME,
        "CrossViT": NO_NAME,
    },
}
#: Where [CLS] leaves the encoder without a norm at the end of its way: nothing behind the last block, or a norm of [CLS] alone.
AROUND = {
    "transformers": {
        "BEiT, classifier of the mean", "CLIP, images", "CLIP, images with projection", "MetaCLIP 2, images",
        "Chinese CLIP, images", "MLCD", "InternVL, images",
    },
    "timm": {"ViT, mean", "EVA-02, mean", "BEiT v2, mean", "PiT"},
}  # fmt: skip

Rows = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=["transformers", pytest.param("timm", marks=pytest.mark.slow)])
def library(request: pytest.FixtureRequest) -> str:
    if request.param == "timm" and not (FOLDER / "timm").is_dir():
        pytest.skip(f"timm is tested from a folder of its own, and {FOLDER.name} has none: see the Makefile")
    return str(request.param)


@pytest.fixture(scope="module")
def rows(library: str) -> Rows:
    found = what_works.survey(*(["timm", str(FOLDER)] if library == "timm" else ["transformers"]))
    return {row["name"]: row for row in found}


def test_what_is_taken_for_the_last_norm_is_the_last_that_cls_passes(library, rows):
    taken = {name: row for name, row in rows.items() if "final" in row}
    assert len(taken) >= (50 if library == "transformers" else 25)
    assert {name: row["final"] for name, row in taken.items()} == {name: [row["passed"]] for name, row in taken.items()}


def test_what_is_refused_is_refused_with_the_reason(library, rows):
    refused = {name: row for name, row in rows.items() if "refused" in row}
    assert set(refused) == set(REFUSED[library])
    for name, row in refused.items():
        assert row["kind"] == "SepNormError", row
        assert re.search(REFUSED[library][name], row["refused"]), row
    for name in ("BLIP, images", "BLIP-2, images"):  # the norm that is named is the right one
        assert library == "timm" or rows[name]["passed"] == "post_layernorm"


def test_a_cls_that_the_output_does_not_read_is_told_and_only_that(rows):
    """``moved``: the output is another one when another vector leaves the norm at [CLS]."""
    for name, row in rows.items():
        if "final" in row:
            told = [each for each in row["warned"] if "does not read [CLS] after" in each]
            assert bool(told) is (not row["moved"]), name
            assert set(told) <= set(row["notes"])


def test_a_way_around_the_last_norm_is_told_and_only_that(library, rows):
    told = {name for name, row in rows.items() if any("[CLS] bypasses" in each for each in row.get("warned", []))}
    assert told == AROUND[library]


def test_several_learnt_cls_vectors_are_told(library, rows):
    told = {name for name, row in rows.items() if any("[CLS] vectors" in each for each in row.get("notes", []))}
    assert told == ({"Pixio"} if library == "transformers" else set())


def table(text: str, library: str) -> list[str]:
    """The rows of one library, those of refused models included."""
    section = text.split(f"## {library}\n")[1].split("\n## ")[0]
    refused = text.split("## Refused")[1]
    lines = [*section.splitlines(), *(line for line in refused.splitlines() if f"({library})" in line)]
    return [line for line in lines if line.startswith("| ") and "`" in line]


def test_the_page_says_what_the_code_does(library, rows):
    """Where this fails, ``python docs/results/what_works.py`` writes the page anew."""
    expected = table(what_works.page(list(rows.values()), {"transformers": "", "timm": ""}), library)
    assert len(expected) == len(rows)
    assert table(what_works.PAGE.read_text(encoding="utf-8"), library) == expected
