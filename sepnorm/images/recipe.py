"""One run on images: pretrain without labels, re-estimate the statistics on whole images, encode, probe, measure, save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.calibration import calibrate
from sepnorm.encoders import in_order
from sepnorm.experiment import Outcome
from sepnorm.geometry import summary
from sepnorm.images.augmentation import augment
from sepnorm.images.config import ImageConfig
from sepnorm.images.data import ImageData, ImageSet, load_images
from sepnorm.images.model import MaskedAutoencoder
from sepnorm.probes import Split, knn_probe, linear_probe
from sepnorm.store import save
from sepnorm.training import Report, Steps, Trained, train

_BATCH = 256  # images encoded at a time


class ImageRecipe:
    """The data of a config, and what a run of any config with the same data does."""

    def __init__(self, config: ImageConfig) -> None:
        self.data: ImageData = load_images(
            config.data,
            config.image_size,
            config.channels,
            column=config.column,
            label=config.label,
            most=config.pretrain_images,
        )
        self._mean, self._std = (torch.tensor(v)[:, None, None] for v in (self.data.mean, self.data.std))

    def run(self, config: ImageConfig, folder: Path, report: Report | None = None) -> Outcome:
        """Pretrains, re-estimates batch statistics on whole images, and measures, before that and after."""
        model, trained = self.pretrain(config, folder, report)
        metrics, embeddings = self.measure(model)
        if "bn" in config.norm:
            masked = {
                f"masked_statistics_{key}": metrics[key] for key in ("cls_linear_top1", "cls_knn") if key in metrics
            }
            self.recalibrate(model)
            metrics, embeddings = self.measure(model)
            metrics |= masked
        metrics |= {"loss": trained.losses[-1][1], "images_per_second": trained.rate}
        return Outcome(metrics, trained.losses, embeddings, lambda place: self.save(model, place))

    def save(self, model: MaskedAutoencoder, folder: Path) -> None:
        """The encoder alone, as ``ViTMAEModel``, with what its input needs."""
        from sepnorm.picture import Picture

        folder.mkdir(parents=True, exist_ok=True)
        if model.settings.norm == "ln":
            model.mae.vit.save_pretrained(folder)
        else:
            save(model.mae.vit, folder)
        size = model.settings.image_size
        Picture((size, size), self.data.mean, self.data.std).save(folder)

    def pixels(self, images: Tensor) -> Tensor:
        """Bytes to numbers of mean 0 and deviation 1."""
        return (images.float() / 255 - self._mean) / self._std

    def pretrain(
        self, config: ImageConfig, folder: Path, report: Report | None = None
    ) -> tuple[MaskedAutoencoder, Trained]:
        model = MaskedAutoencoder(config)

        def make(chosen: Tensor, generator: torch.Generator) -> dict[str, Any]:
            pixels = self.pixels(self.data.train.images[chosen])
            pixels = augment(pixels, generator, config.smallest_crop, config.flip)
            return {"pixel_values": pixels, "noise": torch.rand(len(chosen), config.patches, generator=generator)}

        return model, train(model, Steps(config, len(self.data.train), make), folder, report)

    def _whole(self, model: MaskedAutoencoder, images: Tensor) -> dict[str, Tensor]:
        """What the encoder takes, with the patches in their order: without noise they are shuffled, by other draws each time."""
        return {"pixel_values": self.pixels(images), "noise": in_order(model.mae.vit, len(images))}

    @torch.no_grad()
    def encode(self, model: MaskedAutoencoder, images: ImageSet) -> tuple[Tensor, Tensor]:
        """[CLS] and mean of tokens (count, width) of whole images."""
        encoder: Any = model.mae.vit.eval()
        encoder.config.mask_ratio = 0.0
        try:
            cls, pooled = [], []
            for part in images.images.split(_BATCH):
                hidden = encoder(**self._whole(model, part)).last_hidden_state
                cls.append(hidden[:, 0])
                pooled.append(hidden[:, 1:].mean(1))
        finally:
            encoder.config.mask_ratio = model.settings.mask_ratio
        return torch.cat(cls), torch.cat(pooled)

    def recalibrate(self, model: MaskedAutoencoder) -> None:
        """Statistics learnt on masked images, measured anew on whole ones."""
        encoder: Any = model.mae.vit
        encoder.config.mask_ratio = 0.0
        try:
            images = self.data.train.images
            count = min(len(images), 8 * _BATCH)
            some = images[torch.arange(count) * len(images) // count]  # evenly: a table may be sorted by class
            calibrate(encoder, [self._whole(model, part) for part in some.split(_BATCH) if len(part) > 1])
        finally:
            encoder.config.mask_ratio = model.settings.mask_ratio

    def measure(self, model: MaskedAutoencoder) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Probes and geometry of [CLS] and of the mean of tokens, and the features themselves."""
        train_cls, train_mean = self.encode(model, self.data.train)
        test_cls, test_mean = self.encode(model, self.data.test)
        metrics: dict[str, float] = {}
        for name, rows in (("cls", test_cls), ("mean", test_mean)):
            found = summary(rows)
            metrics |= {f"{name}_uniformity": found.uniformity, f"{name}_effective_rank": found.effective_rank}
            metrics |= {f"{name}_mean_cosine": found.mean_cosine}
        if self.data.train.labels is not None and self.data.test.labels is not None:
            for name, train_rows, test_rows in (("cls", train_cls, test_cls), ("mean", train_mean, test_mean)):
                split = Split(train_rows, self.data.train.labels, test_rows, self.data.test.labels)
                plain, scaled = linear_probe(split, standardise=False), linear_probe(split, standardise=True)
                metrics |= {f"{name}_linear_{key}": value for key, value in plain.items() if key != "penalty"}
                metrics |= {f"{name}_linear_bn_{key}": value for key, value in scaled.items() if key != "penalty"}
                metrics[f"{name}_knn"] = knn_probe(split)
        embeddings = {"cls": test_cls, "mean": test_mean}
        if self.data.test.labels is not None:
            embeddings["labels"] = self.data.test.labels
        return metrics, embeddings
