"""``diagnose``: has [CLS] collapsed, at which layer, and what to do about it."""

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

#: Samples of the data that a model is run on unless told otherwise.
MODEL_SAMPLES = 2000
_SHOWN = 2000  # points of the map
_TOKENS = 2048  # token vectors that are kept for the histogram

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
        target: a ``.npy``, ``.npz``, ``.parquet`` or ``.csv`` of embeddings; or a folder of ``sepnorm.save``, transformers or
            sentence-transformers, a hub name, or ``timm:NAME``.
        data: for models, what to run them on (see ``sepnorm.data.records``).
        column: which column holds the embeddings, texts or images, if that is not clear.
        label: which column of a file of embeddings holds labels.
        split: of a ``datasets`` name.
        max_samples: how many samples to use; by default all of a file, and 2,000 for a model.
        device: of a model, ``auto`` for the fastest, or as torch writes it.
        progress: called with the number of samples done, and the number there are, where it is known.
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
        raise SepNormError(f"{data} gave {count} samples, and at least two are needed: pairs of them are compared.")


def _lidar(points: Points) -> float | None:
    """Of the points that are shown; None where labels are missing, one, or all different."""
    if points.labels is None or not 1 < len(set(points.labels)) < len(points.labels):
        return None
    return lidar(points.rows, points.labels)


def _points(cloud: Cloud, known: dict[int, tuple[str | None, str]]) -> Points:
    """Some of the sample, with the labels and names that were kept of it."""
    rows, numbers = cloud.sampled()
    every = torch.linspace(0, len(rows) - 1, min(len(rows), _SHOWN)).long()  # the sample is in the order of arrival
    shown = [known[number] for number in numbers[every].tolist()]
    labels = [label for label, _ in shown if label is not None]
    drawn = rows[every].clamp(-1e30, 1e30).float()  # more than figures can show
    return Points(drawn, labels if len(labels) == len(shown) else None, [name for _, name in shown])
