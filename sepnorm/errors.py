"""Errors and warnings of the package, and the helpers that build their messages and other plain text."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any


class SepNormError(ValueError):
    """Base of every error that sepnorm raises. The message says what was wrong, what was found and what to do.

    Exceptions from functions that you pass in, such as a predicate for ``sites``, are not wrapped.
    """


class InterruptedRunError(SepNormError):
    """A run was stopped after saving a checkpoint: ``what`` says why it stopped, ``resume`` how to continue it."""

    def __init__(self, what: str, resume: str = "the same command goes on from there") -> None:
        super().__init__(f"{what}: {resume}.")
        self.what, self.resume = what, resume

    def __reduce__(self) -> tuple[Any, ...]:  # so that it can be pickled and sent between processes
        return type(self), (self.what, self.resume)


class RunFailedError(SepNormError):
    """The user's training function raised or returned no metrics. The other runs continue."""


class UnreadableDataError(SepNormError):
    """Data that the user named cannot be found or read."""


class MisfitError(SepNormError):
    """A model could not be called with a batch. ``__cause__`` is the exception of the model."""


class OthersDoneError(Exception):
    """Raised on every rank but 0 after training: rank 0 finishes the run alone."""


class SepNormWarning(UserWarning):
    """Base of every warning that sepnorm issues."""


class GuessWarning(SepNormWarning):
    """sepnorm guessed a setting that the user did not give."""


class LeftOutWarning(SepNormWarning):
    """Some of the data is not used, because it is unusable or a setting limits it."""


class CollapseWarning(SepNormWarning):
    """[CLS] vectors are collapsing during training."""


class SecondLookWarning(SepNormWarning):
    """Seeds were added after a report, so that its verdicts come from more than one look."""


def tell_limit(used: int, of: str, key: str, value: int | None = None) -> None:
    """Warns that a setting, usually of a preset, limits how much data is used."""
    said = f"{used:,} of {of} are used, because {key}={used if value is None else value}; --set {key}=null uses all."
    warnings.warn(said, LeftOutWarning, stacklevel=3)


def as_notes(silent: bool = False) -> None:
    """Prints warnings on data left out, guesses, collapse and second looks as one-line notes; hides others of sepnorm.

    For the command line, whose output already covers the rest. ``silent`` hides the notes too.
    """
    usual = warnings.showwarning

    def say(message: Warning | str, category: type[Warning], *rest: Any, **others: Any) -> None:
        if issubclass(category, LeftOutWarning | GuessWarning | CollapseWarning | SecondLookWarning):
            print(printable(f"Note: {message}"), file=sys.stderr)
        else:
            usual(message, category, *rest, **others)

    warnings.showwarning = say
    warnings.filterwarnings("ignore", category=SepNormWarning)
    if not silent:
        for category in (LeftOutWarning, GuessWarning, CollapseWarning, SecondLookWarning):
            warnings.filterwarnings("once", category=category)


def printable(text: str) -> str:
    """Escapes what cannot be printed: bytes that are not UTF-8, and control characters of terminals."""
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in shown)


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns.

    >>> in_columns([["arm", "seeds"], ["bn+ln", "6"]])
    ['arm    seeds', 'bn+ln  6']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def one_line(error: BaseException) -> str:
    """The first line of an exception's message, for use in a sentence; the class name if there is no message."""
    return str(error).strip().split("\n")[0].rstrip(".:") or type(error).__name__


# C++ libraries raise a plain RuntimeError for lack of memory, lost peers and full disks: only the message tells which.


def is_of_memory(error: BaseException) -> bool:
    """Whether an error means that the host or an accelerator ran out of memory."""
    words = ("allocate memory", "out of memory", "could not create a primitive")  # the last is oneDNN's message
    return isinstance(error, MemoryError) or _says(error, words)


def may_pass(error: BaseException | None) -> bool:
    """Whether a run that raised this may succeed when it is tried again: a file system, a network, or lack of memory."""
    if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError | IsADirectoryError):
        return False  # a name that is wrong stays wrong
    return isinstance(error, OSError) or (error is not None and is_of_memory(error))


def is_of_lost_process(error: BaseException) -> bool:
    """Whether an error of gloo or NCCL means that another rank is gone."""
    return isinstance(error, RuntimeError) and _says(error, ("Connection", "gloo", "NCCL", "peer", "imed out"))


def is_of_full_disk(error: BaseException) -> bool:
    """Whether an error, also one of safetensors or ``torch.save``, means that a file could not be written."""
    return isinstance(error, OSError) or _says(error, ("I/O error", "iostream error", "inline_container"))


def _says(error: BaseException, words: Iterable[str]) -> bool:
    return any(word in str(error) for word in words)


def require_known(what: str, name: str, known: Iterable[str]) -> str:
    """Returns ``name`` if it is in ``known``; otherwise raises and suggests the nearest match."""
    names = list(known)
    if name not in names:
        raise SepNormError(f"unknown {what} {name!r}: choose from {', '.join(names)}.{nearest(name, names)}")
    return name


def nearest(name: str, known: Iterable[str]) -> str:
    """``" Did you mean 'layer'?"`` if an entry of ``known`` resembles ``name``, else an empty string."""
    alike = 0.6 if len(str(name)) > 2 else 0.5  # "lm" and "ln" are half alike
    match = difflib.get_close_matches(str(name).lower(), list(known), n=1, cutoff=alike)
    return f" Did you mean {match[0]!r}?" if match else ""
