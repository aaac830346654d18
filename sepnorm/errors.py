"""The errors of the package, and what messages are made of: printable names, the nearest match for a misspelt one."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from typing import Any


class SepNormError(ValueError):
    """Every error that sepnorm raises: says what was wrong, what was found and what to do.

    What a function of yours raises, such as a predicate of sites, is passed on as it is.
    """


class InterruptedRunError(SepNormError):
    """A run was stopped and is saved: ``what`` happened, and how it is resumed."""

    def __init__(self, what: str, resume: str = "the same command goes on from there") -> None:
        super().__init__(f"{what}: {resume}.")
        self.what, self.resume = what, resume

    def __reduce__(self) -> tuple[Any, ...]:  # it is sent between processes
        return type(self), (self.what, self.resume)


class RunFailedError(SepNormError):
    """A training function of the user's raised, or gave no metrics; other runs go on."""


class UnreadableDataError(SepNormError):
    """Data that a user named cannot be reached or read."""


class MisfitError(SepNormError):
    """A model could not be called with a batch; its cause is what the model raised."""


class OthersDoneError(Exception):
    """In all processes of a run but the first: they trained, and the first does the rest alone."""


class SepNormWarning(UserWarning):
    """Every warning that sepnorm gives."""


class GuessWarning(SepNormWarning):
    """Something that the user did not say was taken for granted."""


class LeftOutWarning(SepNormWarning):
    """A part of the data is not used, because it cannot be or because a setting says so."""


class CollapseWarning(SepNormWarning):
    """[CLS] collapses while a model trains."""


def tell_limit(used: int, of: str, key: str, value: int | None = None) -> None:
    """Says that a setting, most often a preset's, keeps a part of the data out."""
    said = f"{used:,} of {of} are used, as {key}={used if value is None else value} says: --set {key}=null takes all."
    warnings.warn(said, LeftOutWarning, stacklevel=3)


def as_notes(silent: bool = False) -> None:
    """In a command, what was left out of the data or guessed is said in a line; other warnings are in what it prints."""
    usual = warnings.showwarning

    def say(message: Warning | str, category: type[Warning], *rest: Any, **others: Any) -> None:
        if issubclass(category, LeftOutWarning | GuessWarning | CollapseWarning):
            print(printable(f"Note: {message}"), file=sys.stderr)
        else:
            usual(message, category, *rest, **others)

    warnings.showwarning = say
    warnings.filterwarnings("ignore", category=SepNormWarning)
    if not silent:
        for category in (LeftOutWarning, GuessWarning, CollapseWarning):
            warnings.filterwarnings("once", category=category)


def printable(text: str) -> str:
    """A name as text that can be written and shown: bytes that are no UTF-8, and signs that steer a terminal, by backslashes."""
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in shown)


def one_line(error: BaseException) -> str:
    """What an error of another library says, as a part of a sentence: its first line, or else its name."""
    return str(error).strip().split("\n")[0].rstrip(".:") or type(error).__name__


# Libraries in C++ raise a plain RuntimeError for what has a class of its own in Python. Their words are all that tells.


def is_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the machine or of an accelerator."""
    words = ("allocate memory", "out of memory", "could not create a primitive")  # the last are oneDNN's
    return isinstance(error, MemoryError) or _says(error, words)


def is_of_lost_process(error: BaseException) -> bool:
    """Whether another process of a group is gone: gloo and NCCL."""
    return isinstance(error, RuntimeError) and _says(error, ("Connection", "gloo", "NCCL", "peer", "imed out"))


def is_of_full_disk(error: BaseException) -> bool:
    """Whether a file could not be written: safetensors and torch's archives."""
    return isinstance(error, OSError) or _says(error, ("I/O error", "iostream error", "inline_container"))


def _says(error: BaseException, words: Iterable[str]) -> bool:
    return any(word in str(error) for word in words)


def require_known(what: str, name: str, known: Iterable[str]) -> str:
    """The name, if it is among those that are known."""
    names = list(known)
    if name not in names:
        raise SepNormError(f"there is no {what} {name!r}: there are {', '.join(names)}.{nearest(name, names)}")
    return name


def nearest(name: str, known: Iterable[str]) -> str:
    """``" Did you mean 'layer'?"`` where one of ``known`` looks like ``name``, else an empty string."""
    match = difflib.get_close_matches(str(name).lower(), list(known), n=1, cutoff=0.4)
    return f" Did you mean {match[0]!r}?" if match else ""
