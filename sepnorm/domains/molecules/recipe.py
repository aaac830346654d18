"""One run on molecules: learn a property, or learn without labels and be probed for it; then measure and save."""

from __future__ import annotations

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
from sepnorm.domains.molecules.masking import masked_batch
from sepnorm.domains.molecules.model import MaskedModel, MoleculeModel, PropertyModel, encode
from sepnorm.domains.molecules.pictures import FILE as PREDICTIONS
from sepnorm.domains.molecules.scores import probe, scores
from sepnorm.domains.probes import shape
from sepnorm.experiment.runs import Outcome
from sepnorm.surgery import model_call as feed
from sepnorm.surgery.calibration import calibrate
from sepnorm.surgery.inspection import Inspection, inspect
from sepnorm.surgery.saving import save
from sepnorm.training.batching import Samples, Steps, by_length
from sepnorm.training.monitored import Monitored
from sepnorm.training.trainer import Report, Trained, train

_BATCH = 128  # molecules encoded at a time
_WINDOW = 50  # batches that are sorted by size together: enough for little padding, few enough to stay random
_CALIBRATED, _INSPECTED, _TOKENS = 4096, 512, 4096  # molecules; token vectors kept of the latter
_MONITORED = 256  # molecules that the virtual node is measured on while the model trains
_GROUPS = 5  # colours of a map for numbers


class MoleculeRecipe:
    """The data of a config, and what a run of any config with the same data does."""

    def __init__(self, config: MoleculeConfig) -> None:
        self.data: MoleculeData = load_molecules(config)
        self.probed = load_probed(config)

    def run(self, config: MoleculeConfig, folder: Path, report: Report | None = None) -> Outcome:
        """Trains, measures on validation and test molecules, in the units of the targets, and looks inside."""
        model, trained, monitored = self.watched(config, folder, report)
        if config.uses_batch:
            self.recalibrate(model)
        metrics, embeddings, arrays = self.measure(model)
        metrics |= {"loss": trained.losses[-1][1], "molecules_per_second": trained.rate}
        layers, embeddings["tokens"] = self.look_inside(model)
        names = self.data.test.smiles
        arrays |= monitored
        return Outcome(metrics, trained.losses, embeddings, partial(self.save, model), layers, arrays, names)

    def train(
        self, config: MoleculeConfig, folder: Path, report: Report | None = None
    ) -> tuple[MoleculeModel, Trained]:
        """The last weights count: the rate of learning goes to 0, and nothing is chosen by validation."""
        return self.watched(config, folder, report)[:2]

    def watched(
        self, config: MoleculeConfig, folder: Path, report: Report | None = None
    ) -> tuple[MoleculeModel, Trained, dict[str, dict[str, Tensor]]]:
        """The same, and keeps how the virtual node of some molecules lay on the way."""
        data, model = self.data, self.build(config)

        def make(chosen: Tensor, own: slice, generator: torch.Generator) -> dict[str, Any]:
            if config.task == "pretrain":
                return masked_batch([data.train.graphs[row] for row in chosen.tolist()], config, generator, own)
            graphs = [data.train.graphs[row] for row in chosen[own].tolist()]
            targets = (data.train.targets[chosen[own]] - data.mean) / data.std
            return collate(graphs, config.max_hops) | {"targets": targets}

        order = by_length(data.train.sizes, _WINDOW) if config.similar_sizes else None
        samples = Samples(len(data.train), make, order)
        shown = [data.train.graphs[row] for row in evenly(len(data.train), _MONITORED).tolist()]
        monitored = Monitored(model, lambda _, batch: (encode(model.graphormer, shown), None), config.monitor)
        trained = train(model, Steps(config, samples), folder, report, monitored)
        return model, trained, monitored.arrays()

    def build(self, config: MoleculeConfig) -> MoleculeModel:
        if config.task == "pretrain":
            return MaskedModel(config)
        return PropertyModel(config, len(self.data.names), self.data.classes)

    def save(self, model: MoleculeModel, folder: Path) -> None:
        """The encoder, as ``GraphormerModel``, and beside it the head of a property with the scale of its targets."""
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
        """[VNode] of each molecule, in their order: (count, width)."""
        return encode(model.graphormer, molecules.graphs, _BATCH)

    def _batch(self, model: MoleculeModel, molecules: MoleculeSet, rows: list[int]) -> dict[str, Tensor]:
        return collate([molecules.graphs[row] for row in rows], model.settings.max_hops)

    def recalibrate(self, model: MoleculeModel) -> None:
        """Statistics of whole molecules, and of more than the last few batches, of which running averages are."""
        some = self.data.train.take(evenly(len(self.data.train), _CALIBRATED).tolist())
        parts = [rows for rows in buckets(some.sizes, _BATCH) if len(rows) > 1]
        calibrate(model.graphormer, [self._batch(model, some, rows) for rows in parts])

    @torch.no_grad()
    def predict(self, model: PropertyModel, vectors: Tensor) -> Tensor:
        """From [VNode] (count, width) to targets in their units, or to logits of classes: (count, targets)."""
        head = model.head
        predicted = torch.nn.functional.linear(vectors, head.weight.float().cpu(), head.bias.float().cpu())
        return predicted * self.data.std + self.data.mean

    def measure(self, model: MoleculeModel) -> tuple[dict[str, float], dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        """Scores and geometry, embeddings of test molecules, and predictions."""
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
                metrics |= {f"probe_{key}": value for key, value in probe_set(model.graphormer, data).items()}
            for name, other in self.probed.items():
                scored = probe_set(model.graphormer, other)
                metrics |= {f"probe_{name}_{key}": value for key, value in scored.items()}
        metrics |= {f"cls_{key}": value for key, value in shape(test).items()}
        embeddings = {"cls": test}
        if data.names:
            first = data.test.targets[:, 0]
            embeddings["labels"] = first.nan_to_num(-1).long() if data.classes else groups(first)
        return metrics, embeddings, {PREDICTIONS: kept}

    @torch.no_grad()
    def look_inside(self, model: MoleculeModel) -> tuple[Inspection, Tensor]:
        """What goes through the norms for some test molecules, and some token vectors (count, width) that come out."""
        encoder = model.graphormer.eval()
        some = self.data.test.take(evenly(len(self.data.test), _INSPECTED).tolist())
        batches = [self._batch(model, some, rows) for rows in buckets(some.sizes, _BATCH)]
        layers = inspect(encoder, batches)
        vectors = []
        for batch in batches:
            atoms = batch["attention_mask"].bool()
            atoms[:, 0] = False
            vectors.append(feed.call(encoder, batch).last_hidden_state.float().cpu()[atoms])
        rows = torch.cat(vectors)
        return layers, rows[torch.linspace(0, len(rows) - 1, min(len(rows), _TOKENS)).long()]


def probe_set(graphormer: GraphormerModel, data: MoleculeData) -> dict[str, float]:
    """What a linear probe of [VNode] reads off the test molecules of a set."""
    parts = [(encode(graphormer, part.graphs), part.targets) for part in (data.train, data.valid, data.test)]
    return probe(parts[0], parts[1], parts[2], data.classes)


def groups(values: Tensor) -> Tensor:
    """The fifth of the known values that each (count,) lies in, from 0 on; -1 where it is missing."""
    known = values[values.isfinite()].double()
    edges = known.quantile(torch.arange(1, _GROUPS, dtype=torch.float64) / _GROUPS)
    return torch.where(values.isfinite(), torch.bucketize(values.nan_to_num().double(), edges), -1)
