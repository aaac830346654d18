"""How good predictions are, and what frozen [VNode] vectors are worth."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

#: Penalties that a probe is chosen from by its validation score.
PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def scores(predicted: Tensor, true: Tensor, classes: bool) -> dict[str, float]:
    """``mae`` and ``rmse``, or ``roc_auc`` and ``average_precision``: means over targets, from (count, targets) each.

    Missing values (NaN in ``true``) do not count, nor do classes of which only one occurs; without any, nothing is found.
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
    """Scores of ridge or logistic regression on features (count, dim) for targets (count, targets), each a pair of both.

    Features are scaled by the training statistics; the penalty is chosen on validation, for every target by itself.
    """
    mean, std = train[0].double().mean(0), train[0].double().std(0).clamp(min=1e-8)
    rows = [(part[0].double() - mean) / std for part in (train, valid, test)]
    columns = []
    for number in range(train[1].shape[1]):
        values = [part[1][:, number].double() for part in (train, valid, test)]
        known = values[0].isfinite()
        best: tuple[float, Tensor] = (-math.inf, torch.zeros(len(rows[2]), dtype=torch.float64))
        for penalty in PENALTIES if len(values[0][known].unique()) > 1 else ():
            head = _fitted(rows[0][known], values[0][known], penalty, classes)
            guesses = _guesses(head, rows[1], classes)
            found = scores(guesses[:, None], values[1][:, None], classes)
            score = found.get("roc_auc", -found.get("mae", 0.0))
            if score > best[0]:
                best = score, _guesses(head, rows[2], classes)
        columns.append(best[1])
    return scores(torch.stack(columns, dim=1), test[1], classes)


def _fitted(rows: Tensor, values: Tensor, penalty: float, classes: bool) -> object:
    from sklearn.linear_model import LogisticRegression, Ridge
    from threadpoolctl import threadpool_limits

    # One thread: on products this small several wait for each other longer than they work.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # a probe that has not converged to the last digit is as good
        if classes:
            return LogisticRegression(C=1 / penalty, max_iter=300).fit(rows.numpy(), values.numpy())
        return Ridge(alpha=penalty).fit(rows.numpy(), values.numpy())


def _guesses(head: object, rows: Tensor, classes: bool) -> Tensor:
    method = "decision_function" if classes else "predict"
    return torch.from_numpy(getattr(head, method)(rows.numpy()))
