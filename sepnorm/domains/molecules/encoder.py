"""Encoders of molecules: from SMILES to [VNode] and atoms, by a trained or published Graphormer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sepnorm.data.records import LeftOut, Record
from sepnorm.domains.encoders import Encoded, Encoder
from sepnorm.domains.molecules.features import as_graphs
from sepnorm.domains.molecules.graphormer import GraphormerModel
from sepnorm.domains.molecules.graphs import Graph
from sepnorm.domains.molecules.model import atoms_of
from sepnorm.domains.molecules.published import Graphormer
from sepnorm.domains.molecules.reading import Molecules
from sepnorm.surgery import model_call


def wrap(target: str, model: Any, source: Path) -> MoleculeEncoder | None:
    """Wraps a Graphormer as an encoder; None for any other model."""
    return MoleculeEncoder(target, model, Molecules(model)) if isinstance(model, GraphormerModel | Graphormer) else None


class MoleculeEncoder(Encoder):
    """Encoder whose [CLS] is [VNode] and whose tokens are atoms."""

    kind = "molecules"
    window = 64

    def read(
        self, data: str, column: str | None = None, split: str = "train", left_out: LeftOut | None = None
    ) -> Iterator[Record]:
        found: Iterator[Record] = self.prepare.read(data, column, left_out)
        return found

    def contents(self, data: Iterable[Any]) -> Sequence[Graph]:
        """Graphs, also of ``Data``, a ``Batch`` or a loader of PyG."""
        return as_graphs(data, self.model.config.features)

    def hidden(self, batch: Any) -> Encoded:
        hidden = model_call.call(self.model, batch)["last_hidden_state"]
        return Encoded(hidden[:, 0], *atoms_of(hidden, batch["attention_mask"].cpu()))
