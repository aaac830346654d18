"""``sepnorm evaluate``: scores a saved model by the probes and tasks of its domain."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sepnorm.domains import open_domain
from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.requests import check_evaluation, poolings_of
from sepnorm.experiment.slugs import slug
from sepnorm.files import make_folder, require_writable, write_text
from sepnorm.report.diagnosis import finite
from sepnorm.training.devices import check_device
from sepnorm.training.notation import names_in

Progress = Callable[[int, int | None], None]


@dataclass(eq=False)
class Task:
    """What to evaluate, on which data, and where to write.

    Args:
        data: data to evaluate on; None for the domain's default.
        on: names of probes or sets; empty for the domain's default.
        pooling: poolings as ``--pooling`` names them; empty for the domain's default.
        column: column with the inputs; needed if several fit.
        label: column with the labels; needed if several fit.
        folder: folder for files.
        progress: ``progress(what)`` returns a function to call with the number done and the total, or None.
    """

    data: str | None
    on: Sequence[str]
    pooling: str
    column: str | None
    label: str | None
    folder: Path
    progress: Callable[[str], Progress | None]

    def poolings(self, default: tuple[str, ...]) -> tuple[str, ...]:
        """The poolings to use.

        Args:
            default: poolings if the user named none.

        Returns:
            Names of poolings.
        """
        return poolings_of(self.pooling) or default


@dataclass(eq=False)
class Evaluation:
    """Result of an evaluation.

    Args:
        model: name of the model.
        data: the data, or None.
        used: a sentence on the samples used.
        metrics: scores by name, such as ``cls_linear_top1`` or ``stsb``.
    """

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
    """Scores a model, and writes ``results.json`` to a folder.

    Args:
        target: folder of a model or run, Hub name, or ``timm:NAME``.
        data: labelled images, a file or folder of evaluation sets for text, or tables of molecules.
        on: names of probes or sets, separated by commas; default those of the model's domain.
        pooling: some of ``cls``, ``mean``, ``cls+mean`` and ``moments``, separated by commas; ``both`` for the first
            two; or ``all``. Default those of the domain.
        column: column of a table with the inputs; needed if several fit.
        label: column with the labels; needed if several fit.
        folder: output folder; default ``runs/evaluate-NAME``.
        device: ``auto`` for the fastest, or torch's name of a device.
        progress: ``progress(what)`` returns a function to call with the number done and the total, or None.

    Returns:
        The evaluation and the folder.

    Raises:
        SepNormError: if the model, the data or an argument cannot be used.
    """
    check_evaluation(target, data, pooling)
    check_device(device)
    encoder = open_encoder(target)
    folder = folder or default_folder(target)
    require_writable(folder)
    encoder.to_device(device)
    task = Task(data, names_in(on), pooling, column, label, folder, progress or (lambda what: None))
    found = open_domain(encoder.kind).evaluate(encoder, task)
    make_folder(folder)
    write_text(folder / "results.json", json.dumps(finite(asdict(found)), indent=1))
    return found, folder


def default_folder(target: str) -> Path:
    """``runs/evaluate-NAME``. A run's model is named after the run."""
    path = Path(target)
    name = path.resolve().parent.name if path.name == "model" else path.name if path.exists() else target
    return Path("runs") / f"evaluate-{slug(name)}"
