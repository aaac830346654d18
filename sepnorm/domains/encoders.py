"""Models by name or folder, with the way from data to their input, and the [CLS] and token vectors that they give."""

from __future__ import annotations

import copy
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sepnorm.data.places import why_not
from sepnorm.data.records import LeftOut, Record
from sepnorm.domains import domains
from sepnorm.domains.requests import check_conversion
from sepnorm.domains.targets import find_model
from sepnorm.errors import MisfitError, SepNormError, one_line
from sepnorm.surgery import model_call as feed
from sepnorm.surgery.conversion import convert
from sepnorm.surgery.families import encoder_of, is_timm, is_transformers
from sepnorm.surgery.opening.models import open_model, open_timm
from sepnorm.surgery.reports import ConversionReport
from sepnorm.surgery.saving import load, save
from sepnorm.training.devices import check_device, device_of

# What parts of a model that do not belong together raise.
_MISFITS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def _is_panic(error: BaseException) -> bool:
    """Whether it comes from a library in Rust, such as a tokeniser: these are no ``Exception``."""
    return type(error).__name__ == "PanicException"


@dataclass(eq=False)
class Encoded:
    """Last hidden states: ``cls`` (batch, dim), ``tokens`` (batch, tokens, dim), and which of these are no padding.

    ``cls`` is None of a model that has none. ``cls_in_mean``: whether the mean of tokens has [CLS] in it.
    """

    cls: Tensor | None
    tokens: Tensor
    keep: Tensor
    cls_in_mean: bool = False

    @property
    def mean(self) -> Tensor:
        """The mean of tokens without padding (batch, dim)."""
        keep = self.keep.to(self.tokens.device)[..., None]
        total, count = self.tokens.masked_fill(~keep, 0).sum(1, dtype=torch.float32), keep.sum(1)
        if self.cls_in_mean and self.cls is not None:
            total, count = total + self.cls, count + 1
        return total / count.clamp(min=1)

    def pooled(self, pooling: str) -> Tensor:
        """One of ``POOLINGS`` (batch, dim), in float32 on the CPU."""
        if pooling == "cls" and self.cls is None:
            raise SepNormError("this model has no [CLS]: take --pooling mean.")
        return (self.cls if pooling == "cls" and self.cls is not None else self.mean).float().cpu()


@dataclass(eq=False)
class Encoder(ABC):
    """A model with the way from a domain's data to its input."""

    kind: ClassVar[str]  #: the domain's name
    window: ClassVar[int] = 1  #: batches that are sorted together by the length of what is in them
    cls_in_mean: ClassVar[bool] = False  #: whether the mean of tokens has [CLS] in it

    name: str
    model: Any
    prepare: Any  #: from a list of contents to a batch
    left_out: list[str] = field(default_factory=list)  #: weights of the folder that are no part of the model

    @property
    def has_cls(self) -> bool:
        """Whether the model has a token that stands for the whole input."""
        return True

    def require_cls(self) -> None:
        """Refuses a model without [CLS]."""
        if not self.has_cls:
            raise SepNormError(
                f"{self.name} has no [CLS]: none of its tokens stands for the whole input. Take the mean of its tokens, by "
                "--pooling mean where there is that option, or a model with a [CLS]."
            )

    @abstractmethod
    def read(
        self, data: str, column: str | None = None, split: str = "train", left_out: LeftOut | None = None
    ) -> Iterator[Record]:
        """Records of data, in any order."""

    def read_in_order(self, data: str, column: str | None, split: str, left_out: LeftOut) -> Iterator[Record]:
        """Records of data, all and in their order; what is passed over is counted."""
        return self.read(data, column, split, left_out)

    @abstractmethod
    def hidden(self, batch: Any) -> Encoded:
        """The last hidden states of a batch. The model is in evaluation mode."""

    def shown(self, record: Record) -> str:
        """What a reader knows a record by."""
        return record.name

    def views(self, content: Any) -> tuple[Any, Any] | None:
        """Two parts of a sample that belong together; None where there is no way to cut it."""
        return None

    def exportable(self) -> Exportable:
        """The model as a module, with inputs to trace it by; refused where it cannot be one."""
        raise SepNormError(f"{self.name} takes {self.kind}, which are not exported: use embed for their vectors.")

    def batches(self, records: Iterator[Record], size: int = 32) -> Iterator[tuple[list[Record], Any]]:
        """Records and the batch made of them; those of similar length come together."""
        while window := list(islice(records, size * self.window)):
            if self.window > 1:
                window.sort(key=lambda record: len(record.content))
            for start in range(0, len(window), size):
                part = window[start : start + size]
                with self.working():
                    batch = self.prepare([record.content for record in part])
                yield part, batch

    @torch.no_grad()
    def encode(self, batch: Any) -> Encoded:
        """The model is to be in evaluation mode."""
        with self.working():
            return self.hidden(batch)

    @contextmanager
    def working(self) -> Iterator[None]:
        """A model that opened, but whose parts do not fit each other or the data, is told by whatever its library raises."""
        try:
            yield
        except BaseException as raised:
            error = raised.__cause__ or raised if isinstance(raised, MisfitError) else raised
            if isinstance(error, SepNormError) or not (isinstance(error, _MISFITS) or _is_panic(error)):
                raise
            raise SepNormError(
                f"{self.name} cannot be run on this data: {type(error).__name__}: {one_line(error)}. Its files do not fit each "
                "other, or the data are of another kind."
            ) from error

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode for the time being."""
        with feed.quiet(self.model):
            yield

    def to_device(self, asked: str = "auto") -> None:
        """Moves the model to the fastest device there is, or to the one asked for."""
        self.model.to(device_of(asked))


class Body(nn.Module):
    """A copy of an encoder as a module from its inputs to [CLS] (batch, dim) and all last hidden states (batch, tokens, dim)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        inner: Any = next(module for module in model.modules() if is_timm(module) or is_transformers(module))
        self.inner: Any = copy.deepcopy(inner if is_timm(inner) else encoder_of(inner))


@dataclass(eq=False)
class Exportable:
    """What an exporter needs: a module, inputs to trace it by, others of another size to try it on, and what may vary."""

    body: Body
    example: dict[str, Tensor]
    other: dict[str, Tensor]
    dynamic: dict[int, str]  #: names of the dimensions of every input that may have any size


def open_encoder(target: str, whole: bool = False) -> Encoder:
    """A folder of ``sepnorm.save``, transformers or sentence-transformers, of a finished run, a hub name, or ``timm:NAME``.

    ``whole``: with the head that a folder of transformers has, rather than the encoder alone.
    """
    target = find_model(target)
    folder = Path(target)
    if target.startswith("timm:"):
        return _wrap(target, open_timm(target.removeprefix("timm:")), folder)
    try:
        return _wrap(target, load(folder), folder) if (folder / "sepnorm.json").is_file() else _opened(target, whole)
    except SepNormError:
        raise
    except (
        BaseException
    ) as error:  # whatever a damaged folder or a name that cannot be reached makes the libraries raise
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        why = f"{one_line(error)}." if folder.is_dir() else why_not(target, "the hub", error)
        raise SepNormError(f"{target} cannot be opened as a model: {why}") from error


def _opened(target: str, whole: bool) -> Encoder:
    """By transformers or sentence-transformers, from a folder or the hub."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    opened = open_model(target, whole)
    encoder = _wrap(target, opened.model, opened.source)
    encoder.left_out = opened.left_out
    return encoder


def wrap_model(model: nn.Module) -> Encoder:
    """A model that is in memory already, with its settings from the folder it was loaded from."""
    return _wrap(type(model).__name__, model, Path(getattr(model, "name_or_path", "") or "."))


def _wrap(target: str, model: Any, source: Path) -> Encoder:
    """``source``: the folder with the settings of the model's input."""
    model.eval()
    known = domains()
    for domain in known:
        if (found := domain.wrap(target, model, source)) is not None:
            return found
    names = " nor ".join(domain.name for domain in known)
    raise SepNormError(f"{target} is a {type(model).__name__}, which takes neither {names}.")


def convert_copy(
    target: str,
    data: str,
    out: Path,
    norm: str,
    sites: str,
    column: str | None = None,
    split: str = "train",
    max_samples: int = 2000,
    progress: Any = None,
    device: str = "auto",
) -> ConversionReport:
    """Opens a model, converts it, calibrated on data, and saves it with what its input needs."""
    check_conversion(target, data, out, norm, sites)
    check_device(device)
    encoder = open_encoder(target, whole=True)
    encoder.to_device(device)
    done = 0

    def batches() -> Iterator[Any]:
        nonlocal done
        for part, batch in encoder.batches(islice(encoder.read(data, column, split), max_samples)):
            yield batch
            done += len(part)
            if progress is not None:
                progress(done, max_samples)

    with encoder.evaluating(), encoder.working():
        report = convert(encoder.model, norm, sites=sites, calibrate=batches())
    encoder.to_device("cpu")
    if encoder.left_out:
        report.notes.append(
            f"{len(encoder.left_out)} tensors of {target} are no part of a {type(encoder.model).__name__} and were left out, such "
            f"as {encoder.left_out[0]}."
        )
    try:
        save(encoder.model, out)
        if hasattr(encoder.prepare, "save"):
            encoder.prepare.save(out)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)  # a part of a model would only be in the way
        raise
    return report
