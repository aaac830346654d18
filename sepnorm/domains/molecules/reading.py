"""From files of SMILES to the batches of a trained Graphormer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from sepnorm.data.records import LeftOut, Record
from sepnorm.data.tables import suffix_of
from sepnorm.domains.molecules.batches import collate
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphs import MOST_ATOMS, Graph
from sepnorm.domains.molecules.tables import LINES, read_table, smiles_lines

_PART = 1000  # molecules that are featurised at a time


class Molecules:
    """The way from SMILES to what a Graphormer of this config takes."""

    def __init__(self, config: Any) -> None:
        self.features, self.max_hops = str(config.features), int(config.max_hops)

    def __call__(self, graphs: Sequence[Graph]) -> dict[str, Tensor]:
        return collate(graphs, self.max_hops)

    def read(self, source: str, column: str | None = None, left_out: LeftOut | None = None) -> Iterator[Record]:
        """Graphs, named by their SMILES, of a table, or of a text file with one molecule at the start of each line.

        All rows of a file count, whatever their split. What is no molecule is passed over, and counted in ``left_out``.
        """
        left_out = left_out or LeftOut()
        lines: Iterator[Any]
        if suffix_of(Path(source)) in LINES:
            lines = smiles_lines(Path(source))
        else:
            lines = iter(read_table(source, column, labelled=False).smiles)
        while part := list(islice(lines, _PART)):
            graphs, rejected = featurise(part, self.features, max_atoms=MOST_ATOMS)
            bad = {each.row for each in rejected}
            for each in rejected:
                left_out.add(str(each.smiles))
            names = [text.strip() for row, text in enumerate(part) if row not in bad]
            for graph, name in zip(graphs, names, strict=True):
                yield Record(graph, None, name)
