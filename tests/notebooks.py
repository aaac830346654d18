"""Runs the notebooks in examples/notebooks. ``python tests/notebooks.py`` stores what they print."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))


def executed(path: Path) -> NotebookNode:
    """A notebook with the outputs of a run in a kernel of its own; a cell that raises ends it."""
    for name, value in {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}.items():
        os.environ.setdefault(name, value)
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=500, kernel_name="python3", record_timing=False).execute()
    for cell in book.cells:
        if cell.cell_type == "code":  # other libraries' warnings depend on what is installed
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return book


def printed(book: NotebookNode) -> list[str]:
    """What each cell of code prints."""
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


if __name__ == "__main__":
    for each in NOTEBOOKS:
        nbformat.write(executed(each), each)
