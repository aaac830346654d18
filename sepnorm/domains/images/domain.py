"""Images: masked autoencoders, linear probes and nearest neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from sepnorm.domains import Domain, Look, Metric, Metrics
from sepnorm.domains.images.config import PRESETS, ImageConfig
from sepnorm.domains.images.places import one_class
from sepnorm.errors import SepNormError
from sepnorm.experiment.metrics import GEOMETRY, LOSS
from sepnorm.training.configs import RunConfig

if TYPE_CHECKING:
    from torch import nn

    from sepnorm.domains.encoders import Encoder
    from sepnorm.domains.evaluation import Evaluation, Task
    from sepnorm.domains.images.recipe import ImageRecipe
    from sepnorm.experiment.comparison import Arm
    from sepnorm.report.page import Section

METRICS = Metrics(
    [
        Metric("cls_linear_top1", "[CLS] linear", True, primary=True, beside="mean_linear_top1"),
        Metric("cls_linear_bn_top1", "[CLS] linear, with BN", True),
        Metric("cls_knn", "[CLS] kNN", True),
        Metric("mean_linear_top1", "mean linear", True),
        Metric("mean_knn", "mean kNN", True),
        Metric("moments_linear_top1", "moments linear", True),
        Metric("moments_knn", "moments kNN", True),
        *GEOMETRY,
        LOSS,
        Metric("cls_linear_top5", "[CLS] linear, top-5", True, shown=False),
        Metric("cls_linear_bn_top5", "[CLS] linear, with BN, top-5", True, shown=False),
        Metric("cls_centred_knn", "[CLS] kNN, centred", True, shown=False),
        Metric("cls_whitened_knn", "[CLS] kNN, whitened", True, shown=False),
        Metric("mean_linear_top5", "mean linear, top-5", True, shown=False),
        Metric("mean_linear_bn_top1", "mean linear, with BN", True, shown=False),
        Metric("mean_linear_bn_top5", "mean linear, with BN, top-5", True, shown=False),
        Metric("mean_centred_knn", "mean kNN, centred", True, shown=False),
        Metric("mean_whitened_knn", "mean kNN, whitened", True, shown=False),
        Metric("moments_linear_top5", "moments linear, top-5", True, shown=False),
        Metric("mean_uniformity", "mean uniformity", False, kind="geometry", shown=False),
        Metric("mean_effective_rank", "mean effective rank", True, kind="geometry", shown=False),
        Metric("mean_mean_cosine", "mean mean cosine", False, kind="geometry", shown=False),
        Metric("recalibration_gain_linear", "[CLS] linear, gain by statistics measured anew", True, shown=False),
        Metric("recalibration_gain_knn", "[CLS] kNN, gain by statistics measured anew", True, shown=False),
    ]
)


class Images(Domain):
    name = "images"
    presets = PRESETS
    arms = "ln,bn@final,bn+bn@final"
    metrics = METRICS

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> RunConfig:
        """The config. Without a preset, size and channels are taken from the user's data unless they are given."""
        if preset is not None or "data" not in given or given.get("stream") is not None:  # shards are not looked into
            return super().settings(preset, given)
        from sepnorm.domains.images.look import following, look_at

        self._refuse(given)
        preset, follow = following(look_at(str(given["data"]), given.get("column"), given.get("label")))
        if patch := given.get("patch_size"):
            follow["image_size"] = max(patch, follow["image_size"] - follow["image_size"] % patch)
        if "image_size" in given:
            follow.pop("patch_size", None)
        return super().settings(preset, {**follow, **given})

    def _refuse(self, given: Mapping[str, Any]) -> None:
        """Refuses settings that fit none of the possible presets, before images are read."""
        wrong = []
        for preset in ("demo", "small"):
            try:
                super().settings(preset, given)
                return
            except SepNormError as error:
                wrong.append(error)
        raise wrong[0]

    def look(self, config: ImageConfig) -> Look:
        model = f"a masked autoencoder of {config.depth} blocks, width {config.width}"
        scored = "probes on test images, where they have labels"
        if config.stream is not None:
            return Look(model, f"a stream of {Path(config.data).name}", scored)
        from sepnorm.domains.images.look import look_at

        seen = look_at(config.data, config.column, config.label)
        kind, taken_kind = ("grey" if grey else "in colour" for grey in (seen.grey, config.channels == 1))
        size, taken = f"{seen.size[0]}x{seen.size[1]}", f"{config.image_size}x{config.image_size}"
        of = f"{size}, {kind}"
        if (size, kind) != (taken, taken_kind):
            of += f", taken at {taken}" if kind == taken_kind else f", taken at {taken}, {taken_kind}"
        if seen.classes is not None and len(seen.classes) == 1:
            raise SepNormError(one_class(seen.train, seen.classes[0]))
        train = seen.train if config.pretrain_images is None else min(config.pretrain_images, seen.train or 2**60)
        count = "" if train is None else f"{train:,} "
        data = f"{count}images of {Path(config.data).name} ({of})"
        if seen.test is not None:
            scored = "the geometry of [CLS] alone, since the images have no labels"
        if seen.classes is not None:
            scored = (
                f"probes on {'' if seen.test is None else f'{seen.test:,} '}test images of {len(seen.classes)} classes"
            )
        return Look(model, data, scored, train)

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
