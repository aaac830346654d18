"""``heal``: from vectors or a model to the best linear map, and the result that is saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sepnorm.arguments import whole
from sepnorm.data.records import Record
from sepnorm.domains.encoders import Encoder, open_encoder, wrap_model
from sepnorm.domains.healing.candidates import Candidate, candidates, chosen_by_name, require_enough
from sepnorm.domains.healing.choice import Scored, best_of, by_hits, by_ranks, numbers_of
from sepnorm.domains.healing.models import own_pooling
from sepnorm.domains.healing.scoring import label_hits, pair_cosines, view_hits
from sepnorm.domains.healing.sources import Source, from_array, from_file, from_model, open_vectors
from sepnorm.domains.healing.thresholds import Threshold, thresholds
from sepnorm.domains.targets import find_model
from sepnorm.errors import SepNormError, require_known
from sepnorm.geometry import Summary, summary
from sepnorm.geometry.linear_maps import LinearMap
from sepnorm.report.diagnosis import finite
from sepnorm.report.verdict import Verdict, judge
from sepnorm.training.devices import check_device

#: Default number of samples that a model is run on.
MODEL_SAMPLES = 5000
_MEASURED = 3000  # samples for a verdict
_MEASURES = {
    "labels": "accuracy of nearest neighbours, in five folds",
    "pairs": "Spearman's correlation with the ratings of pairs",
    "views": "how often one view of a sample finds its other view, in five folds",
    "verdict": "the verdict alone: without labels, rated pairs or a model nothing else can be judged",
    "asked": "as asked for",
}


@dataclass(eq=False)
class Healing:
    """Result of ``heal``: the chosen map, and how it was chosen.

    Args:
        target: name of the vectors or the model.
        data: the data that a model was run on, or None.
        count: number of samples.
        how: what decided: ``labels``, ``pairs`` (rated), ``views`` (of a sample), ``verdict`` (of the diagnosis) or
            ``asked`` (by ``method``).
        chosen: name of the candidate; ``nothing`` if no map is better.
        pooling: ``cls``, ``mean`` or ``sum`` of both; empty for bare vectors.
        map: the linear map.
        scored: score of every candidate, and its difference to changing nothing.
        before: cosines that unrelated pairs rarely exceed, before healing.
        after: the same after healing.
        verdicts: diagnosis before and after.
        summaries: geometry before and after.
        source: the vectors and what is known of them.
        notes: remarks for the reader.
    """

    target: str
    data: str | None
    count: int
    how: str
    chosen: str
    pooling: str
    map: LinearMap
    scored: list[Scored]
    before: list[Threshold]
    after: list[Threshold]
    verdicts: tuple[Verdict, Verdict] = field(repr=False)
    summaries: tuple[Summary, Summary] = field(repr=False)
    source: Source = field(repr=False)
    notes: list[str] = field(default_factory=list)

    def transform(self, x: Any) -> Any:
        """Heals vectors.

        Args:
            x: one vector (dim,) or many (count, dim), as a tensor or array.

        Returns:
            Healed vectors of the same kind.
        """
        return self.map.transform(x)

    @property
    def changed(self) -> bool:
        """Whether a map or another pooling was chosen."""
        return self.map.name != "nothing" or self.pooling != self.source.own

    @property
    def measure(self) -> str:
        """What decided, in words."""
        return _MEASURES[self.how]

    @property
    def title(self) -> str:
        """The choice in a few words."""
        return f"{self.pooling}: {self.chosen}" if self.pooling else self.chosen

    def before_and_after(self) -> tuple[Tensor, Tensor]:
        """Some vectors (samples, dim) before and after healing.

        Returns:
            Both sets of vectors.
        """
        rows = self.source.rows
        return rows[self.source.own], self.map(rows[self.pooling])

    def as_dict(self) -> dict[str, Any]:
        """The result as plain numbers, strings, lists and dictionaries, for JSON.

        Returns:
            The dictionary.
        """
        return finite(
            {
                "target": self.target,
                "data": self.data,
                "count": self.count,
                "chosen": self.chosen,
                "pooling": self.pooling,
                "changed": self.changed,
                "chosen_by": self.how,
                "measure": self.measure,
                "candidates": [asdict(each) | {"better": each.better} for each in self.scored],
                "thresholds": {"before": [asdict(t) for t in self.before], "after": [asdict(t) for t in self.after]},
                "verdict": {"before": asdict(self.verdicts[0]), "after": asdict(self.verdicts[1])},
                "notes": self.notes,
            }
        )

    def __str__(self) -> str:
        lines = [f"{self.target}: {self.title}, by {self.measure}"]
        lines += [f"  {each}" for each in self.scored]
        for old, new in zip(self.before, self.after, strict=False):
            lines.append(f"  one in {old.rate:,} unrelated pairs is above {old}, healed {new}")
        return "\n".join([*lines, *self.notes])

    def save(self, folder: str | Path) -> Path:
        """Writes the map, ``results.json`` and the page, and the healed model or file, which works without sepnorm.

        Args:
            folder: the folder to write to.

        Returns:
            Path of the page.
        """
        from sepnorm.domains.healing.writing import write_healing

        return write_healing(self, Path(folder))


def heal(
    target: Any,
    data: Any = None,
    *,
    test: str | None = None,
    labels: Sequence[Any] | None = None,
    method: str | None = None,
    pooling: str | None = None,
    out: str | Path | None = None,
    column: str | None = None,
    label: str | None = None,
    split: str = "train",
    max_samples: int | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: Callable[[int, int | None], None] | None = None,
) -> Healing:
    """Finds a linear map that improves embeddings, and keeps it only if held-out data confirm it.

    Candidates are: nothing, centring, standardising, all-but-the-top, and whitening with shrinkage at several powers
    and widths. For a model each is tried on [CLS], the mean of tokens and their sum. They are scored by labels (nearest
    neighbours), rated pairs (Spearman's correlation) or two views of a sample, on items on which the map was not
    fitted. One is taken only if the interval of its difference to changing nothing is above 0. Vectors without labels
    are only centred or standardised, if their diagnosis suggests it.

    Args:
        target: vectors (samples, dim) as a tensor or array; a ``.npy``, ``.npz``, ``.parquet`` or ``.csv`` file of
            vectors; a model's folder or name; or a ``SentenceTransformer``.
        data: data to run a model on, as for ``diagnose``; a list of texts; or graphs, also a ``DataLoader`` of PyG.
        test: for text models, a table of rated pairs (sentence1, sentence2, score). If it has splits, the development
            split is used.
        labels: labels for the rows of an array. Files and data bring their own.
        method: name of a candidate, such as ``"centre"`` or ``"whiten 0.5"``, to use it without a choice.
        pooling: try only ``"cls"`` or only ``"mean"`` of a model; default all.
        out: folder for all files, as ``Healing.save`` writes them.
        column: column with the vectors, texts or images; needed if several fit.
        label: column with labels in a file of vectors.
        split: split of a Hugging Face dataset.
        max_samples: number of samples to run a model on; default 5,000.
        device: device for a model: ``auto`` for the fastest, or torch's name of one.
        seed: seed of the folds.
        progress: called with the number of samples done and the total, or None.

    Returns:
        The result. Its ``transform(x)`` heals other vectors.

    Raises:
        SepNormError: if the target or data cannot be read, or there are too few samples for a map.
    """
    if progress is not None and not callable(progress):
        raise SepNormError(f"progress is a function of what is done and of all, found {progress!r}.")
    report = progress or (lambda done, total: None)
    seed = whole(seed, "seed", 0, 2**63 - 1)
    max_samples = None if max_samples is None else whole(max_samples, "max_samples", 1)
    source, said = _source(target, data, test, labels, pooling, column, label, split, max_samples, device, report)
    require_enough(source.count, source.dim, said)
    before = summary(source.rows[source.own][:_MEASURED])
    if before.participation_ratio == 0:
        raise SepNormError(f"the vectors of {said} are all the same: there is nothing that a map could spread out.")
    verdict = judge(before, target=said, data=data if isinstance(data, str) else None)
    how, tried, scored = _chosen(source, verdict, method, seed)
    taken = tried[best_of(scored)] if how not in ("asked", "verdict") else tried[-1]
    found = taken.make(source.moments[taken.pooling])
    healed = found(source.rows[taken.pooling])
    numbers = None if source.labels is None or len(set(source.labels)) < 2 else numbers_of(source.labels)
    after = summary(healed[:_MEASURED])
    healing = Healing(
        said,
        data if isinstance(data, str) else None,
        source.count,
        how,
        taken.name,
        taken.pooling,
        found,
        scored,
        thresholds(source.rows[source.own], numbers),
        thresholds(healed, numbers),
        (verdict, judge(after, target=said)),
        (before, after),
        source,
        [*source.notes, *_notes(how, verdict)],
    )
    if out is not None:
        healing.save(out)
    return healing


def _source(
    target: Any,
    data: Any,
    test: str | None,
    labels: Sequence[Any] | None,
    pooling: str | None,
    column: str | None,
    label: str | None,
    split: str,
    max_samples: int | None,
    device: str,
    report: Callable[[int, int | None], None],
) -> tuple[Source, str]:
    file = open_vectors(target, column, label)
    is_model = isinstance(target, str | Path | nn.Module) and file is None
    if not is_model:
        for given, name in ((data, "data"), (test, "test"), (pooling, "pooling")):
            if given is not None:
                raise SepNormError(f"{name} is for models: vectors are judged by labels, one for each row.")
        found = from_file(file, report) if file is not None else from_array(target, labels)
        return found, found.name
    if labels is not None or label is not None:
        raise SepNormError("labels are for vectors: a model's are those of its data.")
    if data is None:
        raise SepNormError("a model is healed on data: add --data, such as a text file, a table or a folder of images.")
    check_device(device)
    longest = getattr(target, "max_seq_length", None)
    encoder = wrap_model(target) if isinstance(target, nn.Module) else open_encoder(str(target))
    own = own_pooling(encoder) if pooling is None else require_known("pooling", pooling, ("cls", "mean"))
    if own == "cls":
        encoder.require_cls()
    encoder.to_device(device)
    records = _records(encoder, data, column, split)
    named = data if isinstance(data, str) else "the data"
    most = max_samples or MODEL_SAMPLES
    found = from_model(encoder, own, records, test, most, named, report)
    encoder.to_device("cpu")
    if longest is not None:
        target.max_seq_length = longest  # the user's own model is truncated while it runs here
    if pooling is not None:
        found.rows = {pooling: found.rows[pooling]}
    found.origin = target if isinstance(target, nn.Module) else find_model(str(target))
    return found, encoder.name


def _records(encoder: Encoder, data: Any, column: str | None, split: str) -> Iterator[Record]:
    if isinstance(data, str | Path):
        return encoder.read(str(data), column, split)
    return (
        Record(content, None, f"sample {number}")
        for number, content in zip(count(1), encoder.contents(data), strict=False)
    )


def _chosen(
    source: Source, verdict: Verdict, method: str | None, seed: int
) -> tuple[str, list[Candidate], list[Scored]]:
    """What decides, the candidates, and the score of each."""
    dim = source.dim
    if method is not None:
        return "asked", [chosen_by_name(method, dim)._replace(pooling=source.own)], []
    others = [pooling for pooling in source.rows if pooling != source.own]
    tried = [each._replace(pooling=pooling) for pooling in (source.own, *others) for each in candidates(dim)]
    names = [candidate.title for candidate in tried]
    if source.pairs is not None:
        first, second, ratings = source.pairs
        maps = [candidate.make(source.moments[candidate.pooling]) for candidate in tried]
        return "pairs", tried, by_ranks(pair_cosines(first, second, maps, tried), ratings, names, seed)
    if source.labels is not None:
        hits = label_hits(source.rows, numbers_of(source.labels), source.moments, tried, seed)
        return "labels", tried, by_hits(hits, names)
    if source.views is not None:
        return "views", tried, by_hits(view_hits(source.views, source.rows, source.moments, tried, seed), names)
    remedy = "standardise" if "loud dimensions" in verdict.illnesses else "centre"
    if not set(verdict.illnesses) & {"loud dimensions", "off-centre"}:
        remedy = "nothing"
    return "verdict", [chosen_by_name(remedy, dim)], []


def _notes(how: str, verdict: Verdict) -> list[str]:
    if how == "verdict" and "few dimensions" in verdict.illnesses:
        return [
            "The vectors fill few dimensions. Whitening may help or ruin them, and without labels, rated pairs or the model "
            "nothing tells which: give labels."
        ]
    return []


def as_json(healing: Healing) -> str:
    """The result as JSON."""
    return json.dumps(healing.as_dict(), indent=1)
