"""The domain of molecules: Graphormer on SMILES, with properties and probes of [VNode]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from sepnorm.domains import Domain, Look, Metric, Metrics
from sepnorm.domains.molecules.config import PRESETS, USUAL_ATOMS, MoleculeConfig
from sepnorm.experiment.metrics import GEOMETRY, LOSS
from sepnorm.training.configs import RunConfig

if TYPE_CHECKING:
    from torch import nn

    from sepnorm.domains.encoders import Encoder
    from sepnorm.domains.evaluation import Evaluation, Task
    from sepnorm.domains.molecules.recipe import MoleculeRecipe
    from sepnorm.experiment.comparison import Arm
    from sepnorm.report.page import Section


def _beside(pooling: str) -> list[Metric]:
    """Metrics of probes of another pooling than [VNode], not shown in tables."""
    return [
        Metric(f"{pooling}_probe_{own}{key}", f"{pooling} probe{of} {name}", higher, shown=False)
        for own, of in (("", ""), ("*_", " of {},"))
        for key, name, higher in (
            ("mae", "MAE", False),
            ("rmse", "RMSE", False),
            ("roc_auc", "ROC AUC", True),
            ("average_precision", "average precision", True),
        )
        if own or key in ("rmse", "average_precision")
    ]


METRICS = Metrics(
    [
        Metric("test_mae", "test MAE", False, primary=True),
        Metric("test_rmse", "test RMSE", False),
        Metric("test_roc_auc", "test ROC AUC", True, primary=True),
        Metric("test_average_precision", "test average precision", True),
        Metric("valid_mae", "validation MAE", False),
        Metric("valid_roc_auc", "validation ROC AUC", True),
        Metric("probe_mae", "[CLS] probe MAE", False, primary=True),
        Metric("probe_rmse", "[CLS] probe RMSE", False),
        Metric("probe_roc_auc", "[CLS] probe ROC AUC", True, primary=True),
        Metric("probe_average_precision", "[CLS] probe average precision", True),
        Metric("mean_probe_mae", "mean probe MAE", False),
        Metric("mean_probe_roc_auc", "mean probe ROC AUC", True),
        Metric("moments_probe_mae", "moments probe MAE", False),
        Metric("moments_probe_roc_auc", "moments probe ROC AUC", True),
        Metric("probe_*_rmse", "[CLS] probe of {}, RMSE", False),
        Metric("probe_*_roc_auc", "[CLS] probe of {}, ROC AUC", True),
        *GEOMETRY,
        LOSS,
        Metric("valid_rmse", "validation RMSE", False, shown=False),
        Metric("valid_average_precision", "validation average precision", True, shown=False),
        Metric("probe_*_mae", "[CLS] probe of {}, MAE", False, shown=False),
        Metric("probe_*_average_precision", "[CLS] probe of {}, average precision", True, shown=False),
        *_beside("mean"),
        *_beside("moments"),
    ]
)


class Molecules(Domain):
    name = "molecules"
    presets = PRESETS
    arms = "ln,bn@final,bn+ln@final"
    metrics = METRICS

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> RunConfig:
        """Settings of a run. Data without a property means pretraining, and probes if there are tables for them.

        The demo's limit of atoms is for its own data, and a preset's number of molecules is not for a stream.
        """
        demo = PRESETS["demo"]
        lifted: dict[str, Any] = {"train_molecules": None} if "stream" in given else {}
        if preset in (None, "demo") and given.get("data", demo.data) != demo.data:
            lifted["max_atoms"] = USUAL_ATOMS
        given = lifted | dict(given)
        if "data" in given and "task" not in given:
            from sepnorm.domains.molecules.look import has_targets

            pretrained: Any = super().settings(preset, {**given, "task": "pretrain"})  # before looking at the data
            if not has_targets(pretrained):
                return pretrained  # type: ignore[no-any-return]
        return super().settings(preset, given)

    def look(self, config: MoleculeConfig) -> Look:
        from sepnorm.domains.molecules.look import look_at

        return look_at(config)

    def recipe(self, config: MoleculeConfig) -> MoleculeRecipe:
        from sepnorm.domains.molecules.recipe import MoleculeRecipe

        return MoleculeRecipe(config)

    def wrap(self, target: str, model: Any, source: Path) -> Encoder | None:
        from sepnorm.domains.molecules.encoder import wrap

        return wrap(target, model, source)

    def evaluate(self, encoder: Any, task: Task) -> Evaluation:
        from sepnorm.domains.molecules.evaluation import evaluate

        return evaluate(encoder, task)

    def trial(self, config: MoleculeConfig) -> tuple[nn.Module, Callable[[int], dict[str, Any]]]:
        from sepnorm.domains.molecules.model import PropertyModel, made_up_batches

        return PropertyModel(config, 1, False), made_up_batches(config)

    def next_commands(self, folder: Path, config: MoleculeConfig) -> list[str]:
        model, vectors = quote(str(folder / "model")), quote(str(folder / "embeddings.npz"))
        return [f"embed {model} SMILES.csv --out embeddings.parquet", f"diagnose {vectors}"]

    def sections(self, arms: Sequence[Arm], seed: int) -> list[Section]:
        from sepnorm.domains.molecules.pictures import neighbours, predictions

        made = (make(arms, seed) for make in (predictions, neighbours))
        return [section for section in made if section is not None]

    def picture(self, name: str) -> str:
        from sepnorm.domains.molecules.pictures import draw

        return draw(name)


DOMAIN = Molecules()
