"""``sepnorm evaluate``: what a saved model is worth: images by probes, geometry and fine-tuning, text by STS and transfer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from sepnorm.domains.embedding import ImageBody, choose, make_folder, model_folder, pooled, to_fastest_device
from sepnorm.domains.encoders import Encoder, open_encoder
from sepnorm.domains.finetuning import finetune
from sepnorm.domains.images.data import ImageData, load_images
from sepnorm.domains.probes import Split, probe, shape
from sepnorm.errors import SepNormError
from sepnorm.experiment.runs import slug
from sepnorm.files import write_arrays, write_text
from sepnorm.report.diagnosis import finite
from sepnorm.surgery.families import is_timm

PROBES = ("linear", "knn", "finetune")
POOLINGS = ("cls", "mean", "both")
_BATCH = 256  # images encoded at a time

Progress = Callable[[int, int | None], None]


@dataclass(eq=False)
class Evaluation:
    """The metrics of a model on data, by names as ``cls_linear_top1`` or ``stsb``, and a sentence on what was used."""

    model: str
    data: str | None
    used: str
    metrics: dict[str, float] = field(default_factory=dict)


def evaluate(
    target: str,
    data: str | None = None,
    *,
    on: str = "",
    pooling: str = "",
    column: str | None = None,
    label: str | None = None,
    folder: Path | None = None,
    progress: Callable[[str], Progress | None] | None = None,
) -> tuple[Evaluation, Path]:
    """Measures a model, and writes ``results.json``, for images with ``features.npz``, to a folder, which it returns too.

    Images: ``on`` some of ``PROBES`` with labelled ``data``, by default ``linear,knn`` and both poolings. Text: ``on`` what
    ``sepnorm.domains.text.sets.load_sets`` takes, by default ``sts`` and [CLS]. ``progress(what)`` gives what is called while that
    is done.
    """
    names = [name.strip() for name in on.split(",") if name.strip()]
    if pooling:
        choose("pooling", pooling, POOLINGS)
    encoder = open_encoder(model_folder(target))
    folder = folder or default_folder(target)
    make_folder(folder)
    to_fastest_device(encoder.model)
    if encoder.kind == "images":
        if data is None:
            raise SepNormError(
                f"{target} is a model of images: say by --data on which labelled ones it is to be probed."
            )
        probes = [choose("probe", name, PROBES) for name in names] or ["linear", "knn"]
        found = _evaluate_images(
            encoder, data, probes, pooling or "both", column, label, folder, progress or (lambda what: None)
        )
    elif encoder.kind == "molecules":
        if names or pooling not in ("", "cls", None):
            raise SepNormError("a model of molecules is probed by its [VNode] on tables: leave --on and --pooling out.")
        if data is None:
            raise SepNormError(
                f"{target} is a model of molecules: say by --data on which table, or folder of some, to probe it."
            )
        found = _evaluate_molecules(encoder, data, column)
    else:
        found = _evaluate_text(encoder, data, names or ["sts"], pooling or "cls")
    text = json.dumps(finite(asdict(found)), indent=1)
    write_text(folder / "results.json", text)
    return found, folder


def _evaluate_text(encoder: Encoder, data: str | None, names: Sequence[str], pooling: str) -> Evaluation:
    from sepnorm.domains.text.embedding import sentence_embedder
    from sepnorm.domains.text.evaluation import score_sets
    from sepnorm.domains.text.sets import load_sets

    sets = load_sets(names, data)
    found = Evaluation(encoder.name, data, f"{', '.join(sets)}, with {'[CLS]' if pooling == 'cls' else pooling}")
    for place in ("cls", "mean") if pooling == "both" else (pooling,):
        scores = score_sets(sets, sentence_embedder(encoder, place))
        found.metrics |= {f"{place}_{key}" if pooling == "both" else key: value for key, value in scores.items()}
    return found


def default_folder(target: str) -> Path:
    """``runs/evaluate-NAME``; a run's model is called as the run."""
    path = Path(target)
    name = path.resolve().parent.name if path.name == "model" else path.name if path.exists() else target
    return Path("runs") / f"evaluate-{slug(name)}"


def _evaluate_images(
    encoder: Encoder,
    data: str,
    probes: Sequence[str],
    pooling: str,
    column: str | None,
    label: str | None,
    folder: Path,
    progress: Callable[[str], Progress | None],
) -> Evaluation:
    height, width = encoder.prepare.size
    if height != width:
        raise SepNormError(f"{encoder.name} takes images of {height} x {width}: only square ones can be evaluated.")
    images = load_images(data, height, len(encoder.prepare.mean), column=column, label=label)
    if images.train.labels is None or images.test.labels is None:
        raise SepNormError(
            f"{data} has images without a label, and evaluate needs one for each: put the images of each class in a folder "
            "of its own, or name the column by --label."
        )
    classes = len(images.train.classes)
    used = f"{len(images.train):,} images for training, {len(images.test):,} for testing, {classes} classes"
    found = Evaluation(encoder.name, data, used)
    features = _features(encoder, images, progress("features"))
    write_arrays(folder / "features.npz", features)
    for place in ("cls", "mean") if pooling == "both" else (pooling,):
        rows = [features[f"{part}_{name}"] for part in ("train", "test") for name in (place, "labels")]
        split = Split(*rows)
        measured = probe(split, probes) | shape(split.test)
        found.metrics |= {f"{place}_{key}": value for key, value in measured.items()}
    if "finetune" in probes:
        dim = features["test_cls"].shape[1]
        tuned = finetune(
            ImageBody(encoder.model),
            dim,
            classes,
            (images.train.images, images.train.labels),
            (images.test.images, images.test.labels),
            lambda part: _pixels(encoder, part),
            progress=progress("finetune"),
        )
        found.metrics |= {f"finetune_{key}": value for key, value in tuned.items()}
    return found


def _pixels(encoder: Encoder, images: Tensor) -> Tensor:
    """From bytes to what the encoder takes."""
    return (images.float() / 255 - encoder.prepare.mean) / encoder.prepare.std


def _evaluate_molecules(encoder: Encoder, data: str, column: str | None) -> Evaluation:
    """Linear probes on every table, split by scaffold."""
    from sepnorm.domains.molecules.config import PRESETS
    from sepnorm.domains.molecules.data import load_probed
    from sepnorm.domains.molecules.recipe import probe_set

    given = {"task": "pretrain", "test": data, "features": encoder.model.config.features}
    sets = load_probed(PRESETS["demo"].changed(given), column)
    parts = [f"{name}: {len(one.train):,} / {len(one.valid):,} / {len(one.test):,}" for name, one in sets.items()]
    found = Evaluation(encoder.name, data, f"molecules for training / validation / test of {', '.join(parts)}")
    for name, one in sets.items():
        found.metrics |= {f"probe_{name}_{key}": value for key, value in probe_set(encoder.model, one).items()}
    return found


def _features(encoder: Encoder, images: ImageData, progress: Progress | None) -> dict[str, Tensor]:
    """[CLS] and mean of tokens (count, dim) of training and test images, and labels (count,)."""
    found: dict[str, Tensor] = {}
    done, total = 0, len(images.train) + len(images.test)
    with encoder.evaluating():
        for part, some in (("train", images.train), ("test", images.test)):
            rows: dict[str, list[Tensor]] = {"cls": [], "mean": []}
            for batch in some.images.split(_BATCH):
                pixels = _pixels(encoder, batch)
                encoded = encoder.encode(pixels if is_timm(encoder.model) else {"pixel_values": pixels})
                for place, vectors in rows.items():
                    vectors.append(pooled(encoded, place, encoder.kind))
                done += len(batch)
                if progress is not None:
                    progress(done, total)
            found |= {f"{part}_{place}": torch.cat(vectors) for place, vectors in rows.items()}
            assert some.labels is not None
            found[f"{part}_labels"] = some.labels
    return found
