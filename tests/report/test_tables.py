from __future__ import annotations

import json

import pytest
from pages import comparison

from sepnorm.domains.comparison import write_comparison_folder
from sepnorm.experiment.comparison import Comparison
from sepnorm.report.selection import references
from sepnorm.report.tables import comparison_tables


@pytest.mark.parametrize("most", [None, 12])
def test_every_interval_of_the_primary_metric_is_that_of_a_verdict(tmp_path, monkeypatch, most):
    """Student's intervals allow neither for looking after every seed nor for several arms."""
    asked = []
    student = Comparison.difference
    monkeypatch.setattr(
        Comparison,
        "difference",
        lambda self, arm, metric, to=None: asked.append(metric) or student(self, arm, metric, to),
    )
    found = comparison(tmp_path, seeds=5)
    found.most = most
    (tmp_path / "out").mkdir()
    write_comparison_folder(found, tmp_path / "out", "Three arms")
    assert asked and found.primary not in asked
    for to, (header, rows) in zip(references(found), comparison_tables(found)[1:], strict=True):
        decisions = found.decisions(to)
        assert [row[0] for row in rows] == list(decisions)
        for row in rows:
            cell = row[header.index(found.primary.name)]
            assert cell.startswith(f"{decisions[row[0]]} {decisions[row[0]].verdict}")
    for arm in json.loads((tmp_path / "out/results.json").read_text())["arms"]:
        assert "difference" not in arm["metrics"][found.primary.key]
