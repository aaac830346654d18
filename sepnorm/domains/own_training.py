"""``sepnorm.compare``: arms, seeds, statistics and page for your own training function."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from sepnorm.arguments import number, require_module, whole
from sepnorm.distributed import cores
from sepnorm.domains.comparison import run_and_write, short_text
from sepnorm.domains.earlier import keep_earlier
from sepnorm.domains.own_checks import (
    require_declared,
    require_importable,
    warn_of_copies,
    warn_of_different,
    warn_of_earlier_code,
    warn_of_same,
)
from sepnorm.errors import InterruptedRunError, RunFailedError, SepNormError
from sepnorm.experiment.comparison import Comparison
from sepnorm.experiment.launcher_settings import refuse_many_processes
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.experiment.running import compare as compare_configs
from sepnorm.experiment.runs import Outcome, record_failure
from sepnorm.experiment.slugs import run_folder
from sepnorm.files import make_folder
from sepnorm.report.progress import training_progress
from sepnorm.report.terminal import say
from sepnorm.surgery.conversion import convert
from sepnorm.surgery.reports import ConversionReport
from sepnorm.training.configs import ArmConfig, build, parse_arm

#: Default largest number of seeds with ``seeds="auto"``.
MOST_SEEDS = 12
_LONGEST = 80  # letters of a wrong value in a sentence
_FILES = "files"  # the user's part of a run's folder, in which nothing of ours is written or deleted


@dataclass(frozen=True)
class Arm:
    """The arm that a training function receives.

    Args:
        name: its name, as ``bn+ln@final``.
        norm: its norms, [CLS] first, as ``bn+ln``.
        sites: the norms that it replaces, as ``final``.
    """

    name: str
    norm: str
    sites: str

    def apply(self, model: nn.Module, **options: Any) -> ConversionReport | None:
        """Gives a model the arm's norms, in place. Nothing changes for the norm ``ln``.

        Args:
            model: the model.
            **options: further arguments of ``sepnorm.convert``.

        Returns:
            The report of ``convert``; None for ``ln``.
        """
        require_module(model)
        return None if self.norm == "ln" else convert(model, self.norm, sites=self.sites, **options)


class OwnConfig(ArmConfig):
    """Settings of a run of a user's function. ``data`` was the title in earlier versions."""

    incidental: ClassVar[frozenset[str]] = frozenset({"data", "threads"})
    foreign: ClassVar[bool] = True

    data: str = "own training"


#: ``run(arm, seed, folder)`` returns metrics by name.
Run = Callable[[Arm, int, Path], Mapping[str, float]]


def compare(
    run: Run,
    arms: Sequence[str],
    seeds: int | str = 5,
    out: str | Path = "runs/own",
    *,
    metrics: Mapping[str, bool] | Sequence[Metric],
    margin: float | None = None,
    most: int = MOST_SEEDS,
    workers: int = 1,
    launcher: str = "local",
    title: str | None = None,
    quiet: bool = False,
) -> Comparison:
    """Runs your training function with every arm and seed, compares the arms, and writes results and a page.

    Finished runs are not repeated, so the same call continues after an interruption. If a run raises, the others go on,
    with ``"auto"`` those of the same seed. The error at the end names its arm and seed, and the page has the seeds that
    are complete. If an arm always fails, call again without it: the others go on, and verdicts stay corrected for it.

    Args:
        run: ``run(arm, seed, folder)`` trains one model and returns its metrics by name. Call ``arm.apply(model)`` to
            give the model its norms; a module of your own needs ``arm.apply(model, example=batch)``. Python, NumPy and
            torch are seeded before; pass ``seed`` on to libraries that seed themselves. ``folder`` is the run's own, for
            a model and checkpoints: it exists, nothing else is written to it, and it is kept.
        arms: names such as ``["ln", "bn@final", "bn+ln@final"]``, baseline first.
        seeds: number of seeds; or ``"auto"``: seeds are added until every arm is better, worse or equal, up to
            ``most``.
        out: folder for the runs, ``results.json`` and ``report.html``.
        metrics: by name, whether higher is better, as ``{"accuracy": True, "loss": False}``; or ``Metric`` objects.
            Arms are judged by the primary metric, or else the first. Of several primary ones, the first that runs
            return decides; each other metric must be returned, and may be NaN. Further names are kept in
            ``results.json``.
        margin: largest difference that counts as equal; default 1 % of the baseline's mean.
        most: largest number of seeds with ``seeds="auto"``.
        workers: largest number of parallel runs on this machine, which share its cores. With more than one, ``run``
            must be a function of an importable module.
        launcher: ``"local"``, or a scheduler as for ``sepnorm compare --launcher``.
        title: title of the page.
        quiet: print neither progress nor the table.

    Returns:
        The comparison. Its ``decisions()`` are the verdicts by name of the arm.

    Raises:
        SepNormError: if an argument is wrong, a run failed, or runs return different metrics.
    """
    refuse_many_processes()
    if not callable(run):
        raise SepNormError(f"run must be a function of an arm, a seed and a folder, found {run!r}.")
    declared = declare(metrics)
    margin = None if margin is None else number(margin, "margin", least=0)
    adaptive = seeds == "auto"
    if isinstance(seeds, str) and not adaptive:
        raise SepNormError(f"seeds is a number or 'auto', found {seeds!r}.")
    if adaptive and all(each.higher_is_better is None for each in declared.declared if each.primary):
        raise SepNormError(
            "seeds='auto' needs a primary metric with a better direction, or no arm is ever decided: say higher_is_better as True "
            "or False, or give a number of seeds."
        )
    count = whole(most, "most", least=3) if adaptive else whole(seeds, "seeds", least=1)
    workers = whole(workers, "workers", least=1)
    if workers > 1 and launcher == "local":
        require_importable(run)
    name = title or getattr(run, "__name__", "own training")
    threads = max(1, cores() // workers) if workers > 1 else 0
    configs = [build(OwnConfig, {"threads": threads} | parse_arm(arm)) for arm in _several(arms)]
    folder = Path(out)
    make_folder(folder)
    dropped = keep_earlier(folder, [config.arm for config in configs], ("out=", "arms="))
    warn_of_earlier_code(run, folder)
    require_declared(declared, [run_folder(folder, config.arm, seed) for config in configs for seed in range(count)])
    recipe = OwnRecipe(run, declared)

    def checked() -> Comparison:
        with training_progress(quiet) as watch:
            found = compare_configs(
                recipe.opened, declared, configs[0], configs, range(count), folder, launcher, watch, margin, adaptive,
                workers, dropped,
            )  # fmt: skip
        warn_of_different(found)
        return found

    found, page = run_and_write(checked, folder, f"Shared and separate norms: {name}")
    warn_of_copies(found)
    warn_of_same(found)
    if not quiet:
        say(f"{short_text(found)}\nReport: {page}", error=True)
    return found


def declare(metrics: Mapping[str, bool] | Sequence[Metric]) -> Metrics:
    """Builds metrics from the user's argument. The first is primary unless another is marked so."""
    if isinstance(metrics, Mapping):
        for key, better in metrics.items():
            if not isinstance(better, bool):
                raise SepNormError(
                    f"metrics must say whether higher is better, as {{{key!r}: True}} or False, found {better!r}."
                )
        found = [Metric(str(key), str(key).replace("_", " "), better) for key, better in metrics.items()]
    else:
        found = list(metrics) if isinstance(metrics, Iterable) else []
    if not found or not all(isinstance(metric, Metric) for metric in found):
        raise SepNormError(
            "metrics must name at least one metric and whether higher is better, such as {'accuracy': True, 'loss': False}, "
            f"found {metrics!r}."
        )
    if not any(metric.primary for metric in found):
        first = found[0]
        found[0] = replace(first, primary=True)
    return Metrics(found)


def _several(arms: Iterable[str]) -> list[str]:
    found = [] if isinstance(arms, str) or not isinstance(arms, Iterable) else [str(arm) for arm in arms]
    if len(found) < 2:
        raise SepNormError(f"a comparison has at least two arms, as ['ln', 'bn+ln@final'], found {found or arms!r}.")
    return found


class OwnRecipe:
    """Runs the user's function as a run of ours: folder, seeding, and checks of its metrics."""

    def __init__(self, run: Run, declared: Metrics) -> None:
        self.own, self.declared = run, declared

    def opened(self, base: ArmConfig) -> OwnRecipe:
        """Returns itself: there is no data to read."""
        return self

    def run(self, config: ArmConfig, folder: Path, report: Any = None) -> Outcome:
        place = folder.parent  # folder of the whole run; ``folder`` itself is deleted at its end
        which = f"the run of {config.arm}, seed {config.seed}"
        files = (place / _FILES).absolute()
        files.mkdir(parents=True, exist_ok=True)
        _begin_from(config.seed)
        try:
            with chdir("."):  # back to this folder, whichever the function changes to
                found = self.own(Arm(config.arm, config.norm, config.sites), config.seed, files)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"{which} was stopped, and those before it are saved in {place.parent}",
                "the same call goes on from there",
            ) from None
        except (Exception, SystemExit) as error:
            raise record_failure(config, place, error) from error
        metrics = self._checked(found, which)
        if (missing := self.declared.missing(metrics)) is not None:
            # the first run says what all would give; a later one is odd, and the others go on
            first = not any(place.parent.glob("*/metrics.json"))
            raise (SepNormError if first else RunFailedError)(
                f"{which} gave no {missing.key!r}: it gave {', '.join(metrics) or 'nothing'}."
            )
        (place / "error.txt").unlink(missing_ok=True)  # left by an earlier attempt
        return Outcome(metrics, [], {}, lambda folder: folder.mkdir(parents=True, exist_ok=True))

    def _checked(self, found: Any, which: str) -> dict[str, float]:
        if not isinstance(found, Mapping):
            raise RunFailedError(f"{which} returned {type(found).__name__}: return metrics, as {{'accuracy': 0.9}}.")
        metrics: dict[str, float] = {}
        for key, value in found.items():
            try:
                number = float(value.item() if hasattr(value, "item") else value)
                wrong = "" if math.isfinite(number) else f"as {number}: nothing can be compared with that."
            except (TypeError, ValueError, RuntimeError):
                number, wrong = None, f"as {_short(value)}, which is no number."
            except OverflowError:
                number, wrong = None, "as a number that is too large for a float."
            metric = self.declared.find(str(key))
            if wrong and self.declared.declares(metric.key) and (metric.primary or number is None):
                raise RunFailedError(f"{which} gave {key!r} {wrong}")
            if number is not None:  # words are left out, and what is not finite is kept as unknown
                metrics[metric.key] = math.nan if wrong else number
        return metrics


def _short(value: Any) -> str:
    """A value for a sentence: a tensor may fill pages."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _begin_from(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed)  # the global generator, which older code uses
