"""What ``sepnorm compare`` does: from options to runs, tables and the page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepnorm.domains import Domain
from sepnorm.errors import SepNormError
from sepnorm.experiment.runs import Comparison, compare
from sepnorm.files import write_text
from sepnorm.report.comparison_page import comparison_rows, difference_rows, headline, write_comparison
from sepnorm.report.diagnosis import finite
from sepnorm.report.metrics import references
from sepnorm.training.configs import parse_arm
from sepnorm.training.configs import preset as choose
from sepnorm.training.trainer import Report


def compare_domain(
    domain: Domain,
    arms: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    preset: str,
    given: Mapping[str, Any],
    folder: Path,
    launcher: str = "local",
    start: Callable[[str, int], Report | None] | None = None,
) -> Path:
    """Runs arms, each given by its changes to a preset, and writes results and page to ``folder``; returns the page's path."""
    base = choose(domain.presets, preset).changed(given)
    configs = [base.changed(arm) for arm in arms]
    _keep_earlier(folder, [config.arm for config in configs])
    comparison = compare(domain.recipe, base, configs, seeds, folder, launcher, start)
    write_results(comparison, folder)
    title = f"Shared and separate norms on {Path(base.data).name}"
    return write_comparison(folder / "report.html", title, comparison, domain.sections, domain.draw)


def _keep_earlier(folder: Path, arms: Sequence[str]) -> None:
    """A report of arms that are not among those of now is not written over."""
    try:
        earlier = [
            str(arm["name"]) for arm in json.loads((folder / "results.json").read_text(encoding="utf-8"))["arms"]
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return  # there is none, or none that can be read
    if gone := [name for name in earlier if name not in arms]:
        raise SepNormError(
            f"{folder} holds a report of {', '.join(earlier)}, which would be lost: {', '.join(gone)} is not among the arms now. "
            "Name another folder by --out, or add to --norms what is there."
        )


def parse_arms(norms: str, lambdas: str = "", targets: str = "") -> list[dict[str, Any]]:
    """``"ln,bn+ln@final"`` as changes to a config, each with every weight of the uniformity term on every target.

    >>> parse_arms("ln,bn+ln@all")
    [{'norm': 'ln'}, {'norm': 'bn+ln', 'sites': 'all'}]
    >>> parse_arms("ln", "0,0.1", "cls")
    [{'norm': 'ln'}, {'norm': 'ln', 'uniformity_weight': 0.1, 'uniformity_on': 'cls'}]
    """
    arms: list[dict[str, Any]] = []
    terms = _terms(_parts(lambdas), _parts(targets))
    for part in _parts(norms):
        arms += [parse_arm(part) | term for term in terms]
    if len(arms) < 2:
        raise SepNormError(f"a comparison has at least two arms, found {norms!r}: write them as ln,bn+ln@final.")
    return arms


def _terms(weights: list[str], targets: list[str]) -> list[dict[str, Any]]:
    """Changes for each weight and target; a weight of 0 has no target."""
    if targets and not weights:
        raise SepNormError("--targets says what --lambdas are on: give both, as --lambdas 0,0.01 --targets cls,tokens.")
    found: list[dict[str, Any]] = []
    for text in weights:
        try:
            weight = float(text)
        except ValueError:
            raise SepNormError(f"--lambdas are numbers with commas between, found {text!r}.") from None
        if weight == 0:
            found.append({})
        else:
            found += [{"uniformity_weight": weight, "uniformity_on": target} for target in targets or ["cls"]]
    return found or [{}]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def write_results(comparison: Comparison, folder: Path) -> None:
    """``results.json``, ``.csv`` (a row for each run), ``.md`` and ``.tex``."""
    write_text(folder / "results.json", json.dumps(finite(comparison.as_dict()), indent=1))
    rows = io.StringIO()
    writer = csv.writer(rows)
    writer.writerow(["arm", "seed", *comparison.metrics])
    for arm in comparison.arms:
        for seed, found in arm.metrics.items():
            writer.writerow([arm.name, seed, *(found.get(metric, "") for metric in comparison.metrics)])
    write_text(folder / "results.csv", rows.getvalue())
    tables = [comparison_rows(comparison), *(difference_rows(comparison, arm) for arm in references(comparison))]
    write_text(folder / "results.md", f"{headline(comparison)}\n\n" + "\n".join(markdown(*t) for t in tables))
    write_text(folder / "results.tex", "\n".join(_latex(*t) for t in tables))


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table as Markdown has it."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        f"| {' | '.join(_one_cell(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


_LATEX = {letter: f"\\{letter}" for letter in "%_&#${}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "λ": r"$\lambda$",
}


def _latex(header: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str]) -> str:
        return " & ".join("".join(_LATEX.get(letter, letter) for letter in _one_cell(cell)) for cell in cells)

    body = " \\\\\n".join(line(row) for row in rows)
    columns = "l" * len(header)
    return f"\\begin{{tabular}}{{{columns}}}\n{line(header)} \\\\\n\\hline\n{body} \\\\\n\\end{{tabular}}\n"


def _one_cell(text: str) -> str:
    """Names come from files too: no line of one begins a row of the table."""
    return " ".join(text.split())
