"""Images: masked autoencoders, linear probes and nearest neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from sepnorm.domains import Domain, Metric, Metrics
from sepnorm.domains.images.config import PRESETS, ImageConfig
from sepnorm.experiment.metrics import GEOMETRY, LOSS

if TYPE_CHECKING:
    from torch import nn

    from sepnorm.domains.encoders import Encoder
    from sepnorm.domains.evaluation import Evaluation, Task
    from sepnorm.domains.images.recipe import ImageRecipe
    from sepnorm.experiment.comparison import Arm
    from sepnorm.report.page import Section

METRICS = Metrics(
    [
        Metric("cls_linear_top1", "[CLS] linear", primary=True),
        Metric("cls_linear_bn_top1", "[CLS] linear, with BN"),
        Metric("cls_knn", "[CLS] kNN"),
        Metric("mean_linear_top1", "mean linear"),
        Metric("mean_knn", "mean kNN"),
        *GEOMETRY,
        LOSS,
        Metric("cls_linear_top5", "[CLS] linear, top-5", shown=False),
        Metric("cls_linear_bn_top5", "[CLS] linear, with BN, top-5", shown=False),
        Metric("cls_centred_knn", "[CLS] kNN, centred", shown=False),
        Metric("cls_whitened_knn", "[CLS] kNN, whitened", shown=False),
        Metric("mean_linear_top5", "mean linear, top-5", shown=False),
        Metric("mean_linear_bn_top1", "mean linear, with BN", shown=False),
        Metric("mean_linear_bn_top5", "mean linear, with BN, top-5", shown=False),
        Metric("mean_centred_knn", "mean kNN, centred", shown=False),
        Metric("mean_whitened_knn", "mean kNN, whitened", shown=False),
        Metric("mean_uniformity", "mean uniformity", False, kind="geometry", shown=False),
        Metric("mean_effective_rank", "mean effective rank", kind="geometry", shown=False),
        Metric("mean_mean_cosine", "mean mean cosine", False, kind="geometry", shown=False),
        Metric("recalibration_gain_linear", "[CLS] linear, gain by statistics measured anew", shown=False),
        Metric("recalibration_gain_knn", "[CLS] kNN, gain by statistics measured anew", shown=False),
    ]
)


class Images(Domain):
    name = "images"
    presets = PRESETS
    arms = "ln,bn@final,bn+bn@final"
    metrics = METRICS

    def recipe(self, config: ImageConfig) -> ImageRecipe:
        from sepnorm.domains.images.recipe import ImageRecipe

        return ImageRecipe(config)

    def wrap(self, target: str, model: Any, source: Path) -> Encoder | None:
        from sepnorm.domains.images.encoder import wrap

        return wrap(target, model, source)

    def evaluate(self, encoder: Any, task: Task) -> Evaluation:
        from sepnorm.domains.images.evaluation import evaluate

        return evaluate(encoder, task)

    def trial(self, config: ImageConfig) -> tuple[nn.Module, Callable[[int], dict[str, Any]]]:
        from sepnorm.domains.images.model import MaskedAutoencoder, made_up_batch

        return MaskedAutoencoder(config), lambda count: made_up_batch(config, count)

    def next_commands(self, folder: Path, config: ImageConfig) -> list[str]:
        model = quote(str(folder / "model"))
        usual = super().next_commands(folder, config)
        return [f"evaluate {model} --data {quote(config.data)}", *usual, f"export {model} --out model.onnx"]

    def sections(self, arms: Sequence[Arm], seed: int) -> list[Section]:
        from sepnorm.domains.images.pictures import reconstructions

        found = reconstructions(arms, seed)
        return [] if found is None else [found]


DOMAIN = Images()
