"""One run on molecules: train on a property, or pretrain and probe; then measure and save."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.choices import evenly
from sepnorm.domains.molecules.batches import buckets, collate
from sepnorm.domains.molecules.config import MoleculeConfig
from sepnorm.domains.molecules.data import MoleculeData, MoleculeSet, load_molecules, load_probed
from sepnorm.domains.molecules.graphormer import GraphormerModel
from sepnorm.domains.molecules.graphs import Graph
from sepnorm.domains.molecules.masking import masked_batch
from sepnorm.domains.molecules.model import MaskedModel, MoleculeModel, PropertyModel, encode, vectors
from sepnorm.domains.molecules.pictures import FILE as PREDICTIONS
from sepnorm.domains.molecules.published import Graphormer
from sepnorm.domains.molecules.scores import probe, scores
from sepnorm.domains.molecules.streaming import MoleculeStream, Sample
from sepnorm.domains.probes import shape
from sepnorm.experiment.runs import Outcome
from sepnorm.surgery import model_call
from sepnorm.surgery.calibration import calibrate
from sepnorm.surgery.inspection import Inspection, inspect
from sepnorm.surgery.saving import save
from sepnorm.training.batching import Samples, Steps, StreamedSteps, by_length
from sepnorm.training.monitored import Monitored
from sepnorm.training.trainer import Report, Trained, train

_BATCH = 128  # molecules encoded at a time
_WINDOW = 50  # batches sorted by size together: enough for little padding, few enough to stay random
_CALIBRATED, _INSPECTED, _TOKENS = 4096, 512, 4096  # molecules, molecules, token vectors
_MONITORED = 256  # molecules for measuring [VNode] during training
_GROUPS = 5  # colours of a map of numeric targets


class MoleculeRecipe:
    """The data of a config. Runs any config with the same data."""

    def __init__(self, config: MoleculeConfig) -> None:
        self.stream = None if config.stream is None else MoleculeStream(config)
        self.data: MoleculeData = load_molecules(config) if self.stream is None else self.stream.data
        self.probed = load_probed(config)

    def run(self, config: MoleculeConfig, folder: Path, report: Report | None = None) -> Outcome:
        """Trains, measures on validation and test molecules in the units of the targets, and inspects the norms."""
        model, trained, monitored = self.watched(config, folder, report)
        if config.uses_batch:
            self.recalibrate(model)
        metrics, embeddings, arrays = self.measure(model)
        metrics |= {"loss": trained.losses[-1][1], "molecules_per_second": trained.rate}
        layers, embeddings["tokens"] = self.look_inside(model)
        names = self.data.test.smiles
        arrays |= monitored
        return Outcome(
            metrics,
            trained.losses,
            embeddings,
            partial(self.save, model),
            layers,
            arrays,
            names,
            resumed_from=trained.resumed_from,
        )

    def train(
        self, config: MoleculeConfig, folder: Path, report: Report | None = None
    ) -> tuple[MoleculeModel, Trained]:
        """Trains and returns the last weights: the learning rate ends at 0, so nothing is selected by validation."""
        return self.watched(config, folder, report)[:2]

    def watched(
        self, config: MoleculeConfig, folder: Path, report: Report | None = None
    ) -> tuple[MoleculeModel, Trained, dict[str, dict[str, Tensor]]]:
        """Like ``train``, and returns the geometry of [VNode] during training."""
        data, model = self.data, self.build(config)
        shown = [data.train.graphs[row] for row in evenly(len(data.train), _MONITORED).tolist()]
        monitored = Monitored(model, lambda _, batch: (encode(model.graphormer, shown), None), config.monitor)
        if self.stream is None or config.stream is None:
            samples = self._samples(config, data.train.graphs, data.train.targets)
            trained = train(model, Steps(config, samples, config.schedule), folder, report, monitored)
        else:
            source = self.stream.open(config.order_seed)
            try:
                steps = StreamedSteps(config, config.stream, source, partial(self._read, config), config.schedule)
                trained = train(model, steps, folder, report, monitored)
            finally:
                source.close()
        return model, trained, monitored.arrays()

    def _read(self, config: MoleculeConfig, parts: list[Sample]) -> Samples:
        """Turns samples of a stream into training samples."""
        targets = torch.tensor([values for _, values in parts]).reshape(len(parts), -1)
        return self._samples(config, [graph for graph, _ in parts], targets)

    def _samples(self, config: MoleculeConfig, graphs: Sequence[Graph], targets: Tensor) -> Samples:
        def make(chosen: Tensor, own: slice, generator: torch.Generator) -> dict[str, Any]:
            if config.task == "pretrain":
                return masked_batch([graphs[row] for row in chosen.tolist()], config, generator, own)
            scaled = (targets[chosen[own]] - self.data.mean) / self.data.std
            return collate([graphs[row] for row in chosen[own].tolist()], config.max_hops) | {"targets": scaled}

        order = by_length([len(graph) for graph in graphs], _WINDOW) if config.similar_sizes else None
        return Samples(len(graphs), make, order)

    def build(self, config: MoleculeConfig) -> MoleculeModel:
        if config.task == "pretrain":
            return MaskedModel(config)
        return PropertyModel(config, len(self.data.names), self.data.classes)

    def save(self, model: MoleculeModel, folder: Path) -> None:
        """Saves the encoder as a ``GraphormerModel`` and, beside it, the head with the scale of its targets."""
        folder.mkdir(parents=True, exist_ok=True)
        if model.settings.norm == "ln":
            model.graphormer.save_pretrained(folder)
        else:
            save(model.graphormer, folder)
        if isinstance(model, PropertyModel):
            from safetensors.torch import save_file

            head = {"mean": self.data.mean, "std": self.data.std} | dict(model.head.state_dict())
            save_file({name: value.contiguous() for name, value in head.items()}, folder / "head.safetensors")

    def encode(self, model: MoleculeModel, molecules: MoleculeSet) -> Tensor:
        """[VNode] of each molecule, in order (count, width)."""
        return encode(model.graphormer, molecules.graphs, _BATCH)

    def _batch(self, model: MoleculeModel, molecules: MoleculeSet, rows: list[int]) -> dict[str, Tensor]:
        return collate([molecules.graphs[row] for row in rows], model.settings.max_hops)

    def recalibrate(self, model: MoleculeModel) -> None:
        """Recalibrates batch norms on unmasked molecules, more than the few that running averages cover."""
        some = self.data.train.take(evenly(len(self.data.train), _CALIBRATED).tolist())
        parts = [rows for rows in buckets(some.sizes, _BATCH) if len(rows) > 1]
        calibrate(model.graphormer, [self._batch(model, some, rows) for rows in parts])

    @torch.no_grad()
    def predict(self, model: PropertyModel, vectors: Tensor) -> Tensor:
        """From [VNode] (count, width) to targets in their units, or logits of classes (count, targets)."""
        head = model.head
        predicted = torch.nn.functional.linear(vectors, head.weight.float().cpu(), head.bias.float().cpu())
        return predicted * self.data.std + self.data.mean

    def measure(self, model: MoleculeModel) -> tuple[dict[str, float], dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        """Returns scores and geometry, embeddings of test molecules, and predictions."""
        data = self.data
        test = self.encode(model, data.test)
        metrics: dict[str, float] = {}
        kept = {"true": data.test.targets}
        if isinstance(model, PropertyModel):
            kept["predicted"] = self.predict(model, test)
            valid = self.predict(model, self.encode(model, data.valid))
            for name, guesses, part in (("test", kept["predicted"], data.test), ("valid", valid, data.valid)):
                metrics |= {
                    f"{name}_{key}": value for key, value in scores(guesses, part.targets, data.classes).items()
                }
        else:
            if data.names:
                metrics |= probe_set(model.graphormer, data)
            for name, other in self.probed.items():
                metrics |= probe_set(model.graphormer, other, name)
        metrics |= {f"cls_{key}": value for key, value in shape(test).items()}
        embeddings = {"cls": test}
        if data.names:
            first = data.test.targets[:, 0]
            embeddings["labels"] = first.nan_to_num(-1).long() if data.classes else groups(first)
        return metrics, embeddings, {PREDICTIONS: kept}

    @torch.no_grad()
    def look_inside(self, model: MoleculeModel) -> tuple[Inspection, Tensor]:
        """Statistics of the norms on some test molecules, and some of their token vectors (count, width)."""
        encoder = model.graphormer.eval()
        some = self.data.test.take(evenly(len(self.data.test), _INSPECTED).tolist())
        batches = [self._batch(model, some, rows) for rows in buckets(some.sizes, _BATCH)]
        layers = inspect(encoder, batches)
        vectors = []
        for batch in batches:
            atoms = batch["attention_mask"].bool()
            atoms[:, 0] = False
            vectors.append(model_call.call(encoder, batch).last_hidden_state.float().cpu()[atoms])
        rows = torch.cat(vectors)
        return layers, rows[torch.linspace(0, len(rows) - 1, min(len(rows), _TOKENS)).long()]


def probe_set(
    graphormer: GraphormerModel | Graphormer,
    data: MoleculeData,
    name: str = "",
    poolings: Sequence[str] = ("cls", "mean", "moments"),
) -> dict[str, float]:
    """Scores of linear probes on a set, by pooling, such as ``probe_NAME_mae`` and ``mean_probe_NAME_mae``."""
    parts = (data.train, data.valid, data.test)
    rows = [vectors(graphormer, part.graphs, poolings) for part in parts]
    found: dict[str, float] = {}
    for pooling in poolings:
        train, valid, test = ((each[pooling], part.targets) for each, part in zip(rows, parts, strict=True))
        key = ("" if pooling == "cls" else f"{pooling}_") + "probe_" + (f"{name}_" if name else "")
        found |= {f"{key}{each}": value for each, value in probe(train, valid, test, data.classes).items()}
    return found


def groups(values: Tensor) -> Tensor:
    """The quintile of each value (count,), from 0; -1 if missing."""
    known = values[values.isfinite()].double()
    edges = known.quantile(torch.arange(1, _GROUPS, dtype=torch.float64) / _GROUPS)
    return torch.where(values.isfinite(), torch.bucketize(values.nan_to_num().double(), edges), -1)
