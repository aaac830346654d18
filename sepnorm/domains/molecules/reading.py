"""From files of SMILES to batches for a trained Graphormer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from sepnorm.data.records import LeftOut, Record
from sepnorm.data.tables import suffix_of
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphs import Graph
from sepnorm.domains.molecules.tables import LINES, read_table, smiles_lines

_PART = 1000  # molecules featurised at a time


class Molecules:
    """Reads SMILES and makes batches for a Graphormer."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, graphs: Sequence[Graph]) -> dict[str, Tensor]:
        batch: dict[str, Tensor] = self.model.collate(graphs)
        return batch

    def read(self, source: str, column: str | None = None, left_out: LeftOut | None = None) -> Iterator[Record]:
        """Graphs, named by their SMILES, from a table or from a text file with one molecule at the start of each line.

        Reads all rows of a file, whatever their split. Invalid rows are skipped and counted in ``left_out``.
        """
        left_out = left_out or LeftOut()
        lines: Iterator[Any]
        if suffix_of(Path(source)) in LINES:
            lines = smiles_lines(Path(source))
        else:
            lines = iter(read_table(source, column, labelled=False).smiles)
        while part := list(islice(lines, _PART)):
            graphs, rejected = featurise(part, self.model.config.features, max_atoms=self.model.max_atoms)
            bad = {each.row for each in rejected}
            for each in rejected:
                left_out.add(str(each.smiles))
            names = [text.strip() for row, text in enumerate(part) if row not in bad]
            for graph, name in zip(graphs, names, strict=True):
                yield Record(graph, None, name)
