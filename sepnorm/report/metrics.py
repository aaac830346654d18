"""Which metrics and which arms of a comparison are shown, and by what name."""

from __future__ import annotations

import math

from sepnorm.experiment.runs import Arm, Comparison, higher_is_better

#: How metrics are called in tables, in the order of the columns; others are in results.json.
NAMES = {
    "cls_linear_top1": "[CLS] linear",
    "cls_linear_bn_top1": "[CLS] linear, with BN",
    "cls_knn": "[CLS] kNN",
    "mean_linear_top1": "mean linear",
    "mean_knn": "mean kNN",
    "cls_sts_average": "[CLS] STS",
    "mean_sts_average": "mean STS",
    "cls_transfer_average": "[CLS] transfer",
    "cls_sts_before": "[CLS] STS before training",
    "test_mae": "test MAE",
    "test_rmse": "test RMSE",
    "test_roc_auc": "test ROC AUC",
    "test_average_precision": "test average precision",
    "valid_mae": "validation MAE",
    "valid_roc_auc": "validation ROC AUC",
    "probe_mae": "[CLS] probe MAE",
    "probe_rmse": "[CLS] probe RMSE",
    "probe_roc_auc": "[CLS] probe ROC AUC",
    "probe_average_precision": "[CLS] probe average precision",
    "development": "development set",
    "cls_alignment": "[CLS] alignment",
    "cls_uniformity": "[CLS] uniformity",
    "cls_effective_rank": "[CLS] effective rank",
    "loss": "final loss",
}
#: Shown where a study asks for them.
_OTHERS = {
    "cls_centred_knn": "[CLS] kNN, centred",
    "cls_whitened_knn": "[CLS] kNN, whitened",
    "cls_sts_centred": "[CLS] STS, centred",
    "cls_sts_whitened": "[CLS] STS, whitened",
    "recalibration_gain_linear": "[CLS] linear, gain by statistics measured anew",
}
#: What can be measured without labels.
GEOMETRY = ("cls_uniformity", "cls_effective_rank")
_SHAPE = ("cls_alignment", *GEOMETRY)
#: Arms that have figures of their own.
MOST_ARMS = 6
#: Sets that have a column of their own beside their average.
MOST_SETS = 6
#: What a set of molecules is scored by, and how that is called.
_PROBES = {"rmse": "RMSE", "roc_auc": "ROC AUC"}


def name_of(metric: str) -> str:
    """How a metric is called in tables.

    >>> name_of("cls_knn"), name_of("cls_stsb"), name_of("probe_esol_rmse")
    ('[CLS] kNN', '[CLS] stsb', '[CLS] probe of esol, RMSE')
    """
    if (found := (NAMES | _OTHERS).get(metric)) is not None:
        return found
    for score, said in _PROBES.items():
        if metric.startswith("probe_") and metric.endswith(f"_{score}"):
            return f"[CLS] probe of {metric.removeprefix('probe_').removesuffix(f'_{score}')}, {said}"
    return metric.replace("cls_", "[CLS] ", 1).replace("_", " ")


def shown_metrics(comparison: Comparison) -> list[str]:
    """Those with a name here, and single sets before the geometry where these are few; where there is none, all."""
    named = [metric for metric in NAMES if metric in comparison.metrics]
    single = [
        metric for metric in comparison.metrics if metric not in NAMES | _OTHERS and _is_of_a_set(metric, comparison)
    ]
    if not named and not single:
        return comparison.metrics
    if 1 < len(single) <= MOST_SETS or not any(metric.endswith("_average") for metric in named):
        place = next((i for i, metric in enumerate(named) if metric in (*_SHAPE, "loss")), len(named))
        named[place:place] = single
    return named


def _is_of_a_set(metric: str, comparison: Comparison) -> bool:
    """Of text, what is there by [CLS] and by the mean of tokens; of molecules, what a set is usually scored by."""
    both = metric.startswith("cls_") and metric.replace("cls_", "mean_", 1) in comparison.metrics
    probe = metric.startswith("probe_") and metric.endswith(tuple(f"_{score}" for score in _PROBES))
    return probe or (both and "cls_linear_top1" not in comparison.metrics and "before" not in metric)


def probes(comparison: Comparison) -> list[str]:
    """What says how good the embeddings are for something, rather than what shape they have."""
    return [metric for metric in shown_metrics(comparison) if metric not in (*_SHAPE, "loss")]


def leading_metrics(comparison: Comparison) -> list[str]:
    """What arms are told apart by: the first probe, or the geometry of [CLS] where there are no labels to probe with."""
    shown = shown_metrics(comparison)
    return probes(comparison)[:1] or [metric for metric in GEOMETRY if metric in shown] or shown[:1]


def ranked(comparison: Comparison) -> list[Arm]:
    """The arms beside the baseline, the best by the leading metric first; one that was not measured comes last."""
    leading = leading_metrics(comparison)

    def place(arm: Arm) -> float:
        found = arm.interval(leading[0]) if leading else None
        if found is None or math.isnan(found.mean):
            return math.inf
        return -found.mean if higher_is_better(leading[0]) else found.mean

    return sorted(comparison.arms[1:], key=place)


def shown_arms(comparison: Comparison) -> list[Arm]:
    """The arms that have figures of their own, in their order: all, or else the baseline and the best others."""
    kept = ranked(comparison)[: MOST_ARMS - 1]
    return [arm for arm in comparison.arms if arm is comparison.arms[0] or arm in kept]


def references(comparison: Comparison) -> list[Arm]:
    """What the others are subtracted from: the baseline, and of three arms or more the next with the same lambda."""
    baseline, *others = comparison.arms
    alike = [arm for arm in others if arm.config.uniformity_weight == baseline.config.uniformity_weight]
    return [baseline, *alike[:1]] if len(others) > 1 else [baseline]


def without_lambda(arm: Arm) -> str:
    """The name of an arm's norm and sites alone."""
    return arm.config.changed({"uniformity_weight": 0.0}).arm
