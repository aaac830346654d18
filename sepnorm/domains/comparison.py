"""What ``sepnorm compare`` does: from options to runs, tables and the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepnorm.domains import Domain
from sepnorm.errors import SepNormError
from sepnorm.experiment.comparison import Comparison, compare
from sepnorm.files import write_text
from sepnorm.report.comparison_page import explanation, headline, write_comparison
from sepnorm.report.diagnosis import finite
from sepnorm.report.tables import comparison_tables, latex, markdown, runs_as_csv, summary_rows
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
    margin: float | None = None,
    adaptive: bool = False,
) -> tuple[Comparison, Path]:
    """Runs arms, each given by its changes to a preset, and writes results and page to ``folder``; gives the page's path too.

    ``margin`` and ``adaptive``: see ``sepnorm.experiment.comparison.compare``.
    """
    base = choose(domain.presets, preset).changed(given)
    configs = [base.changed(arm) for arm in arms]
    keep_earlier(folder, [config.arm for config in configs])
    comparison = compare(domain.recipe, domain.metrics, base, configs, seeds, folder, launcher, start, margin, adaptive)
    title = f"Shared and separate norms on {Path(base.data).name}"
    return comparison, write_comparison_folder(comparison, folder, title, domain)


def write_comparison_folder(comparison: Comparison, folder: Path, title: str, domain: Domain | None = None) -> Path:
    """``results.json``, ``.csv`` (a row for each run), ``.md`` and ``.tex``, and the page, whose path it gives."""
    write_text(folder / "results.json", as_json(comparison))
    write_text(folder / "results.csv", runs_as_csv(comparison))
    write_text(folder / "results.md", as_text(comparison))
    write_text(folder / "results.tex", "\n".join(latex(*each) for each in comparison_tables(comparison)))
    page = folder / "report.html"
    if domain is None:
        return write_comparison(page, title, comparison)
    return write_comparison(page, title, comparison, domain.sections, domain.picture)


def as_json(comparison: Comparison) -> str:
    return json.dumps(finite(comparison.as_dict()), indent=1)


def as_text(comparison: Comparison) -> str:
    """The verdict and all tables, in Markdown."""
    tables = [summary_rows(comparison), *comparison_tables(comparison)]
    said = f"{headline(comparison)}\n\n" + "\n".join(markdown(*each) for each in tables)
    return f"{said}\n{explanation(comparison)}\n"


def keep_earlier(folder: Path, arms: Sequence[str]) -> None:
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
