"""One run on images: pretrain without labels, re-estimate the statistics on whole images, encode, probe, measure, save."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.choices import evenly
from sepnorm.domains.images.augmentation import augment
from sepnorm.domains.images.config import ImageConfig
from sepnorm.domains.images.data import ImageData, ImageSet, load_images
from sepnorm.domains.images.encoder import in_order, unmasked
from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.domains.images.pictures import FILE as RECONSTRUCTIONS
from sepnorm.domains.images.pictures import reconstruct
from sepnorm.domains.images.places import one_class
from sepnorm.domains.images.streaming import ImageStream
from sepnorm.domains.probes import Split, both_linear_probes, centred, knn_probe, linear_probe, shape, whitened
from sepnorm.errors import SepNormError
from sepnorm.experiment.runs import Outcome
from sepnorm.surgery import model_call as feed
from sepnorm.surgery.calibration import calibrate
from sepnorm.surgery.conversion import convert
from sepnorm.surgery.inspection import Inspection, inspect
from sepnorm.surgery.saving import save
from sepnorm.training.batching import Samples, Steps, StreamedSteps
from sepnorm.training.monitored import Monitored
from sepnorm.training.trainer import Report, Trained, train

_BATCH = 256  # images encoded at a time
_DRAWN, _INSPECTED, _TOKENS = 8, 512, 4096  # test images reconstructed, and inspected; token vectors kept of the latter
_MONITORED = 256  # images that [CLS] is measured on while the model trains
_QUICK = 2000  # images for training and for testing that show what re-estimated statistics change


class ImageRecipe:
    """The data of a config, and what a run of any config with the same data does."""

    def __init__(self, config: ImageConfig) -> None:
        self.stream = None if config.stream is None else ImageStream(config)
        self.data: ImageData = self.stream.data if self.stream is not None else _load(config)
        labels = self.data.train.labels
        if labels is not None and len(labels.unique()) < 2:
            raise SepNormError(one_class(len(labels), self.data.train.classes[int(labels[0])]))
        self._mean, self._std = (torch.tensor(v)[:, None, None] for v in (self.data.mean, self.data.std))

    def run(self, config: ImageConfig, folder: Path, report: Report | None = None) -> Outcome:
        """Pretrains, re-estimates batch statistics on whole images, and measures, before that and after."""
        model, trained, monitored = self.watched(config, folder, report)
        some = self.data.test.images[evenly(len(self.data.test), _DRAWN)]
        drawn = reconstruct(model, some, self._mean, self._std)  # while the statistics are those of masked images
        before: dict[str, float] = {}
        if config.uses_batch:
            before = self._quick_probes(model)
            self.recalibrate(model)
        metrics, embeddings = self.measure(model)
        if before:
            few = max(len(self.data.train), len(self.data.test)) <= _QUICK  # then they are the same probes
            after = {key: metrics[f"cls_{key}"] for key in before} if few else self._quick_probes(model)
            metrics |= {f"recalibration_gain_{key.removesuffix('_top1')}": after[key] - before[key] for key in before}
        metrics |= {"loss": trained.losses[-1][1], "images_per_second": trained.rate}
        layers, embeddings["tokens"] = self.look_inside(model)
        save_to = partial(self.save, model)
        return Outcome(metrics, trained.losses, embeddings, save_to, layers, {RECONSTRUCTIONS: drawn} | monitored)

    def save(self, model: MaskedAutoencoder, folder: Path) -> None:
        """The encoder alone, as ``ViTMAEModel``, with what its input needs."""
        from sepnorm.data.pixels import Picture

        folder.mkdir(parents=True, exist_ok=True)
        vit, settings = model.mae.vit, model.settings
        if settings.norm == "ln" and settings.num_cls > 1:  # transformers would not open it; of the same outputs:
            vit = copy.deepcopy(vit)
            convert(vit, "ln+ln", sites="final", num_cls=settings.num_cls)
        if settings.norm == "ln" and settings.num_cls == 1:
            vit.save_pretrained(folder)
        else:
            save(vit, folder)
        size = settings.image_size
        Picture((size, size), self.data.mean, self.data.std).save(folder)

    def pixels(self, images: Tensor) -> Tensor:
        """Bytes to numbers of mean 0 and deviation 1."""
        return (images.float() / 255 - self._mean) / self._std

    def pretrain(
        self, config: ImageConfig, folder: Path, report: Report | None = None
    ) -> tuple[MaskedAutoencoder, Trained]:
        return self.watched(config, folder, report)[:2]

    def watched(
        self, config: ImageConfig, folder: Path, report: Report | None = None
    ) -> tuple[MaskedAutoencoder, Trained, dict[str, dict[str, Tensor]]]:
        """Pretrains, and keeps how [CLS] of some whole images lay on the way."""
        model = MaskedAutoencoder(config)

        steps: Steps
        stream = self.stream
        if stream is None or config.stream is None:
            steps = Steps(
                config, self._samples(config, len(self.data.train), lambda rows: self.data.train.images[rows])
            )
        else:

            def read(encoded: list[Any]) -> Samples:
                return self._samples(
                    config, len(encoded), lambda rows: stream.decode(encoded[row] for row in rows.tolist())
                )

            steps = StreamedSteps(config, config.stream, stream.open(config.order_seed), read)
        shown = self.data.train.take(evenly(len(self.data.train), _MONITORED))
        monitored = Monitored(model, lambda _, batch: self.encode(model, shown), config.monitor)
        trained = train(model, steps, folder, report, monitored)
        return model, trained, monitored.arrays()

    def _samples(self, config: ImageConfig, count: int, take: Callable[[Tensor], Tensor]) -> Samples:
        def make(chosen: Tensor, own: slice, generator: torch.Generator) -> dict[str, Any]:
            pixels = self.pixels(take(chosen[own]))
            if config.smallest_crop < 1 or config.flip:
                draws = torch.rand(5, len(chosen), generator=generator)
                pixels = augment(pixels, draws[:, own], config.smallest_crop, config.flip)
            return {"pixel_values": pixels, "noise": torch.rand(len(chosen), config.patches, generator=generator)[own]}

        return Samples(count, make)

    def _whole(self, model: MaskedAutoencoder, images: Tensor) -> dict[str, Tensor]:
        """What the encoder takes, with the patches in their order: without noise they are shuffled, by other draws each time."""
        return {"pixel_values": self.pixels(images), "noise": in_order(model.mae.vit, len(images))}

    @torch.no_grad()
    def encode(self, model: MaskedAutoencoder, images: ImageSet) -> tuple[Tensor, Tensor]:
        """[CLS] and mean of tokens (count, width) of whole images."""
        encoder: Any = model.mae.vit.eval()
        cls, pooled = [], []
        with unmasked(encoder):
            for part in images.images.split(_BATCH):
                hidden = feed.call(encoder, self._whole(model, part)).last_hidden_state.float()
                cls.append(hidden[:, 0].cpu())
                pooled.append(hidden[:, model.settings.num_cls :].mean(1).cpu())
        return torch.cat(cls), torch.cat(pooled)

    def recalibrate(self, model: MaskedAutoencoder) -> None:
        """Statistics learnt on masked images, measured anew on whole ones."""
        images = self.data.train.images
        some = images[evenly(len(images), 8 * _BATCH)]
        with unmasked(model.mae.vit):
            calibrate(model.mae.vit, [self._whole(model, part) for part in some.split(_BATCH) if len(part) > 1])

    @torch.no_grad()
    def look_inside(self, model: MaskedAutoencoder) -> tuple[Inspection, Tensor]:
        """What goes through the norms for some whole test images, and some token vectors (count, width) that come out."""
        encoder: Any = model.mae.vit.eval()
        images = self.data.test.images[evenly(len(self.data.test), _INSPECTED)]
        batches = [self._whole(model, part) for part in images.split(_BATCH)]
        with unmasked(encoder):
            layers = inspect(encoder, batches)
            states = [feed.call(encoder, batch).last_hidden_state.float().cpu() for batch in batches]
            tokens = torch.cat(states)[:, model.settings.num_cls :]
        return layers, some_tokens(tokens, _TOKENS)

    def _quick_probes(self, model: MaskedAutoencoder) -> dict[str, float]:
        """Probes of [CLS] on some of the images, for what re-estimated statistics change."""
        train, test = (images.take(evenly(len(images), _QUICK)) for images in (self.data.train, self.data.test))
        if train.labels is None or test.labels is None:
            return {}
        split = Split(self.encode(model, train)[0], train.labels, self.encode(model, test)[0], test.labels)
        return {"linear_top1": linear_probe(split, standardise=False)["top1"], "knn": knn_probe(split)}

    def measure(self, model: MaskedAutoencoder) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Probes and geometry of [CLS] and of the mean of tokens, and the features themselves."""
        train_cls, train_mean = self.encode(model, self.data.train)
        test_cls, test_mean = self.encode(model, self.data.test)
        metrics: dict[str, float] = {}
        right: dict[str, Tensor] = {}
        for name, rows, test_rows in (("cls", train_cls, test_cls), ("mean", train_mean, test_mean)):
            found: dict[str, float] = {}
            if self.data.train.labels is not None and self.data.test.labels is not None:
                labels = (self.data.train.labels, self.data.test.labels)
                split = Split(rows, labels[0], test_rows, labels[1])
                found, right[name] = both_linear_probes(split)
                found["knn"] = knn_probe(split)
                for way, change in (("centred", centred), ("whitened", whitened)):
                    both = change(rows, rows), change(rows, test_rows)
                    found[f"{way}_knn"] = knn_probe(Split(both[0], labels[0], both[1], labels[1]))
            metrics |= {f"{name}_{key}": value for key, value in (found | shape(test_rows)).items()}
        embeddings = {"cls": test_cls, "mean": test_mean} | {f"{name}_right": each for name, each in right.items()}
        if self.data.test.labels is not None:
            embeddings["labels"] = self.data.test.labels
        return metrics, embeddings


def _load(config: ImageConfig) -> ImageData:
    return load_images(
        config.data,
        config.image_size,
        config.channels,
        column=config.column,
        label=config.label,
        most=config.pretrain_images,
    )


def some_tokens(tokens: Tensor, most: int) -> Tensor:
    """At most ``most`` different vectors of (images, places, width), as many of each image and of each place as can be."""
    images, places, _ = tokens.shape
    number = torch.arange(min(most, images * places))
    return tokens[number * images // len(number), number % places]
