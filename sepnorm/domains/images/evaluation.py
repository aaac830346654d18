"""Evaluates image encoders: probes and geometry of frozen features, and fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sepnorm.domains.evaluation import Evaluation, Progress, Task
from sepnorm.domains.images.data import ImageData, load_images
from sepnorm.domains.images.encoder import ImageBody, ImageEncoder
from sepnorm.domains.images.finetuning import finetune
from sepnorm.domains.probes import Split, probe, shape
from sepnorm.domains.requests import NEED_CLS
from sepnorm.errors import SepNormError, require_known
from sepnorm.files import make_folder, write_arrays

PROBES = ("linear", "knn", "finetune")
_BATCH = 256  # images encoded at a time


def evaluate(encoder: ImageEncoder, task: Task) -> Evaluation:
    """Runs the probes ``task.on`` (default ``linear`` and ``knn``) on labelled images; writes ``features.npz``."""
    if task.data is None:
        raise SepNormError(f"{encoder.name} is an image model: add --data with labelled images to probe it on.")
    probes = [require_known("probe", name, PROBES) for name in task.on] or ["linear", "knn"]
    height, width = encoder.prepare.size
    if height != width:
        raise SepNormError(f"{encoder.name} takes images of {height} x {width}: only square ones can be evaluated.")
    images = load_images(task.data, height, len(encoder.prepare.mean), column=task.column, label=task.label)
    if images.train.labels is None or images.test.labels is None:
        raise SepNormError(
            f"{task.data} has images without a label, and evaluate needs one for each: put the images of each class in a folder "
            "of its own, or name the column by --label."
        )
    classes = len(images.train.classes)
    used = f"{len(images.train):,} images for training, {len(images.test):,} for testing, {classes} classes"
    found = Evaluation(encoder.name, task.data, used)
    places = task.poolings(("cls", "mean", "moments"))
    if "finetune" in probes or (task.pooling and set(NEED_CLS) & set(places)):
        encoder.require_cls()
    if not encoder.has_cls:
        places = tuple(place for place in places if place not in NEED_CLS)
        found.used += "; the model has no [CLS], so these are of its tokens"
    read = [*places, "cls"] if "finetune" in probes else places
    features = _features(encoder, images, read, task.progress("features"))
    make_folder(task.folder)
    write_arrays(task.folder / "features.npz", features)
    for place in places:
        rows = [features[f"{part}_{name}"] for part in ("train", "test") for name in (place, "labels")]
        split = Split(*rows)
        measured = probe(split, probes, wide=place == "moments")
        if place != "moments":  # their many dimensions say little about collapse
            measured |= shape(split.test)
        found.metrics |= {f"{place}_{key}": value for key, value in measured.items()}
    if "finetune" in probes:
        tuned = finetune(
            ImageBody(encoder.model),
            features["test_cls"].shape[1],
            classes,
            (images.train.images, images.train.labels),
            (images.test.images, images.test.labels),
            lambda part: (part.float() / 255 - encoder.prepare.mean) / encoder.prepare.std,
            progress=task.progress("finetune"),
        )
        found.metrics |= {f"finetune_{key}": value for key, value in tuned.items()}
    return found


def _features(
    encoder: ImageEncoder, images: ImageData, places: Sequence[str], progress: Progress | None
) -> dict[str, Tensor]:
    """Vectors (count, size) of training and test images by each pooling, and labels (count,)."""
    found: dict[str, Tensor] = {}
    done, total = 0, len(images.train) + len(images.test)
    with encoder.evaluating():
        for part, some in (("train", images.train), ("test", images.test)):
            rows: dict[str, list[Tensor]] = {place: [] for place in places}
            for batch in some.images.split(_BATCH):
                encoded = encoder.encode(encoder.pixels(batch))
                for place, vectors in rows.items():
                    vectors.append(encoded.pooled(place))
                done += len(batch)
                if progress is not None:
                    progress(done, total)
            found |= {f"{part}_{place}": torch.cat(vectors) for place, vectors in rows.items()}
            assert some.labels is not None
            found[f"{part}_labels"] = some.labels
    return found
