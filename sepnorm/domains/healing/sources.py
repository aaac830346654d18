"""Sources of vectors: an array, a file read in parts, or a model that is run on data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.data.columns import labels_of
from sepnorm.data.records import Record, rows_of
from sepnorm.data.vectors import EmbeddingFile
from sepnorm.domains.encoders import Encoder
from sepnorm.domains.healing.scoring import SCORED
from sepnorm.errors import SepNormError
from sepnorm.geometry.cloud import Sample, chunks, from_lists, refuse_or_warn_of_nonfinite
from sepnorm.geometry.linear_maps import Moments

Progress = Callable[[int, int | None], None]
#: Ways to turn tokens into one vector: [CLS], mean of tokens, or the sum of both.
POOLINGS = ("cls", "mean", "sum")
_RATED = ("sentence1", "sentence2", "score")
_DEVELOPMENT = ("dev", "validation", "val")
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_WIDEST = 8192  # dimensions; memory grows with the square of their number
_MISSING = 0.1  # largest share of samples without a label


@dataclass(eq=False)
class Source:
    """Vectors with what is known of them.

    ``moments`` are of all vectors, by pooling. ``rows`` (samples, dim) are some of them, with names and optionally
    labels.
    """

    name: str
    own: str  # the model's own pooling; empty for bare vectors
    moments: dict[str, Moments]
    rows: dict[str, Tensor]
    names: list[str]
    labels: list[str] | None = None
    views: dict[str, tuple[Tensor, Tensor]] | None = None
    pairs: tuple[dict[str, Tensor], dict[str, Tensor], Tensor] | None = None
    notes: list[str] = field(default_factory=list)
    origin: Any = None  # the file, the model's name, or the model itself; None for an array

    @property
    def count(self) -> int:
        return self.moments[self.own].count

    @property
    def dim(self) -> int:
        return self.moments[self.own].dim


def from_array(x: Any, labels: Sequence[Any] | None = None) -> Source:
    """Vectors (samples, dim) in memory, or a memory-mapped array."""
    given = from_lists(x)
    said = None if labels is None else labels_of(labels.tolist() if hasattr(labels, "tolist") else labels)
    count = len(given) if getattr(given, "ndim", 0) == 2 else 0
    if said is not None and len(said) != count:
        raise SepNormError(f"there are {len(said)} labels for {count} vectors: give one for each.")
    return _gathered("the vectors", ((rows, None, None) for rows in chunks(given)), said)


def from_file(file: EmbeddingFile, progress: Progress) -> Source:
    """Vectors of a file, with its labels if it has some."""

    def parts() -> Iterator[tuple[Tensor, list[str | None] | None, list[str] | None]]:
        done = 0
        for part in file.parts():
            yield part.rows, part.labels, part.names
            done += len(part.rows)
            progress(done, file.count)

    found = _gathered(str(file.path), parts(), None)
    found.notes += [file.note] if file.note else []
    found.origin = file
    return found


def _gathered(name: str, parts: Any, labels: list[str | None] | None) -> Source:
    moments: Moments | None = None
    sample = Sample(SCORED)
    known: dict[int, tuple[str | None, str]] = {}
    bad = kept = 0
    for rows, part_labels, part_names in parts:
        if rows.shape[1] > _WIDEST:
            raise SepNormError(
                f"{name} has vectors of {rows.shape[1]:,} dimensions, and {_WIDEST:,} are the most that are healed."
            )
        moments = moments or Moments(rows.shape[1])
        rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        finite = rows.isfinite().all(1)
        start = sample.seen
        for number in sample.add(rows).tolist():
            said = labels[number] if labels is not None else part_labels[number - start] if part_labels else None
            known[number] = said, part_names[number - start] if part_names else f"row {number + 1}"
        bad += int((~finite).sum())
        kept += int(finite.sum())
        if finite.any():
            moments.add(rows if finite.all() else rows[finite])
    refuse_or_warn_of_nonfinite(bad, kept)
    assert moments is not None
    finite = sample.rows.isfinite().all(1)
    rows = sample.rows[finite]
    chosen = [known[number] for number in sample.numbers[finite].tolist()]
    notes = [f"{bad} of {bad + kept} vectors hold NaN or infinity and were left out."] if bad else []
    places = [place for place, (label, _) in enumerate(chosen) if label is not None]
    if 0 < len(places) < len(chosen):
        few = len(places) < (1 - _MISSING) * len(chosen)
        notes.append(
            f"{len(chosen) - len(places)} of {len(chosen)} vectors have no label"
            + (", so labels are not used." if few else " and are left out of the choice.")
        )
        if not few:
            rows, chosen = rows[places], [chosen[place] for place in places]
    said = [label for label, _ in chosen if label is not None]
    return Source(
        name,
        "",
        {"": moments},
        {"": rows},
        [each for _, each in chosen],
        said if said and len(said) == len(chosen) else None,
        notes=notes,
    )


def from_model(
    encoder: Encoder,
    own: str,
    records: Iterator[Record],
    test: str | None,
    most: int,
    data: str,
    progress: Progress,
) -> Source:
    """Vectors of a model on data, by every pooling; with rated pairs, labels, or else two views of every sample."""
    kept = list(islice(records, most))
    if len(kept) < 2:
        raise SepNormError(f"{data} gave {len(kept)} samples: a map is estimated from many more.")
    rows = vectors_of(encoder, kept, lambda done: progress(done, len(kept)))
    if not all(bool(part.isfinite().all()) for part in rows.values()):
        raise SepNormError(
            f"{encoder.name} gives NaN or infinity on {data}: the model is broken, nothing can be healed."
        )
    moments = {pooling: Moments(part.shape[1]) for pooling, part in rows.items()}
    for pooling, part in rows.items():
        moments[pooling].add(part)
    named = [encoder.shown(record) for record in kept]
    found = Source(encoder.name, own, moments, rows, named)
    labelled = [record.label for record in kept if record.label is not None]
    if test is not None:
        found.pairs = _rated(encoder, test, found.notes)
    elif len(labelled) >= (1 - _MISSING) * len(kept):
        places = [number for number, record in enumerate(kept) if record.label is not None]
        found.rows = {pooling: part[places] for pooling, part in rows.items()}
        found.names, found.labels = [named[i] for i in places], [str(label) for label in labelled]
    else:
        found.views = _views(encoder, kept[:SCORED])
        found.rows = {pooling: part[:SCORED] for pooling, part in rows.items()}
        found.names = named[:SCORED]
    return found


def vectors_of(encoder: Encoder, records: Sequence[Record], report: Callable[[int], None]) -> dict[str, Tensor]:
    """Vectors (samples, dim) by pooling, in the order of the records."""
    place = {id(record): number for number, record in enumerate(records)}  # batches may come in another order
    found: dict[str, dict[int, Tensor]] = {}
    done = 0
    with encoder.evaluating():
        for part, batch in encoder.batches(iter(records)):
            encoded = encoder.encode(batch)
            vectors = {"mean": encoded.pooled("mean")}
            if encoded.cls is not None:
                vectors["cls"] = encoded.pooled("cls")
                vectors["sum"] = vectors["cls"] + vectors["mean"]
            for pooling, rows in vectors.items():
                numbers = [place[id(record)] for record in part]
                found.setdefault(pooling, {}).update(zip(numbers, rows, strict=True))
            done += len(part)
            report(done)
    order = [pooling for pooling in POOLINGS if pooling in found]
    return {pooling: torch.stack([found[pooling][i] for i in range(len(records))]) for pooling in order}


def _rated(encoder: Encoder, test: str, notes: list[str]) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Vectors of both sides of rated pairs, and their ratings."""
    table = list(rows_of(test))
    if not set(_RATED) <= set(table[0]):
        raise SepNormError(
            f"{test} has the columns {', '.join(map(str, table[0]))}: rated pairs have {', '.join(_RATED)}."
        )
    development = [row for row in table if str(row.get("split")) in _DEVELOPMENT]
    if development:
        notes.append(f"Of {test} the {len(development):,} pairs for development are used.")
    from sepnorm.domains.text.sts import pairs_of

    pairs = pairs_of(development or table, test, _RATED)
    if len(set(pairs.scores)) < 2:
        raise SepNormError(f"all pairs of {test} have the same score: a rank correlation needs different ones.")
    texts = list(dict.fromkeys([*pairs.first, *pairs.second]))
    vectors = vectors_of(encoder, [Record(text, None, "") for text in texts], lambda done: None)
    number = {text: i for i, text in enumerate(texts)}
    first, second = ([number[text] for text in side] for side in (pairs.first, pairs.second))
    sides = [{pooling: rows[some] for pooling, rows in vectors.items()} for some in (first, second)]
    return sides[0], sides[1], torch.tensor(pairs.scores, dtype=torch.float64)


def _views(encoder: Encoder, records: Sequence[Record]) -> dict[str, tuple[Tensor, Tensor]]:
    """Vectors of two views of every sample: two parts of it if the encoder can cut it, else two passes with dropout."""
    cut = [encoder.views(record.content) for record in records]
    sides = []
    for side in (0, 1):
        if all(view is not None for view in cut):
            some = [record._replace(content=view[side]) for record, view in zip(records, cut, strict=True) if view]
            sides.append(vectors_of(encoder, some, lambda done: None))
        else:
            with _dropping(encoder, side):
                sides.append(vectors_of(encoder, records, lambda done: None))
    return {pooling: (sides[0][pooling], sides[1][pooling]) for pooling in sides[0]}


@contextmanager
def _dropping(encoder: Encoder, seed: int) -> Iterator[None]:
    """Switches dropout on within the context, with its own random numbers; all else stays in evaluation mode."""
    parts = [module for module in encoder.model.modules() if isinstance(module, _DROPOUT) and module.p > 0]
    if not parts:
        raise SepNormError(
            f"{encoder.name} has no dropout, so there are no two views of a sample to choose by: give labels, or rated pairs by "
            "--test."
        )
    with torch.random.fork_rng(), ExitStack() as hooks:
        torch.manual_seed(seed)
        for part in parts:
            hooks.enter_context(
                part.register_forward_hook(lambda module, args, output: F.dropout(args[0], module.p, True))
            )
        yield


def open_vectors(target: Any, column: str | None, label: str | None) -> EmbeddingFile | None:
    """The file of vectors that ``target`` names, or None."""
    from sepnorm.domains.requests import is_vectors

    if isinstance(target, str | Path) and is_vectors(str(target)):
        return EmbeddingFile(target, column, label)
    return None
