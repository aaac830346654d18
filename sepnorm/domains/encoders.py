"""Encoders: models opened by name or folder, with the way from data to their input and to [CLS] and token vectors."""

from __future__ import annotations

import copy
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
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
from sepnorm.pooling import pool
from sepnorm.surgery import model_call
from sepnorm.surgery.conversion import convert
from sepnorm.surgery.families import encoder_of, is_timm, is_transformers
from sepnorm.surgery.opening.models import open_model, open_timm
from sepnorm.surgery.reports import ConversionReport
from sepnorm.surgery.saving import load, save
from sepnorm.training.devices import check_device, device_of

# Errors that parts of a model raise if they do not fit together.
_MISFITS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def _is_panic(error: BaseException) -> bool:
    """Whether a library in Rust, such as a tokeniser, raised it: such errors are no ``Exception``."""
    return type(error).__name__ == "PanicException"


@dataclass(eq=False)
class Encoded:
    """Last hidden states of a batch.

    Args:
        cls: [CLS] (batch, dim); None for a model without [CLS].
        tokens: all other tokens (batch, tokens, dim).
        keep: (batch, tokens) true for tokens that are no padding.
        cls_in_mean: whether the mean and moments of tokens include [CLS].
    """

    cls: Tensor | None
    tokens: Tensor
    keep: Tensor
    cls_in_mean: bool = False

    @property
    def mean(self) -> Tensor:
        """Mean of tokens without padding (batch, dim)."""
        return self._by("mean")

    def pooled(self, pooling: str) -> Tensor:
        """One vector for each input.

        Args:
            pooling: ``cls``, ``mean``, ``cls+mean`` or ``moments``.

        Returns:
            Vectors (batch, size) in float32 on the CPU.
        """
        return self._by(pooling).float().cpu()

    def _by(self, pooling: str) -> Tensor:
        tokens, keep = self.tokens, self.keep
        if self.cls_in_mean and self.cls is not None:
            tokens = torch.cat([self.cls[:, None], tokens], dim=1)
            keep = torch.cat([torch.ones_like(keep[:, :1]), keep], dim=1)
        return pool(pooling, self.cls, tokens, keep)


@dataclass(eq=False)
class Encoder(ABC):
    """A model that can be run on a domain's data.

    Args:
        name: name for messages.
        model: the model.
        prepare: function from a list of contents to a batch.
        left_out: names of weights in the folder that the model does not have.
    """

    kind: ClassVar[str]  # name of the domain
    window: ClassVar[int] = 1  # number of batches whose samples are sorted by length together
    cls_in_mean: ClassVar[bool] = False  # whether the mean of tokens includes [CLS]

    name: str
    model: Any
    prepare: Any
    left_out: list[str] = field(default_factory=list)

    @property
    def has_cls(self) -> bool:
        """Whether the model has a token that stands for the whole input."""
        return True

    def require_cls(self) -> None:
        """Raises ``SepNormError`` for a model without [CLS]."""
        if not self.has_cls:
            raise SepNormError(
                f"{self.name} has no [CLS]: none of its tokens stands for the whole input. Use --pooling mean if the "
                "command has it, or a model with a [CLS]."
            )

    @abstractmethod
    def read(
        self, data: str, column: str | None = None, split: str = "train", left_out: LeftOut | None = None
    ) -> Iterator[Record]:
        """Reads data, in any order.

        Args:
            data: a file, folder or name.
            column: column with the inputs; needed if several fit.
            split: split of a Hugging Face dataset.
            left_out: counts the records that are skipped.

        Returns:
            The records.
        """

    def read_in_order(self, data: str, column: str | None, split: str, left_out: LeftOut) -> Iterator[Record]:
        """Reads all data in order.

        Args:
            data: a file, folder or name.
            column: column with the inputs; needed if several fit.
            split: split of a Hugging Face dataset.
            left_out: counts the records that are skipped.

        Returns:
            The records.
        """
        return self.read(data, column, split, left_out)

    def contents(self, data: Iterable[Any]) -> Iterable[Any]:
        """The samples of data in memory, as ``prepare`` takes them.

        Args:
            data: the samples, or what holds them, such as a loader.

        Returns:
            The samples.
        """
        return data

    @abstractmethod
    def hidden(self, batch: Any) -> Encoded:
        """The last hidden states of a batch. The model is in evaluation mode.

        Args:
            batch: a batch that ``prepare`` made.

        Returns:
            [CLS] and tokens.
        """

    def shown(self, record: Record) -> str:
        """The text that stands for a record in reports.

        Args:
            record: the record.

        Returns:
            The text.
        """
        return record.name

    def views(self, content: Any) -> tuple[Any, Any] | None:
        """Two overlapping parts of a sample, as views of the same thing.

        Args:
            content: the content of a record.

        Returns:
            The two parts; None if samples cannot be cut.
        """
        return None

    def exportable(self) -> Exportable:
        """The model as a module with example inputs, for export; raises ``SepNormError`` if it cannot be exported."""
        raise SepNormError(f"{self.name} takes {self.kind}, which are not exported: use embed for their vectors.")

    def batches(self, records: Iterator[Record], size: int = 32) -> Iterator[tuple[list[Record], Any]]:
        """Makes batches of records. Records of similar length share a batch.

        Args:
            records: the records.
            size: samples in a batch.

        Yields:
            The records of a batch, and the batch.
        """
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
        """Runs the model without gradients. It must be in evaluation mode.

        Args:
            batch: a batch that ``batches`` made.

        Returns:
            [CLS] and tokens.
        """
        with self.working():
            return self.hidden(batch)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Turns errors of libraries into one sentence: files do not fit together, or the data are of another kind."""
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
        """Puts the model into evaluation mode within the context."""
        with model_call.quiet(self.model):
            yield

    def to_device(self, asked: str = "auto") -> None:
        """Moves the model.

        Args:
            asked: ``auto`` for the fastest device, or torch's name of one.
        """
        self.model.to(device_of(asked))


class Body(nn.Module):
    """A copy of an encoder as a module. It returns [CLS] (batch, dim) and last hidden states (batch, tokens, dim)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        inner: Any = next(module for module in model.modules() if is_timm(module) or is_transformers(module))
        self.inner: Any = copy.deepcopy(inner if is_timm(inner) else encoder_of(inner))


@dataclass(eq=False)
class Exportable:
    """What an exporter needs: module, example inputs, inputs of another size to check it, and variable dimensions."""

    body: Body
    example: dict[str, Tensor]
    other: dict[str, Tensor]
    dynamic: dict[int, str]  # names of the dimensions of any size, the same for every input


def open_encoder(target: str, whole: bool = False) -> Encoder:
    """Opens a model, by its folder, its name on the Hub, or ``timm:NAME``.

    A folder is one of ``sepnorm.save``, transformers or sentence-transformers, or that of a finished run. ``whole``:
    keep the head of a transformers folder, rather than the encoder alone.
    """
    target = find_model(target)
    folder = Path(target)
    if target.startswith("timm:"):
        return _wrap(target, open_timm(target.removeprefix("timm:")), folder)
    try:
        return _wrap(target, load(folder), folder) if (folder / "sepnorm.json").is_file() else _opened(target, whole)
    except SepNormError:
        raise
    except BaseException as error:  # damaged folders and unreachable names raise many kinds of errors
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        why = f"{one_line(error)}." if folder.is_dir() else why_not(target, error)
        raise SepNormError(f"{target} cannot be opened as a model: {why}") from error


def _opened(target: str, whole: bool) -> Encoder:
    """Opens a model by transformers or sentence-transformers, from a folder or the Hub."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    opened = open_model(target, whole)
    encoder = _wrap(target, opened.model, opened.source)
    encoder.left_out = opened.left_out
    return encoder


def wrap_model(model: nn.Module) -> Encoder:
    """Wraps a model in memory, with input settings from the folder it was loaded from."""
    return _wrap(type(model).__name__, model, Path(getattr(model, "name_or_path", "") or "."))


def _wrap(target: str, model: Any, source: Path) -> Encoder:
    """Wraps a model for its domain. ``source``: the folder with the settings of its input."""
    model.eval()
    known = domains()
    for domain in known:
        if (found := domain.wrap(target, model, source)) is not None:
            return found
    names = ", ".join(domain.name for domain in known)
    raise SepNormError(f"{target} is a {type(model).__name__}, which no installed domain ({names}) can run.")


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
    """Opens a model, converts and calibrates it on data, and saves it with its input settings."""
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
        shutil.rmtree(out, ignore_errors=True)  # part of a model is of no use
        raise
    return report
