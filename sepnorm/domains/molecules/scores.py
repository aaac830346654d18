"""Scores of predictions, and linear probes of frozen vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from sepnorm.domains.linear_heads import Rows, fit_ridge
from sepnorm.domains.logistic import fit_binary

#: Penalties of a probe, chosen by the validation score.
PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def scores(predicted: Tensor, true: Tensor, classes: bool) -> dict[str, float]:
    """``mae`` and ``rmse``, or ``roc_auc`` and ``average_precision``: means over targets, both (count, targets).

    Missing values (NaN in ``true``) and targets with only one class do not count. Empty if nothing is left.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    found: list[dict[str, float]] = []
    for guesses, values in zip(predicted.double().T, true.double().T, strict=True):
        known = values.isfinite()
        guesses, values = guesses[known], values[known]
        if not classes and len(values):
            errors = guesses - values
            found.append({"mae": float(errors.abs().mean()), "rmse": float(errors.square().mean().sqrt())})
        elif classes and len(values.unique()) == 2:
            found.append(
                {
                    "roc_auc": float(roc_auc_score(values.numpy(), guesses.numpy())),
                    "average_precision": float(average_precision_score(values.numpy(), guesses.numpy())),
                }
            )
    return {key: sum(each[key] for each in found) / len(found) for key in (found[0] if found else {})}


def probe(
    train: tuple[Tensor, Tensor], valid: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: bool
) -> dict[str, float]:
    """Test scores of ridge or logistic regression. Each split is a pair of features (count, dim) and targets.

    Features are standardised by training statistics. The penalty is chosen on validation for each target.
    """
    columns = torch.zeros(test[1].shape, dtype=torch.float64)
    chosen = torch.tensor([len(values[values.isfinite()].unique()) > 1 for values in train[1].T]).nonzero()[:, 0]
    if len(chosen):
        rows, targets = Rows(train[0].double()), train[1][:, chosen].double()
        if classes:
            scales = rows.own_scale().expand(len(PENALTIES), -1)
            heads = fit_binary(rows, targets, scales, [1 / penalty for penalty in PENALTIES])
        else:
            heads = fit_ridge(rows, targets, rows.own_scale(), PENALTIES)
        guesses, tested = heads.outputs(valid[0].double()), heads.outputs(test[0].double())
        for output, column in enumerate(chosen.tolist()):
            scored = [_score(guesses[:, i, output], valid[1][:, column], classes) for i in range(len(PENALTIES))]
            columns[:, column] = tested[:, scored.index(max(scored)), output]
    return scores(columns, test[1], classes)


def _score(guesses: Tensor, values: Tensor, classes: bool) -> float:
    """The score that selects a penalty, higher is better; 0 without known values."""
    found = scores(guesses[:, None], values[:, None], classes)
    return found.get("roc_auc", -found.get("mae", 0.0))
