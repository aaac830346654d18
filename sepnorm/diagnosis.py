"""``diagnose``: has [CLS] collapsed, at which layer, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.embedding_files import SUFFIXES, EmbeddingFile
from sepnorm.encoders import Encoder, open_encoder
from sepnorm.errors import SepNormError
from sepnorm.geometry import Summary, summarise
from sepnorm.geometry.cloud import SAMPLE, Cloud, Sample
from sepnorm.inspection import Inspection, conclude, watch
from sepnorm.verdict import Verdict, judge

#: Samples of the data that a model is run on unless told otherwise.
MODEL_SAMPLES = 2000
_SHOWN = 2000  # points of the map
_TOKENS = 2048  # token vectors that are kept for the histogram

Progress = Callable[[int, int | None], None]


@dataclass(eq=False)
class Points:
    """Some of the embeddings (count, dim) themselves, for figures: with labels and names where there are some."""

    rows: Tensor
    labels: list[str] | None
    names: list[str]


@dataclass(eq=False)
class Diagnosis:
    """What was found out about one target; ``as_dict`` is for machines, ``points`` and ``tokens`` are for figures.

    ``embeddings`` are those of the file, or the model's [CLS] after its last layer; ``mean_of_tokens`` is the pooling that
    one would use instead. ``layers`` has every norm of a model.
    """

    target: str
    data: str | None
    verdict: Verdict
    embeddings: Summary
    mean_of_tokens: Summary | None = None
    layers: Inspection | None = None
    points: Points | None = field(default=None, repr=False)
    tokens: Tensor | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dictionaries; a figure that is not defined is None."""
        return finite(
            {
                "target": self.target,
                "data": self.data,
                "verdict": asdict(self.verdict),
                "embeddings": self.embeddings.as_dict(),
                "mean_of_tokens": self.mean_of_tokens and self.mean_of_tokens.as_dict(),
                "layers": self.layers and self.layers.as_dicts(),
            }
        )


def diagnose(
    target: str,
    data: str | None = None,
    *,
    column: str | None = None,
    label: str | None = None,
    split: str = "train",
    max_samples: int | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnoses a file of embeddings, or a model on data.

    Args:
        target: a ``.npy``, ``.npz``, ``.parquet`` or ``.csv`` of embeddings; or a folder of ``sepnorm.save``, transformers or
            sentence-transformers, a hub name, or ``timm:NAME``.
        data: for models, what to run them on (see ``sepnorm.data``).
        column: which column holds the embeddings, texts or images, if that is not clear.
        label: which column of a file of embeddings holds labels.
        split: of a ``datasets`` name.
        max_samples: how many samples to use; by default all of a file, and 2,000 for a model.
        progress: called with the number of samples done, and the number there are, where it is known.
    """
    if max_samples is not None and max_samples < 2:
        raise SepNormError(f"max_samples is at least 2, since pairs are compared, found {max_samples}.")
    progress = progress or (lambda done, total: None)
    if Path(target).suffix.lower() in SUFFIXES:
        if data is not None:
            raise SepNormError(f"{target} holds embeddings already: --data is for models, leave it out.")
        return _of_file(EmbeddingFile(target, column, label), max_samples, progress)
    if label is not None:
        raise SepNormError(
            "--label names a column of a file of embeddings; for a model the labels are those of the data."
        )
    if data is None:
        _refuse_missing(target)
        raise SepNormError(
            f"{target} is taken for a model, which must be run on something: add --data, such as a text file, "
            "a table or a folder of images."
        )
    encoder = open_encoder(target)
    return _of_model(encoder, data, column, split, max_samples or MODEL_SAMPLES, progress)


def _refuse_missing(target: str) -> None:
    """What looks like a path and is none gets an answer of its own."""
    if not Path(target).exists() and (target.startswith((".", "/", "~")) or target.count("/") > 1):
        raise SepNormError(f"there is no file or folder {target}.")


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
    verdict = judge(found, target=str(file.path))
    return Diagnosis(str(file.path), None, verdict, found, points=_points(cloud, known))


def _of_model(
    encoder: Encoder, data: str, column: str | None, split: str, max_samples: int, progress: Progress
) -> Diagnosis:
    cls, pooled, tokens = Cloud(SAMPLE), Cloud(SAMPLE), Sample(_TOKENS)
    known: dict[int, tuple[str | None, str]] = {}
    records = _counted(encoder.read(data, column, split), max_samples, data)
    with watch(encoder.model) as watchers, encoder.evaluating():
        for part, batch in encoder.batches(records):
            encoded = encoder.encode(batch)
            keep = encoded.keep.to(encoded.tokens.device)
            start = cls.sample.seen
            for number in cls.add(encoded.cls).tolist():
                record = part[number - start]
                known[number] = record.label, str(record.content)[:200] if encoder.kind == "text" else record.name
            pooled.add((encoded.tokens * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp(min=1))
            tokens.add(encoded.tokens[keep].cpu())
            progress(cls.sample.seen, max_samples)
    layers = conclude(encoder.model, watchers)
    found = summarise(cls)
    verdict = judge(found, target=encoder.name, data=data, layers=layers)
    points = _points(cls, known)
    return Diagnosis(encoder.name, data, verdict, found, summarise(pooled), layers, points, tokens.rows)


def _counted(records: Iterator[Any], most: int, data: str) -> Iterator[Any]:
    count = 0
    for record in islice(records, most):
        count += 1
        yield record
    if count < 2:
        raise SepNormError(f"{data} gave {count} samples, and at least two are needed: pairs of them are compared.")


def _points(cloud: Cloud, known: dict[int, tuple[str | None, str]]) -> Points:
    """Some of the sample, with the labels and names that were kept of it."""
    rows, numbers = cloud.sampled()
    every = torch.linspace(0, len(rows) - 1, min(len(rows), _SHOWN)).long()  # the sample is in the order of arrival
    shown = [known[number] for number in numbers[every].tolist()]
    labels = [label for label, _ in shown if label is not None]
    drawn = rows[every].clamp(-1e30, 1e30).float()  # more than figures can show
    return Points(drawn, labels if len(labels) == len(shown) else None, [name for _, name in shown])


def finite(value: Any) -> Any:
    """The same with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
