"""``sepnorm compare scores``: statistics and page for scores that exist already."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sepnorm.arguments import number, whole
from sepnorm.data.tables import rows_of_file
from sepnorm.domains.comparison import write_comparison_folder
from sepnorm.domains.own_checks import warn_of_copies
from sepnorm.domains.own_training import OwnConfig, declare
from sepnorm.errors import SepNormError, nearest
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.experiment.sequential import FIRST
from sepnorm.files import make_folder, require_file

_LONG = {"metric", "value"}


def compare_scores(
    table: str | Path,
    out: str | Path,
    metrics: Mapping[str, bool] | Sequence[Metric],
    margin: float | None = None,
    baseline: str | None = None,
    most: int | None = None,
) -> tuple[Comparison, Path]:
    """Compares the arms of a table of scores, and writes results and a page.

    Args:
        table: a CSV, TSV, JSON or parquet file with columns ``arm`` and ``seed``, and either ``metric`` and ``value``,
            or a column for each metric.
        out: folder for ``results.json`` and ``report.html``.
        metrics: by name, whether higher is better; or ``Metric`` objects. Arms are judged by the primary one, or else
            the first.
        margin: largest difference that counts as equal; default 1 % of the baseline's mean.
        baseline: name of the arm to compare with; default the first one in the table.
        most: largest number of seeds, if you added seeds in their order and stopped when you liked; set it before the
            first run. By default the number of seeds was fixed in advance.

    Returns:
        The comparison and the path of the page.

    Raises:
        SepNormError: if the table lacks a column, an arm or a metric, or arms share no seed.
    """
    declared = declare(metrics)
    margin = None if margin is None else number(margin, "margin", least=0)
    most = None if most is None else whole(most, "most", least=FIRST)
    path = Path(table)
    values = read_scores(path, declared)
    if baseline is not None and baseline not in values:
        raise SepNormError(f"{path} has no arm {baseline!r}: it has {', '.join(values)}.{nearest(baseline, values)}")
    if len(values) < 2:
        raise SepNormError(f"{path} has only one arm, {next(iter(values))!r}: a comparison needs at least two.")
    known = {key for runs in values.values() for scores in runs.values() for key in scores}
    if (missing := declared.missing(known)) is not None:
        raise SepNormError(
            f"{path} has no metric {missing.key!r}: it has {', '.join(sorted(known))}.{nearest(missing.key, known)}"
        )
    order = sorted(values, key=lambda name: name != baseline) if baseline is not None else list(values)
    config = OwnConfig(data=path.name)
    found = Comparison([Arm(name, config, values[name]) for name in order], declared, margin, most)
    primary = found.leading[0].key
    for name, runs in values.items():
        if lacking := [seed for seed, scores in runs.items() if primary not in scores]:
            raise SepNormError(
                f"{path} has no {primary} for arm {name!r}, seed {lacking[0]}: leave that seed of the arm out, and the report "
                "says so."
            )
    if not any(found.decisions().values()):
        raise SepNormError(f"{path} has no seed that {order[0]} and another arm share: differences are paired by seed.")
    warn_of_copies(found)
    folder = Path(out)
    make_folder(folder)
    return found, write_comparison_folder(found, folder, f"Scores of {path.name}")


def read_scores(path: Path, declared: Metrics) -> dict[str, dict[int, dict[str, float]]]:
    """Scores by arm, seed and metric. Columns of metrics that are not declared may hold words."""
    require_file(path)
    found: dict[str, dict[int, dict[str, float]]] = {}
    for count, cells in enumerate(rows_of_file(path), 1):
        row = _named(path, cells)
        if count == 1:
            _require_columns(path, row)
        where = f"row {count} of {path}"
        arm, seed = str(row["arm"] or "").strip(), _seed(row["seed"], where)
        if not arm:
            raise SepNormError(f"{where} names no arm.")
        scores = found.setdefault(arm, {}).setdefault(seed, {})
        long = row.keys() >= _LONG
        given = (
            {str(row["metric"]).strip(): row["value"]}
            if long
            else {k: v for k, v in row.items() if k not in ("arm", "seed")}
        )
        for key, cell in given.items():
            if (value := _value(cell, key, where, strict=long or declared.declares(key))) is None:
                continue
            if not math.isfinite(value) and declared.find(key).primary:
                raise SepNormError(f"{where} has {cell} for {key}: leave this row out, and the report says so.")
            if key in scores:
                raise SepNormError(f"{where} has {key} of arm {arm!r}, seed {seed}, a second time.")
            scores[key] = value
    if not found:
        raise SepNormError(f"{path} holds no rows.")
    return found


def _named(path: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row by the names of its columns, without spaces around them. The index of pandas has no name and is no metric."""
    names = [name for column in row if (name := column.strip())]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SepNormError(f"{path} has two columns {twice!r}: rename one of them, or take it out.")
    return {name: cell for column, cell in row.items() if (name := column.strip())}


def _require_columns(path: Path, row: Mapping[str, Any]) -> None:
    missing = [name for name in ("arm", "seed") if name not in row]
    if missing or len(row) < 3:
        lack = ", ".join(missing) or "of a metric"
        raise SepNormError(
            f"{path} lacks the column {lack}: it has {', '.join(map(str, row))}. Scores have arm, seed, and metric and value or a "
            "column a metric."
        )


def _seed(cell: Any, where: str) -> int:
    try:
        number = float(cell)
    except (TypeError, ValueError):
        number = math.nan
    if not number.is_integer():
        raise SepNormError(f"{where} has the seed {cell!r}, which is no whole number.")
    return int(number)


def _value(cell: Any, key: str, where: str, strict: bool) -> float | None:
    """The number in a cell; None for an empty cell, or for a word in a column that is no metric."""
    if cell is None or cell == "":
        return None
    try:
        return float(cell)
    except (TypeError, ValueError):
        if not strict:
            return None
        raise SepNormError(f"{where} has {cell!r} for {key}, which is no number.") from None
