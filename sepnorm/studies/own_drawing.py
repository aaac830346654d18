"""The tables of our own studies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.intervals import difference
from sepnorm.experiment.spread import spread_of, stacked
from sepnorm.report.page import Section
from sepnorm.report.progress_figures import progress_curves
from sepnorm.report.runs import embeddings
from sepnorm.report.tables import Table
from sepnorm.studies.drawn import MEANS, Drawn, Found, by_part, name_of, number
from sepnorm.studies.steps import PROBES, steps_tables

_MAIN = (
    "cls_linear_top1",
    "cls_linear_bn_top1",
    "cls_knn",
    "mean_linear_top1",
    "mean_knn",
    "cls_sts_average",
    "mean_sts_average",
    "cls_uniformity",
    "cls_effective_rank",
)


def part_tables(found: Found) -> Drawn:
    """The main metrics of every part, with differences to its first arm."""
    tables: list[Table] = []
    for part, comparison in found:
        tables += by_part([(part, comparison)], {m: name_of(comparison, m) for m in _MAIN if m in comparison.keys})
    return Drawn(tables, note=MEANS)


def step_tables(found: Found) -> Drawn:
    """The main metrics, steps until each arm reaches the best of ``bn`` and ``bn+bn``, and accuracy over training."""
    drawn = part_tables(found)
    for part, comparison in found:
        drawn.tables += steps_tables(part.name, comparison)
        drawn.sections.append(Section(f"Training on {part.name}", figures=progress_curves(comparison.arms, PROBES)))
    drawn.note += (
        " Steps: when the probe of an arm first reaches the best that the probe of bn, or of bn+bn, had with the same seed. "
        "The probe reads some of the images, and between its readings the curve is a straight line. Mixture Normalisation "
        "was published with CNNs trained with labels on CIFAR. There it took 31 to 47 % fewer updates than BatchNorm to "
        "BatchNorm's best accuracy. A masked autoencoder with one such norm, probed, is another setting."
    )
    return drawn


def seed_tables(found: Found) -> Drawn:
    """Spread over seeds of the difference in [CLS] linear, if all varies and if only weights or order vary."""
    head = [
        "what seeds change",
        "minus the first arm",
        "seeds",
        "mean",
        "deviation",
        "of it by the test images",
        "by the models",
    ]
    rows = []
    for part, comparison in found:
        baseline = comparison.arms[0]
        for arm in comparison.arms[1:]:
            gap = comparison.difference(arm, comparison.declared.find("cls_linear_top1"))
            spread = spread_of(stacked(_rights(arm), _rights(baseline)))
            deviation = f"{spread.total:.4f} ({spread.low:.4f} to {spread.high:.4f})"
            parts = (f"{spread.test:.4f}", f"{spread.models:.4f}")
            rows.append([part.name, arm.name, str(len(arm.metrics)), str(gap or ""), deviation, *parts])
    note = (
        "Differences in [CLS] linear, paired by seed. Deviations are standard deviations over seeds, with 95 % intervals; what the "
        "test images and the models add is told apart by a two-way layout of seeds and images, and their squares sum up."
    )
    return Drawn([(head, rows)], note=note)


def _rights(arm: Arm) -> dict[int, Tensor]:
    """Which test samples the linear probe of [CLS] gets right, by seed."""
    return {seed: embeddings(folder / "embeddings.npz")["cls_right"] for seed, folder in arm.folders.items()}


def probe_tables(found: Found) -> Drawn:
    """The gain of a BatchNorm before the head, and of re-estimated statistics."""
    metrics = ("cls_linear_top1", "cls_linear_bn_top1", "recalibration_gain_linear")
    return _answers(found, metrics, [("cls_linear_bn_top1", "cls_linear_top1")])


def pooling_tables(found: Found) -> Drawn:
    """Mean and moments of tokens minus [CLS], and moments minus mean, in every arm."""
    triples = [(f"cls_{score}", f"mean_{score}", f"moments_{score}") for score in ("linear_top1", "knn", "sts_average")]
    for _, comparison in found:  # probes of [VNode] have no prefix, and their sets depend on the data
        shown = [key for key in comparison.keys if comparison.declared.find(key).shown]
        triples += [(key, f"mean_{key}", f"moments_{key}") for key in shown if f"moments_{key}" in comparison.keys]
    triples = list(dict.fromkeys(triples))
    pairs = [(a, b) for cls, mean, moments in triples for a, b in ((mean, cls), (moments, cls), (moments, mean))]
    return _answers(found, [each for triple in triples for each in triple], pairs)


def whitening_tables(found: Found) -> Drawn:
    """The gain of centring and whitening in every arm, and every plain arm against a centred or whitened baseline."""
    ways = [
        ("cls_centred_knn", "cls_knn"),
        ("cls_whitened_knn", "cls_knn"),
        ("cls_sts_centred", "cls_sts_average"),
        ("cls_sts_whitened", "cls_sts_average"),
    ]
    drawn = _answers(found, list(dict.fromkeys(each for pair in ways for each in reversed(pair))), ways)
    for part, comparison in found:
        baseline, *others = comparison.arms
        rivals = [(done, plain) for done, plain in ways if done in comparison.keys]
        rows = [[arm.name, *(_gap(arm, plain, baseline, done) for done, plain in rivals)] for arm in others]
        head = [
            f"{part.name}, {name_of(comparison, plain)}, minus {name_of(comparison, done)}, of {baseline.name}"
            for done, plain in rivals
        ]
        drawn.tables.append(([f"ours, against {baseline.name}", *head], rows))
    return drawn


def _answers(found: Found, metrics: Sequence[str], pairs: Sequence[tuple[str, str]]) -> Drawn:
    """The metrics of every part with differences between arms, then the difference of each pair within every arm."""
    tables: list[Table] = []
    for part, comparison in found:
        tables += by_part([(part, comparison)], {m: name_of(comparison, m) for m in metrics if m in comparison.keys})
        there = [pair for pair in pairs if set(pair) <= set(comparison.keys)]
        head = [
            "in each arm",
            *(f"{part.name}, {name_of(comparison, one)}, minus {name_of(comparison, other)}" for one, other in there),
        ]
        tables.append(
            (
                head,
                [
                    [arm.name, *(_gap(arm, one, arm, other, _higher(comparison, one)) for one, other in there)]
                    for arm in comparison.arms
                ],
            )
        )
    return Drawn(tables, note=MEANS)


def _gap(arm: Arm, metric: str, to: Arm, other: str, higher: bool | None = True) -> str:
    """One score minus another of the same kind, paired by seed; ``higher``: whether more is better."""
    gap = difference(arm.values(metric), to.values(other), higher_is_better=higher)
    return "" if gap is None else f"{number(gap.mean, gap.half, False, '+')} {gap.verdict or ''}"


def _higher(comparison: Comparison, key: str) -> bool | None:
    return comparison.declared.find(key).higher_is_better


def merged_table(found: Found) -> Drawn:
    """The arms of all parts in one table, each named after its part, with differences to the first arm."""
    arms: list[Arm] = []
    for part, comparison in found:
        for arm in comparison.arms:
            name = arm.name if arm.config.norm == "ln" else f"{arm.name}, {part.name}"
            if name not in [each.name for each in arms]:
                arms.append(Arm(name, arm.config, arm.metrics, arm.losses, arm.folders))
    whole = Comparison(arms, found[0][1].declared)
    metrics = {m: name_of(whole, m) for m in _MAIN if m in whole.keys}
    first = found[0][0]
    return Drawn(by_part([(replace(first, name=first.shared or first.name), whole)], metrics), note=MEANS)
