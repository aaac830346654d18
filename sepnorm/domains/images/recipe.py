"""One run on images: pretrain without labels, re-estimate statistics on whole images, encode, probe, measure, save."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import closing
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
from sepnorm.domains.probes import Split, centred, knn_probe, linear_probe, linear_scores, shape, whitened
from sepnorm.errors import SepNormError
from sepnorm.experiment.runs import Outcome
from sepnorm.pooling import pool
from sepnorm.surgery import model_call
from sepnorm.surgery.calibration import calibrate
from sepnorm.surgery.conversion import convert
from sepnorm.surgery.inspection import Inspection, inspect
from sepnorm.surgery.saving import save
from sepnorm.training.batching import Samples, Steps
from sepnorm.training.monitored import Monitored
from sepnorm.training.prefetch import prefetched
from sepnorm.training.trainer import Report, Trained, train

_BATCH = 256  # images encoded at a time
# test images reconstructed; test images inspected; token vectors kept of the latter
_DRAWN, _INSPECTED, _TOKENS = 8, 512, 4096
_MONITORED = 256  # images on which [CLS] is measured during training
_QUICK = 2000  # training and test images that show the effect of re-estimated statistics


class ImageRecipe:
    """Reads the data of a config, and runs any config with the same data."""

    def __init__(self, config: ImageConfig) -> None:
        self.stream = None if config.stream is None else ImageStream(config)
        self.data: ImageData = self.stream.data if self.stream is not None else _load(config)
        labels = self.data.train.labels
        if labels is not None and len(labels.unique()) < 2:
            raise SepNormError(one_class(len(labels), self.data.train.classes[int(labels[0])]))
        self._mean, self._std = (torch.tensor(v)[:, None, None] for v in (self.data.mean, self.data.std))

    def run(self, config: ImageConfig, folder: Path, report: Report | None = None) -> Outcome:
        """Pretrains, re-estimates batch statistics on whole images, and measures before and after that."""
        model, trained, monitored = self.watched(config, folder, report)
        some = self.data.test.images[evenly(len(self.data.test), _DRAWN)]
        drawn = reconstruct(model, some, self._mean, self._std)  # while statistics are those of masked images
        before: dict[str, float] = {}
        if config.uses_batch:
            before = self._quick_probes(model)
            self.recalibrate(model)
        metrics, embeddings = self.measure(model)
        if before:
            few = max(len(self.data.train), len(self.data.test)) <= _QUICK  # then both probes are the same
            after = {key: metrics[f"cls_{key}"] for key in before} if few else self._quick_probes(model)
            metrics |= {f"recalibration_gain_{key.removesuffix('_top1')}": after[key] - before[key] for key in before}
        metrics |= {"loss": trained.losses[-1][1], "images_per_second": trained.rate}
        layers, embeddings["tokens"] = self.look_inside(model)
        save_to = partial(self.save, model)
        return Outcome(
            metrics,
            trained.losses,
            embeddings,
            save_to,
            layers,
            {RECONSTRUCTIONS: drawn} | monitored,
            resumed_from=trained.resumed_from,
        )

    def save(self, model: MaskedAutoencoder, folder: Path) -> None:
        """Saves the encoder alone, as ``ViTMAEModel``, with its input settings."""
        from sepnorm.data.pixels import Picture

        folder.mkdir(parents=True, exist_ok=True)
        vit, settings = model.mae.vit, model.settings
        if settings.norm == "ln" and settings.num_cls > 1:  # transformers would not open it; ln+ln has the same outputs
            vit = copy.deepcopy(vit)
            convert(vit, "ln+ln", sites="final", num_cls=settings.num_cls)
        if settings.norm == "ln" and settings.num_cls == 1:
            vit.save_pretrained(folder)
        else:
            save(vit, folder)
        size = settings.image_size
        Picture((size, size), self.data.mean, self.data.std).save(folder)

    def pixels(self, images: Tensor) -> Tensor:
        """Standardises images given as bytes."""
        return images.to(self._mean.dtype).div_(255).sub_(self._mean).div_(self._std)

    def pretrain(
        self, config: ImageConfig, folder: Path, report: Report | None = None
    ) -> tuple[MaskedAutoencoder, Trained]:
        return self.watched(config, folder, report)[:2]

    def watched(
        self, config: ImageConfig, folder: Path, report: Report | None = None
    ) -> tuple[MaskedAutoencoder, Trained, dict[str, dict[str, Tensor]]]:
        """Pretrains, and records the geometry of [CLS] of some whole images during training."""
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

            steps = prefetched(config, config.stream, partial(stream.open, config.order_seed), read)
        shown = self.data.train.take(evenly(len(self.data.train), _MONITORED))
        more = partial(self._probes_on_the_way, model) if config.probes else None
        monitored = Monitored(model, lambda _, batch: self.encode(model, shown), config.monitor, more=more)
        with closing(steps):
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
        """The encoder's input with patches in order. Without noise they are shuffled, differently each time."""
        return {"pixel_values": self.pixels(images), "noise": in_order(model.mae.vit, len(images))}

    def encode(self, model: MaskedAutoencoder, images: ImageSet) -> tuple[Tensor, Tensor]:
        """[CLS] and mean of tokens (count, width) of whole images."""
        found = self.vectors(model, images, ("cls", "mean"))
        return found["cls"], found["mean"]

    @torch.no_grad()
    def vectors(self, model: MaskedAutoencoder, images: ImageSet, poolings: Sequence[str]) -> dict[str, Tensor]:
        """Vectors (count, size) of whole images by each pooling; tokens are the patches."""
        encoder: Any = model.mae.vit.eval()
        found: dict[str, list[Tensor]] = {name: [] for name in poolings}
        with unmasked(encoder):
            for part in images.images.split(_BATCH):
                hidden = model_call.call(encoder, self._whole(model, part)).last_hidden_state.float()
                for name, rows in found.items():
                    rows.append(pool(name, hidden[:, 0], hidden[:, model.settings.num_cls :]).cpu())
        return {name: torch.cat(rows) for name, rows in found.items()}

    def recalibrate(self, model: MaskedAutoencoder) -> None:
        """Measures the batch statistics, learnt on masked images, again on whole images."""
        images = self.data.train.images
        some = images[evenly(len(images), 8 * _BATCH)]
        with unmasked(model.mae.vit):
            calibrate(model.mae.vit, [self._whole(model, part) for part in some.split(_BATCH) if len(part) > 1])

    @torch.no_grad()
    def look_inside(self, model: MaskedAutoencoder) -> tuple[Inspection, Tensor]:
        """Statistics of the norms on some whole test images, and some token vectors (count, width)."""
        encoder: Any = model.mae.vit.eval()
        images = self.data.test.images[evenly(len(self.data.test), _INSPECTED)]
        batches = [self._whole(model, part) for part in images.split(_BATCH)]
        with unmasked(encoder):
            layers = inspect(encoder, batches)
            states = [model_call.call(encoder, batch).last_hidden_state.float().cpu() for batch in batches]
            tokens = torch.cat(states)[:, model.settings.num_cls :]
        return layers, some_tokens(tokens, _TOKENS)

    def _quick_probes(self, model: MaskedAutoencoder) -> dict[str, float]:
        """Probes of [CLS] on some images, to show the effect of re-estimated statistics."""
        train, test = (images.take(evenly(len(images), _QUICK)) for images in (self.data.train, self.data.test))
        if train.labels is None or test.labels is None:
            return {}
        split = Split(self.encode(model, train)[0], train.labels, self.encode(model, test)[0], test.labels)
        return {"linear_top1": linear_probe(split, standardise=False)["top1"], "knn": knn_probe(split)}

    def _probes_on_the_way(self, model: MaskedAutoencoder) -> dict[str, float]:
        """Probes during training, with batch statistics of whole images as at the end. The caller restores the run's."""
        if model.settings.uses_batch:
            self.recalibrate(model)
        return {f"cls_{key}": value for key, value in self._quick_probes(model).items()}

    def measure(self, model: MaskedAutoencoder) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Probes of [CLS], mean and moments of tokens; geometry of the first two; and their features."""
        names = ["cls", "mean", "moments"] if model.settings.patches > 1 else ["cls", "mean"]
        train, test = (self.vectors(model, part, names) for part in (self.data.train, self.data.test))
        metrics: dict[str, float] = {}
        right: dict[str, Tensor] = {}
        for name in names:
            found: dict[str, float] = {}
            if self.data.train.labels is not None and self.data.test.labels is not None:
                labels = (self.data.train.labels, self.data.test.labels)
                split = Split(train[name], labels[0], test[name], labels[1])
                found, right[name] = linear_scores(split, wide=name == "moments")
                found["knn"] = knn_probe(split)
                for way, change in (("centred", centred), ("whitened", whitened)) if name != "moments" else ():
                    both = change(train[name], train[name]), change(train[name], test[name])
                    found[f"{way}_knn"] = knn_probe(Split(both[0], labels[0], both[1], labels[1]))
            if name != "moments":
                found |= shape(test[name])
            metrics |= {f"{name}_{key}": value for key, value in found.items()}
        embeddings = {"cls": test["cls"], "mean": test["mean"]} | {
            f"{name}_right": each for name, each in right.items()
        }
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
    """At most ``most`` distinct vectors of (images, places, width), evenly over images and places."""
    images, places, _ = tokens.shape
    number = torch.arange(min(most, images * places))
    return tokens[number * images // len(number), number % places]
