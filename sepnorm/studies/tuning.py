"""The study of tuning special tokens only, against other ways to adapt a pretrained encoder to a task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError, UnreadableDataError
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.intervals import Interval
from sepnorm.experiment.launchers import Watch
from sepnorm.experiment.launchers.local import places
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.experiment.running import compare
from sepnorm.experiment.runs import using_threads
from sepnorm.report.tables import Table
from sepnorm.studies.drawn import Drawn
from sepnorm.studies.tuning_runs import RATES, TASKS, TuningConfig, TuningRecipe, require_peft, seconds_a_step
from sepnorm.training.configs import ArmConfig

#: Name of the data, for ``--data transfer=PATH``.
DATA = "transfer"
SEEDS = 3
_STEPS = {"demo": 120, "small": 150, "paper": 150}  # the training part of TREC has 4,952 questions
METRICS = Metrics(
    [
        Metric("accuracy", "accuracy", True, primary=True),
        Metric("tuned_parameters", "trained parameters beside the head", higher_is_better=False),
        Metric("bytes", "bytes a task", higher_is_better=False),
        Metric("seconds_a_step", "seconds a step", higher_is_better=False, kind="training"),
    ]
)


def base_config(scale: str, given: Mapping[str, Any], data: Mapping[str, str]) -> TuningConfig:
    """The config of every run, checked before anything is run."""
    start = TuningConfig(steps=_STEPS[scale], data=data.get(DATA, ""))
    for key in given:
        if key in ("task", "method", "learning_rate", "choosing"):
            raise SepNormError(f"{key} is what the study compares, and cannot be set.")
        if key in ArmConfig.model_fields and key not in TuningConfig.__annotations__:
            raise SepNormError(f"{key} has no effect on the study of tuning, and cannot be set.")
    return start.changed(given)


def tuning(
    base: TuningConfig, seeds: int | None, folder: Path, launcher: str = "local", watch: Watch | None = None
) -> Drawn:
    """Chooses learning rates on development data, then trains each method on each task with every seed."""
    require_peft()
    found: dict[str, Comparison] = {}
    for task in TASKS:
        started = base.changed({"task": task})
        rates = _chosen_rates(_compared(started, _tried(started), 1, folder / f"tuning-{task}-rates", launcher, watch))
        configs = [started.changed({"method": method, "learning_rate": rates.get(method, 0.0)}) for method in RATES]
        found[task] = _compared(started, configs, seeds or SEEDS, folder / f"tuning-{task}", launcher, watch)
    return draw(found)


def planned(base: TuningConfig, seeds: int | None) -> Table:
    """Runs, steps and hours of the study, from a short measurement; reading and scoring come on top."""
    with using_threads(base):
        full, tuned = (seconds_a_step(base, method) for method in ("full", "pasta"))
    trained = {method: full if method == "full" else tuned for method, rates in RATES.items() if rates}
    rows = []
    for task in TASKS:
        tried, finals = _tried(base.changed({"task": task})), seeds or SEEDS
        for part, runs, steps, seconds in (
            (f"{task}, learning rates", len(tried), tried[0].steps, sum(trained[each.method] for each in tried)),
            (task, len(RATES) * finals, base.steps, sum(trained.values()) * finals),
        ):
            hours = seconds * steps / 3600 / min(places(base), runs)
            rows.append([part, str(runs), str(steps), f"{hours:.2g}"])
    return ["part", "runs", "steps a run", "hours in all"], rows


def _tried(base: TuningConfig) -> list[TuningConfig]:
    """A config for each learning rate, with half of the steps."""
    steps = max(1, base.steps // 2)
    return [
        base.changed({"method": method, "learning_rate": rate, "choosing": True, "steps": steps})
        for method, rates in RATES.items()
        for rate in rates
    ]


def _chosen_rates(tried: Comparison) -> dict[str, float]:
    """The best rate of each method on development data; the lower one of equal ones."""
    best: dict[str, tuple[float, float]] = {}
    for arm in tried.arms:
        config: Any = arm.config
        accuracy = arm.metrics[0]["accuracy"]
        if config.method not in best or accuracy > best[config.method][0]:
            best[config.method] = accuracy, config.learning_rate
    return {method: rate for method, (_, rate) in best.items()}


def _compared(
    base: TuningConfig, configs: list[TuningConfig], seeds: int, folder: Path, launcher: str, watch: Watch | None
) -> Comparison:
    try:
        return compare(TuningRecipe, METRICS, base, configs, range(seeds), folder, launcher, watch)
    except UnreadableDataError as error:
        raise SepNormError(
            f"the data of {base.task} is not available here: name a copy by --data '{DATA}=PATH', a table with the columns "
            f"task, split, label and text, or SentEval's folder. {error}"
        ) from error


def draw(found: Mapping[str, Comparison]) -> Drawn:
    """Accuracy with intervals, differences to full fine-tuning, and the cost of each method."""
    first = next(iter(found.values()))
    names = [arm.name for arm in first.arms]
    accuracy: Table = (["accuracy, %", *map(str.upper, found)], [[name, *_cells(found, name)] for name in names])
    gaps: Table = (
        ["difference to full, points", *map(str.upper, found)],
        [[name, *_gaps(found, name)] for name in names[1:]],
    )
    costs: Table = (
        ["cost", "trained beside the head", "bytes a task", "time of a step, full = 1", "learning rates"],
        [_costs(found, name) for name in names],
    )
    config: Any = first.arms[0].config
    texts, seeds = config.steps * config.batch_size, len(first.arms[0].metrics)
    note = (
        f"{config.model}, a linear head on [CLS], {config.steps} steps of {config.batch_size} texts of at most {config.length} "
        f"tokens: {texts:,} texts, each once. Mean and 95 % interval over {seeds} seeds, which change the training texts, their "
        "order, the head and dropout. AdamW without decay or warm-up; the head learns as quickly as what is tuned, and at "
        f"{config.head_learning_rate:g} at least. Learning rates, in the order of the tasks, were chosen with half of the steps on "
        "development data, never on the test. The linear head is a logistic regression on frozen [CLS]. MR has no split: a tenth "
        "of it is the test."
    )
    return Drawn([accuracy, gaps, costs], note=note)


def _arms(found: Mapping[str, Comparison], name: str) -> Iterator[tuple[Comparison, Arm]]:
    for comparison in found.values():
        yield comparison, next(arm for arm in comparison.arms if arm.name == name)


def _cells(found: Mapping[str, Comparison], name: str) -> list[str]:
    return [_percent(arm.interval("accuracy")) for _, arm in _arms(found, name)]


def _gaps(found: Mapping[str, Comparison], name: str) -> list[str]:
    metric = METRICS.find("accuracy")
    return [_percent(comparison.difference(arm, metric), sign="+") for comparison, arm in _arms(found, name)]


def _percent(found: Interval | None, sign: str = "") -> str:
    if found is None:
        return ""
    half = "" if math.isnan(found.half) else f" ± {100 * found.half:.1f}"
    return f"{100 * found.mean:{sign}.1f}{half}"


def _costs(found: Mapping[str, Comparison], name: str) -> list[str]:
    arms = [arm for _, arm in _arms(found, name)]
    first = next(iter(arms[0].metrics.values()))
    ratios = [
        min(arm.values("seconds_a_step").values()) / min(comparison.arms[0].values("seconds_a_step").values())
        for comparison, arm in _arms(found, name)
        if arm.values("seconds_a_step")
    ]
    rates = [f"{arm.config.learning_rate:g}" for arm in arms]  # type: ignore[attr-defined]
    return [
        name,
        f"{first['tuned_parameters']:,.0f}",
        f"{first['bytes']:,.0f}",
        f"{sum(ratios) / len(ratios):.2f}" if ratios else "",
        ", ".join(rates) if ratios else "",
    ]
