"""The notebooks run, and what is stored in them is what they print."""

from __future__ import annotations

import re

import nbformat
import pytest
from notebooks import NOTEBOOKS, executed, printed


def masked(text: str) -> str:
    """Printed text without its numbers and verdicts, which may differ between processors in what is close."""
    text = re.sub(r"[+-]?\d[\d.,]*", "0", text)
    text = re.sub(r"\b(better|worse|equal|undecided|(partly )?collapsed|healthy)\b", "verdict", text)
    return re.sub(r" +", " ", text)


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["images", "molecules", "text"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_output_is_stored_and_none_is_an_error(path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    for cell, text in zip([cell for cell in book.cells if cell.cell_type == "code"], printed(book), strict=True):
        assert bool(text) == ("print(" in cell.source), cell.source
        assert all(output.output_type == "stream" for output in cell.outputs), cell.source
    assert all(line == line.rstrip() and len(line) <= 120 for cell in book.cells for line in cell.source.splitlines())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_run_prints_what_is_stored(path):
    stored = printed(nbformat.read(path, as_version=4))
    assert [masked(text) for text in printed(executed(path))] == [masked(text) for text in stored]
