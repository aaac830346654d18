"""The pictures of report pages in the documentation: pages still say what is in them. Else run docs/pictures/screens.py."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from sepnorm.geometry import summary
from sepnorm.report.comparison_words import clause
from sepnorm.report.tables import summary_rows
from sepnorm.report.verdict import judge

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "results"))
import records
import rendering


def lines(name: str) -> list[str]:
    """What stands in a picture."""
    return (DOCS / "pictures" / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def test_every_screen_has_its_text():
    assert {path.stem for path in (DOCS / "pictures").glob("*.png")} == {"comparison", "diagnosis"}
    assert all(lines(name) for name in ("comparison", "diagnosis"))


def test_the_picture_of_a_comparison_says_what_its_record_and_the_page_say():
    whole, seen = records.comparison("demo"), lines("comparison")
    for name, decision in whole.decisions().items():
        assert f"{name} is {clause(decision)}" in seen
    header, rows = summary_rows(whole)
    assert seen[seen.index("arm") :][: len(header)] == header
    assert seen[-len(list(filter(None, rows[0]))) :] == [
        cell.replace("-", "\N{MINUS SIGN}") for cell in rows[0] if cell
    ]


def test_the_picture_of_a_diagnosis_says_what_its_record_and_the_page_say():
    seen = lines("diagnosis")
    title, reason = rendering.output("demo-diagnosis", "21-22").splitlines()
    assert [title.removeprefix("Verdict: "), reason] == seen[1:3]
    shifted = torch.randn(897, 64) + 30  # sick in the same way
    verdict = judge(summary(shifted), target="runs/compare-images-demo/runs/ln-seed0/embeddings.npz")
    assert verdict.title == seen[1]
    for sign in verdict.signs:
        assert {sign.name, sign.level, sign.threshold} <= set(seen)
    shown = seen[seen.index("What to try next") + 1 :]
    assert shown == verdict.advice[: len(shown)] and shown
