"""Encoders of molecules: a trained Graphormer, from SMILES to [VNode] and atoms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sepnorm.data.records import LeftOut, Record
from sepnorm.domains.encoders import Encoded, Encoder
from sepnorm.domains.molecules.graphormer import GraphormerModel
from sepnorm.domains.molecules.reading import Molecules
from sepnorm.surgery import model_call as feed


def wrap(target: str, model: Any, source: Path) -> MoleculeEncoder | None:
    """A Graphormer with its features of atoms and bonds; None where the model is another."""
    return MoleculeEncoder(target, model, Molecules(model.config)) if isinstance(model, GraphormerModel) else None


class MoleculeEncoder(Encoder):
    """[VNode] is in the place of [CLS]. The mean of tokens is that of the atoms."""

    kind = "molecules"
    window = 64

    def read(
        self, data: str, column: str | None = None, split: str = "train", left_out: LeftOut | None = None
    ) -> Iterator[Record]:
        found: Iterator[Record] = self.prepare.read(data, column, left_out)
        return found

    def hidden(self, batch: Any) -> Encoded:
        hidden = feed.call(self.model, batch)["last_hidden_state"]
        return Encoded(hidden[:, 0], hidden[:, 1:], batch["attention_mask"].bool().cpu()[:, 1:])
