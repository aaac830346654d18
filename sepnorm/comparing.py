"""What ``sepnorm compare`` does: from options to runs, tables and the page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from sepnorm.configs import parse_changes
from sepnorm.configs import preset as choose
from sepnorm.diagnosis import finite
from sepnorm.errors import SepNormError
from sepnorm.experiment import Comparison, compare
from sepnorm.files import write_whole
from sepnorm.report.comparison_page import comparison_rows, difference_rows, headline, write_comparison
from sepnorm.training import Report


def compare_images(
    norms: str,
    seeds: Sequence[int],
    preset: str,
    data: str | None,
    max_steps: int | None,
    changes: Sequence[str],
    folder: Path,
    progress: Callable[[str, int], Report | None] | None = None,
) -> Path:
    """Runs the arms on images and writes results and page to ``folder``; returns the page's path."""
    from sepnorm.images.config import PRESETS
    from sepnorm.images.recipe import ImageRecipe

    given = {key: value for key, value in (("data", data), ("max_steps", max_steps)) if value is not None}
    base = choose(PRESETS, preset).changed(parse_changes(changes) | given)
    configs = [base.changed(arm) for arm in parse_arms(norms)]
    comparison = compare(ImageRecipe(base), configs, seeds, folder, progress)
    write_results(comparison, folder)
    return write_comparison(folder / "report.html", f"Shared and separate norms on {base.data}", comparison)


def parse_arms(text: str) -> list[dict[str, str]]:
    """``"ln,bn+ln@final"`` as changes to a config.

    >>> parse_arms("ln,bn+ln@all")
    [{'norm': 'ln'}, {'norm': 'bn+ln', 'sites': 'all'}]
    """
    arms = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        norm, at, sites = part.partition("@")
        arms.append({"norm": norm, "sites": sites} if at else {"norm": norm})
    if len(arms) < 2:
        raise SepNormError(f"a comparison has at least two arms, found {text!r}: write them as ln,bn+ln@final.")
    return arms


def write_results(comparison: Comparison, folder: Path) -> None:
    """``results.json``, ``.csv`` (a row for each run), ``.md`` and ``.tex``."""
    _write(folder / "results.json", json.dumps(finite(comparison.as_dict()), indent=1))
    rows = io.StringIO()
    writer = csv.writer(rows)
    writer.writerow(["arm", "seed", *comparison.metrics])
    for arm in comparison.arms:
        for seed, found in arm.metrics.items():
            writer.writerow([arm.name, seed, *(found.get(metric, "") for metric in comparison.metrics)])
    _write(folder / "results.csv", rows.getvalue())
    tables = [comparison_rows(comparison), *(difference_rows(comparison, arm) for arm in comparison.arms[:2])]
    _write(folder / "results.md", f"{headline(comparison)}\n\n" + "\n".join(_markdown(*t) for t in tables))
    _write(folder / "results.tex", "\n".join(_latex(*t) for t in tables))


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _latex(header: list[str], rows: list[list[str]]) -> str:
    signs = {"%": r"\%", "_": r"\_", "±": r"$\pm$", "λ": r"$\lambda$"}

    def line(cells: list[str]) -> str:
        return " & ".join("".join(signs.get(letter, letter) for letter in cell) for cell in cells)

    body = " \\\\\n".join(line(row) for row in rows)
    columns = "l" * len(header)
    return f"\\begin{{tabular}}{{{columns}}}\n{line(header)} \\\\\n\\hline\n{body} \\\\\n\\end{{tabular}}\n"


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda scratch: Path(scratch).write_text(text, encoding="utf-8"))
