"""``sepnorm.compare``: arms, seeds, statistics and the page for a training function of one's own."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sepnorm.arguments import require_module, whole
from sepnorm.domains.comparison import keep_earlier, write_comparison_folder
from sepnorm.errors import InterruptedRunError, RunFailedError, SepNormError, one_line
from sepnorm.experiment.comparison import Comparison
from sepnorm.experiment.comparison import compare as compare_configs
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.experiment.runs import Outcome
from sepnorm.files import make_folder, write_text
from sepnorm.report.progress import training_progress
from sepnorm.surgery.conversion import convert
from sepnorm.surgery.reports import ConversionReport
from sepnorm.training.configs import ArmConfig, build, parse_arm

#: Seeds at most, where they are added until every arm is decided.
MOST_SEEDS = 12


@dataclass(frozen=True)
class Arm:
    """What a training function is handed: the name of the arm, its norm and its sites."""

    name: str
    norm: str
    sites: str

    def apply(self, model: nn.Module, **options: Any) -> ConversionReport | None:
        """Converts a model in place, as ``convert`` does, which takes the same options; ``ln`` leaves it as it is."""
        require_module(model)
        return None if self.norm == "ln" else convert(model, self.norm, sites=self.sites, **options)


#: From an arm, a seed and a folder for files of one's own to metrics by name.
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
    """Runs a training function with every arm and seed, and writes results and page to a folder.

    What is finished is not run again: the same call goes on after an interruption. A run that raises is named with its arm and
    seed once all others are done.

    Args:
        run: ``run(arm, seed, folder)`` trains one model and returns its metrics. ``arm.apply(model)`` gives the model its norms.
            Random numbers of Python, NumPy and torch begin from the seed. ``folder`` is the run's own, for checkpoints.
        arms: as ``["ln", "bn@final", "bn+ln@final"]``, the baseline first.
        seeds: how many, or ``"auto"``: they are added until every arm is better, worse or equal, up to ``most``.
        out: the folder of runs, ``results.json`` and ``report.html``.
        metrics: whether more is better, by name, as ``{"accuracy": True, "loss": False}``; or ``Metric`` objects. Arms are
            judged by the first of them, or by the one that is primary.
        margin: the difference that is practically none; by default 1 % of the baseline's mean.
        workers: runs side by side in processes of their own; ``run`` is then a function of a module that can be imported.
        launcher: ``"local"``, or a scheduler as for ``sepnorm compare --launcher``.
        title: of the page.
        quiet: no progress on the error channel.

    Returns:
        The comparison, whose ``decisions()`` are the verdicts by the name of the arm.
    """
    if not callable(run):
        raise SepNormError(f"run is a function of an arm, a seed and a folder, found {run!r}.")
    declared = declare(metrics)
    adaptive = seeds == "auto"
    if isinstance(seeds, str) and not adaptive:
        raise SepNormError(f"seeds is a number or 'auto', found {seeds!r}.")
    count = whole(most, "most", least=3) if adaptive else whole(seeds, "seeds", least=1)
    workers = whole(workers, "workers", least=1)
    name = title or getattr(run, "__name__", "own training")
    threads = max(1, (os.cpu_count() or 1) // workers) if workers > 1 else 0
    configs = [build(ArmConfig, {"data": name, "threads": threads} | parse_arm(arm)) for arm in _several(arms)]
    folder = Path(out)
    make_folder(folder)
    keep_earlier(folder, [config.arm for config in configs])
    recipe = OwnRecipe(run, tuple(metric.key for metric in declared.declared if metric.primary))
    with training_progress(quiet) as watch:
        found = compare_configs(
            recipe.opened, declared, configs[0], configs, range(count), folder, launcher, watch, margin, adaptive
        )
    _refuse_different(found)
    write_comparison_folder(found, folder, f"Shared and separate norms: {name}")
    return found


def declare(metrics: Mapping[str, bool] | Sequence[Metric]) -> Metrics:
    """The metrics of a user's own; the first is primary unless another one is said to be."""
    if isinstance(metrics, Mapping):
        for key, better in metrics.items():
            if not isinstance(better, bool):
                raise SepNormError(
                    f"metrics says whether more is better: {{{key!r}: True}} or False, found {better!r}."
                )
        found = [Metric(str(key), str(key).replace("_", " "), better) for key, better in metrics.items()]
    else:
        found = list(metrics) if isinstance(metrics, Iterable) else []
    if not found or not all(isinstance(metric, Metric) for metric in found):
        raise SepNormError(
            "metrics says which metrics runs give and whether more is better, as {'accuracy': True, 'loss': False}: name at least "
            f"one, found {metrics!r}."
        )
    if not any(metric.primary for metric in found):
        first = found[0]
        found[0] = replace(first, primary=True)
    return Metrics(found)


def _several(arms: Sequence[str]) -> list[str]:
    if isinstance(arms, str) or len(list(arms)) < 2:
        raise SepNormError(f"a comparison has at least two arms, as ['ln', 'bn+ln@final'], found {arms!r}.")
    return [str(arm) for arm in arms]


def _refuse_different(found: Comparison) -> None:
    """Runs of a comparison give the same metrics."""
    first = found.arms[0]
    wanted = set(next(iter(first.metrics.values())))
    for arm in found.arms:
        for seed, metrics in arm.metrics.items():
            if odd := sorted(wanted ^ set(metrics)):
                raise SepNormError(
                    f"runs give different metrics: {', '.join(odd)} is not in both {first.name}, seed {min(first.metrics)}, and "
                    f"{arm.name}, seed {seed}. Return the same names in every run, and remove {arm.folders[seed]}."
                )


class OwnRecipe:
    """A run of the user's function as a run of ours: its folder, its random numbers, and its metrics, checked."""

    def __init__(self, run: Run, required: tuple[str, ...]) -> None:
        self.own, self.required = run, required

    def opened(self, base: ArmConfig) -> OwnRecipe:
        """Nothing is read before a run."""
        return self

    def run(self, config: ArmConfig, folder: Path, report: Any = None) -> Outcome:
        place = folder.parent  # of the whole run; what is in ``folder`` goes when it is finished
        which = f"the run of {config.arm}, seed {config.seed}"
        _begin_from(config.seed)
        try:
            found = self.own(Arm(config.arm, config.norm, config.sites), config.seed, place)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"{which} was stopped, and those before it are saved in {place.parent}",
                "the same call goes on from there",
            ) from None
        except Exception as error:
            write_text(place / "error.txt", traceback.format_exc())
            raise RunFailedError(
                f"{which} raised {type(error).__name__}: {one_line(error)} ({place / 'error.txt'})."
            ) from error
        metrics = self._checked(found, which)
        (place / "error.txt").unlink(missing_ok=True)  # of an earlier try
        return Outcome(metrics, [], {}, lambda folder: folder.mkdir(parents=True, exist_ok=True))

    def _checked(self, found: Any, which: str) -> dict[str, float]:
        if not isinstance(found, Mapping):
            raise RunFailedError(f"{which} returned {type(found).__name__}: return metrics, as {{'accuracy': 0.9}}.")
        metrics: dict[str, float] = {}
        for key, value in found.items():
            try:
                metrics[str(key)] = float(value)
            except (TypeError, ValueError):
                raise RunFailedError(f"{which} gave {key!r} as {value!r}, which is no number.") from None
        for key in self.required:
            if key not in metrics:
                raise RunFailedError(f"{which} gave no {key!r}: it gave {', '.join(metrics) or 'nothing'}.")
        bad = [key for key, value in metrics.items() if not torch.isfinite(torch.tensor(value))]
        if bad:
            raise RunFailedError(f"{which} gave {bad[0]!r} as {metrics[bad[0]]}: nothing can be compared with that.")
        return metrics


def _begin_from(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed)  # the generator that older code draws from
