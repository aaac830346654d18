"""``sepnorm evaluate``: what a saved model is worth, by the probes and tasks of its domain."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sepnorm.domains import open_domain
from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.requests import POOLINGS, check_evaluation
from sepnorm.experiment.slugs import slug
from sepnorm.files import make_folder, require_writable, write_text
from sepnorm.report.diagnosis import finite
from sepnorm.training.devices import check_device

Progress = Callable[[int, int | None], None]


@dataclass(eq=False)
class Task:
    """What an evaluation was asked for: on which data, by what, and where its files go."""

    data: str | None
    on: Sequence[str]  #: names of probes or sets; empty for the domain's own choice
    pooling: str  #: cls, mean, both, or empty for the domain's own choice
    column: str | None
    label: str | None
    folder: Path
    progress: Callable[[str], Progress | None]  #: from a name to what is called while that is done

    def poolings(self, default: str) -> tuple[str, ...]:
        """The places that vectors are taken from."""
        chosen = self.pooling or default
        return POOLINGS if chosen == "both" else (chosen,)


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
    device: str = "auto",
    progress: Callable[[str], Progress | None] | None = None,
) -> tuple[Evaluation, Path]:
    """Measures a model, and writes ``results.json`` to a folder, which it returns too.

    Args:
        target: a model's folder, a run's folder, a hub name, or ``timm:NAME``.
        data: labelled images, a file or folder of evaluation sets of text, or tables of molecules.
        on: names of probes or sets, with commas between; by default what the domain of the model has.
        pooling: ``cls``, ``mean`` or ``both``.
        column, label: columns of a table, where they are not clear.
        device: ``auto`` for the fastest, or as torch writes it.
        folder: by default ``runs/evaluate-NAME``.
        progress: ``progress(what)`` gives what is called while that is done.
    """
    names = [name.strip() for name in on.split(",") if name.strip()]
    check_evaluation(target, data, pooling)
    check_device(device)
    encoder = open_encoder(target)
    folder = folder or default_folder(target)
    require_writable(folder)
    encoder.to_device(device)
    task = Task(data, names, pooling, column, label, folder, progress or (lambda what: None))
    found = open_domain(encoder.kind).evaluate(encoder, task)
    make_folder(folder)
    write_text(folder / "results.json", json.dumps(finite(asdict(found)), indent=1))
    return found, folder


def default_folder(target: str) -> Path:
    """``runs/evaluate-NAME``; a run's model is called as the run."""
    path = Path(target)
    name = path.resolve().parent.name if path.name == "model" else path.name if path.exists() else target
    return Path("runs") / f"evaluate-{slug(name)}"
