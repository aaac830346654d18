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

#: Those that show why a model cannot be loaded where sepnorm is not imported.
TELLING = {"transformers", "sentence_transformers", "peft"}


@pytest.mark.slow
@pytest.mark.parametrize("library", matrix.LIBRARIES)
def test_what_is_saved_is_loaded_and_without_sepnorm_it_is_not(library):
    """All cases of a library together: they have their processes in common."""
    if not matrix.is_there(library):
        pytest.skip(f"{library} is tested from a folder of its own, {matrix.LIBRARIES[library]}: see the Makefile")
    for case, ways in matrix.seen(library).items():
        assert "error" not in ways["read"], (case, ways["read"].get("where"))
        assert ways["read"]["distance"] <= 1e-6, case
        assert "error" in ways["without"], case
        assert library not in TELLING or "import sepnorm" in ways["without"]["error"], case


@pytest.mark.parametrize("refusal", refusals.REFUSALS, ids=lambda each: f"{each.library}: {each.what}")
def test_what_does_not_work_says_so(refusal, tmp_path):
    with pytest.raises((SepNormError, RuntimeError), match=re.escape(refusal.sentence)):
        refusal.attempt(tmp_path)


def test_the_table_of_the_page_is_that_of_the_matrix():
    page = matrix.PAGE.read_text()
    assert page == matrix.written(page)
