"""Checks of a user's training function and of what its runs return."""

from __future__ import annotations

import inspect
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType
from typing import Any

from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.experiment.comparison import Comparison
from sepnorm.experiment.metrics import Metrics
from sepnorm.files import intact, read_json, write_text
from sepnorm.report.comparison_words import COPIES


def warn_of_earlier_code(run: Callable[..., Any], folder: Path) -> None:
    """Warns if runs in ``folder`` were finished by another version of ``run``: they are not repeated."""
    try:
        # the source of a lambda is the whole call around it, in which arms or seeds may change
        now = _instructions(run.__code__) if getattr(run, "__name__", "") == "<lambda>" else inspect.getsource(run)
    except (OSError, TypeError):
        return
    kept = folder / "run.txt"
    if not any(folder.glob("runs/*/metrics.json")) or not kept.is_file():
        write_text(kept, now)
    elif kept.read_text(encoding="utf-8") != now:
        warnings.warn(
            f"the training function has changed since runs in {folder} were finished, and these are not repeated: unless the "
            "change does not matter, name another out, or remove that folder.",
            SepNormWarning,
            stacklevel=3,
        )


def _instructions(code: CodeType) -> str:
    """What a function does, without its place in a file."""
    constants = [_instructions(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, constants))


def require_importable(run: Callable[..., Any]) -> None:
    """Refuses functions that other processes cannot import, such as a lambda or one of a notebook."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if getattr(run, "__module__", "") == "__main__" and not (file and Path(file).is_file()):
        raise SepNormError(
            f"run is {getattr(run, '__qualname__', repr(run))} of a notebook or a shell, which other processes cannot import: with "
            "workers above 1, write it to a module and import it."
        )
    try:
        pickle.dumps(run)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise SepNormError(
            f"run is {getattr(run, '__qualname__', repr(run))}, which other processes cannot import: with workers above 1, define "
            "it at the top level of a module."
        ) from None


def require_declared(declared: Metrics, folders: Iterable[Path]) -> None:
    """Refuses metrics that finished runs in ``folders`` did not give, before more are run: they are not repeated."""
    for path in (folder / "metrics.json" for folder in folders):
        if not path.is_file():
            continue
        with intact(path):
            given = list(read_json(path))
        if (missing := declared.missing(given)) is not None:
            raise SepNormError(
                f"the finished run in {path.parent} gave no {missing.key!r}: it gave {', '.join(given)}. Name only these in "
                "metrics=, or remove that folder, so that the run is repeated."
            )


def warn_of_different(found: Comparison) -> None:
    """Warns of metrics that only some runs return. They are not declared, so nothing is judged by them."""
    runs = [(f"{arm.name}, seed {seed}", metrics) for arm in found.arms for seed, metrics in arm.metrics.items()]
    for key in found.keys:
        lacking = [run for run, metrics in runs if key not in metrics]
        if lacking and not found.declared.declares(key):
            warnings.warn(
                f"{len(lacking)} of {len(runs)} runs gave no {key!r}, that of {lacking[0]} first. It is not one of the declared "
                "metrics and changes no verdict.",
                SepNormWarning,
                stacklevel=3,
            )


def warn_of_same(found: Comparison) -> None:
    """Warns of arms whose runs are those of the baseline: their norms were most likely not applied."""
    baseline, *others = found.arms
    same = [arm.name for arm in others if found.judged(arm) == found.judged(baseline) != [{}] * len(baseline.metrics)]
    if same and len(baseline.metrics) > 1:
        warnings.warn(
            f"{', '.join(same)} gave the metrics of {baseline.name} in every seed: most likely run does not call "
            "arm.apply(model) on the model that it trains.",
            SepNormWarning,
            stacklevel=3,
        )


def warn_of_copies(found: Comparison) -> None:
    """Warns of seeds that change nothing: runs that set a seed of their own are copies of one run."""
    if found.copies:
        warnings.warn(
            f"{COPIES}, and no verdict counts. Use the seed that run receives, and pass it on to libraries that seed themselves, "
            "as TrainingArguments(seed=seed).",
            SepNormWarning,
            stacklevel=3,
        )
