"""Convert, calibrate, train ten steps, save by the library's own means, load in another process by the library's own means."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import matrix
import refusals

from sepnorm import SepNormError

ALL = [(library, case) for library in matrix.LIBRARIES for case in matrix.cases(library)]


def skip_if_absent(library: str) -> None:
    if not matrix.is_there(library):
        pytest.skip(f"{library} is tested from a folder of its own, {matrix.LIBRARIES[library]}: see the Makefile")


@pytest.mark.slow
@pytest.mark.parametrize(("library", "case"), ALL)
def test_what_is_saved_is_loaded(library, case):
    skip_if_absent(library)
    read = matrix.seen(library)[case]["read"]
    assert "error" not in read, read["where"]
    assert read["distance"] <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("library", "case"), ALL)
def test_without_sepnorm_nothing_is_loaded(library, case):
    skip_if_absent(library)
    assert "error" in matrix.seen(library)[case]["without"]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "sentence_transformers", "peft"])
def test_without_sepnorm_a_sentence_says_what_to_do(library):
    skip_if_absent(library)
    for case in matrix.seen(library).values():
        assert "import sepnorm" in case["without"]["error"]


@pytest.mark.parametrize("refusal", refusals.REFUSALS, ids=lambda each: f"{each.library}: {each.what}")
def test_what_does_not_work_says_so(refusal, tmp_path):
    with pytest.raises((SepNormError, RuntimeError), match=re.escape(refusal.sentence)):
        refusal.attempt(tmp_path)


def test_the_table_of_the_page_is_that_of_the_matrix():
    page = matrix.PAGE.read_text()
    assert page == matrix.written(page)
