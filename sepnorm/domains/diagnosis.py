"""``diagnose``: has [CLS] collapsed, at which layer, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import torch

from sepnorm.data.vectors import EmbeddingFile
from sepnorm.domains.encoders import Encoder, open_encoder
from sepnorm.domains.requests import check_diagnosis
from sepnorm.errors import SepNormError
from sepnorm.geometry import lidar, summarise
from sepnorm.geometry.cloud import SAMPLE, Cloud, Sample
from sepnorm.report.diagnosis import Diagnosis, Points
from sepnorm.report.verdict import judge
from sepnorm.surgery.inspection import conclude, watch
from sepnorm.training.devices import check_device

#: Default number of samples that a model is run on.
MODEL_SAMPLES = 2000
_SHOWN = 2000  # points of the map
_TOKENS = 2048  # token vectors kept for the histogram

Progress = Callable[[int, int | None], None]


def diagnose(
    target: str,
    data: str | None = None,
    *,
    column: str | None = None,
    label: str | None = None,
    split: str = "train",
    max_samples: int | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnoses a file of embeddings, or a model on data.

    Args:
        target: a ``.npy``, ``.npz``, ``.parquet`` or ``.csv`` file of embeddings; or a model: a folder of
            ``sepnorm.save``, transformers or sentence-transformers, a Hub name, or ``timm:NAME``.
        data: data to run a model on: a text file, table, folder of images or name of a Hugging Face dataset.
        column: column with the embeddings, texts or images; needed if several fit.
        label: column with labels in a file of embeddings.
        split: split of a Hugging Face dataset.
        max_samples: number of samples to use; default all of a file, 2,000 for a model.
        device: device for a model: ``auto`` for the fastest, or torch's name of one.
        progress: called with the number of samples done, and the total or None.

    Returns:
        The diagnosis: verdict, measures of [CLS] and mean of tokens, and statistics by layer.

    Raises:
        SepNormError: if the target or data cannot be read, or an argument does not fit.
    """
    check_diagnosis(target, data, column, label, max_samples)
    progress = progress or (lambda done, total: None)
    if data is None:
        return _of_file(EmbeddingFile(target, column, label), max_samples, progress)
    check_device(device)
    encoder = open_encoder(target)
    encoder.to_device(device)
    return _of_model(encoder, data, column, split, max_samples or MODEL_SAMPLES, progress)


def _of_file(file: EmbeddingFile, max_samples: int | None, progress: Progress) -> Diagnosis:
    cloud = Cloud(SAMPLE)
    known: dict[int, tuple[str | None, str]] = {}
    for part in file.parts():
        start = cloud.sample.seen
        room = len(part.rows) if max_samples is None else max_samples - start
        for number in cloud.add(part.rows[:room]).tolist():
            label = part.labels[number - start] if part.labels else None
            known[number] = label, part.names[number - start] if part.names else f"row {number + 1}"
        progress(cloud.sample.seen, file.count if max_samples is None else max_samples)
        if max_samples is not None and cloud.sample.seen >= max_samples:
            break
    found = summarise(cloud)
    found.notes = [note for note in (file.note, *found.notes) if note]
    verdict = judge(found, target=str(file.path))
    points = _points(cloud, known)
    return Diagnosis(str(file.path), None, verdict, found, points=points, lidar=_lidar(points))


def _of_model(
    encoder: Encoder, data: str, column: str | None, split: str, max_samples: int, progress: Progress
) -> Diagnosis:
    main, pooled, tokens = Cloud(SAMPLE), Cloud(SAMPLE), Sample(_TOKENS)
    known: dict[int, tuple[str | None, str]] = {}
    records = _counted(encoder.read(data, column, split), max_samples, data)
    watching: AbstractContextManager[list[Any]] = watch(encoder.model) if encoder.has_cls else nullcontext([])
    with watching as watchers, encoder.evaluating():
        for part, batch in encoder.batches(records):
            encoded = encoder.encode(batch)
            keep = encoded.keep.to(encoded.tokens.device)
            start = main.sample.seen
            for number in main.add(encoded.mean if encoded.cls is None else encoded.cls).tolist():
                record = part[number - start]
                known[number] = record.label, encoder.shown(record)
            if encoded.cls is not None:
                pooled.add(encoded.mean)
            tokens.add(encoded.tokens[keep].float().cpu())
            progress(main.sample.seen, max_samples)
    layers = conclude(encoder.model, watchers) if encoder.has_cls else None
    found = summarise(main)
    if not encoder.has_cls:
        found.notes.insert(
            0, f"{encoder.name} has no [CLS]: these are the means of its tokens, and no norm is looked at."
        )
    verdict = judge(found, target=encoder.name, data=data, layers=layers)
    mean = summarise(pooled) if encoder.has_cls else None
    points = _points(main, known)
    return Diagnosis(encoder.name, data, verdict, found, mean, layers, points, tokens.rows, _lidar(points))


def _counted(records: Iterator[Any], most: int, data: str) -> Iterator[Any]:
    count = 0
    for record in islice(records, most):
        count += 1
        yield record
    if count < 2:
        raise SepNormError(f"{data} has {count} samples, and at least two are needed, because pairs are compared.")


def _lidar(points: Points) -> float | None:
    """LiDAR of the points shown; None if labels are missing, all equal, or all different."""
    if points.labels is None or not 1 < len(set(points.labels)) < len(points.labels):
        return None
    return lidar(points.rows, points.labels)


def _points(cloud: Cloud, known: dict[int, tuple[str | None, str]]) -> Points:
    """Points for the map: a subset of the sample, with labels and names."""
    rows, numbers = cloud.sampled()
    every = torch.linspace(0, len(rows) - 1, min(len(rows), _SHOWN)).long()  # the sample is in the order of arrival
    shown = [known[number] for number in numbers[every].tolist()]
    labels = [label for label, _ in shown if label is not None]
    drawn = rows[every].clamp(-1e30, 1e30).float()  # beyond this plots overflow
    return Points(drawn, labels if len(labels) == len(shown) else None, [name for _, name in shown])
