"""``sepnorm compare``: from arms to runs, tables and the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepnorm.domains import Domain, Look
from sepnorm.domains.earlier import keep_earlier, note_earlier
from sepnorm.errors import RunFailedError, SepNormError
from sepnorm.files import require_writable, write_text
from sepnorm.training.configs import RunConfig, arm_names
from sepnorm.training.notation import names_in, parse_arm

if TYPE_CHECKING:
    from sepnorm.experiment.comparison import Comparison
    from sepnorm.experiment.launchers import Watch


@dataclass(frozen=True, eq=False)
class Planned:
    """A comparison that is checked and not begun: common config, config of each arm, and description."""

    domain: Domain
    base: RunConfig
    configs: list[RunConfig]
    look: Look

    @property
    def line(self) -> str:
        """The comparison in one line."""
        return f"{self.look.line(self.base)} Arms: {', '.join(config.arm for config in self.configs)}."


def plan(domain: Domain, arms: Sequence[Mapping[str, Any]], base: RunConfig) -> Planned:
    """Plans a comparison, with each arm as changes to ``base``. Refuses what cannot work; torch is not imported."""
    configs = [base.changed(arm) for arm in arms]
    arm_names(configs)
    return Planned(domain, base, configs, domain.look(base))


def compare_domain(
    planned: Planned,
    seeds: Sequence[int],
    folder: Path,
    launcher: str = "local",
    watch: Watch | None = None,
    margin: float | None = None,
    adaptive: bool = False,
) -> tuple[Comparison, Path]:
    """Runs all arms and writes results and page to ``folder``; returns the comparison and the page's path.

    ``margin`` and ``adaptive``: see ``sepnorm.experiment.comparison.compare``.
    """
    dropped = keep_earlier(folder, [config.arm for config in planned.configs])
    require_writable(folder)
    from sepnorm.experiment.running import compare
    from sepnorm.training.devices import check_device
    from sepnorm.training.sharding import refuse_sharding

    domain, base = planned.domain, planned.base
    if launcher == "local":  # other machines may have other devices
        check_device(base.device, base.precision)
    refuse_sharding(base)
    domain.check(planned.configs)

    def run() -> Comparison:
        return compare(
            domain.recipe, domain.metrics, base, planned.configs, seeds, folder, launcher, watch, margin, adaptive,
            dropped=dropped,
        )  # fmt: skip

    note = f"Scored by {planned.look.scored}." if planned.look.foreign else ""
    return run_and_write(run, folder, f"Shared and separate norms on {Path(base.data).name}", domain, note)


def run_and_write(
    run: Callable[[], Comparison], folder: Path, title: str, domain: Domain | None = None, note: str = ""
) -> tuple[Comparison, Path]:
    """Runs a comparison and writes its folder. If runs fail, writes the seeds that are complete, then raises."""
    from sepnorm.experiment.running import UnfinishedComparisonError

    try:
        comparison = run()
    except UnfinishedComparisonError as error:
        if error.comparison is None:
            raise
        page = write_comparison_folder(error.comparison, folder, title, domain, note)
        raise RunFailedError(
            f"{error} The seeds that are complete are in {page}. If an arm fails again, leave it out: the same folder goes on "
            "with the others."
        ) from None
    return comparison, write_comparison_folder(comparison, folder, title, domain, note)


def write_comparison_folder(
    comparison: Comparison, folder: Path, title: str, domain: Domain | None = None, note: str = ""
) -> Path:
    """Writes ``results.json``, ``.csv`` (a row for each run), ``.md`` and ``.tex``, and the page; returns the page.

    ``note`` stands below the title of the page.
    """
    from sepnorm.report.comparison_page import write_comparison
    from sepnorm.report.tables import comparison_tables, latex, runs_as_csv

    note_earlier(comparison, folder)
    write_text(folder / "results.json", as_json(comparison))
    write_text(folder / "results.csv", runs_as_csv(comparison))
    write_text(folder / "results.md", as_text(comparison))
    write_text(folder / "results.tex", "\n".join(latex(*each) for each in comparison_tables(comparison)))
    page = folder / "report.html"
    if domain is None:
        return write_comparison(page, title, comparison, note=note)
    return write_comparison(page, title, comparison, domain.sections, domain.picture, note)


def as_json(comparison: Comparison) -> str:
    """The comparison as JSON."""
    from sepnorm.report.diagnosis import finite

    return json.dumps(finite(comparison.as_dict()), indent=1)


def short_text(comparison: Comparison) -> str:
    """The verdict and the main columns, aligned for a terminal; ``results.md`` has all."""
    from sepnorm.report.comparison_words import headline
    from sepnorm.report.tables import aligned, fitting_rows

    return f"{headline(comparison)}\n\n{aligned(*fitting_rows(comparison))}\n"


def as_text(comparison: Comparison) -> str:
    """The verdict and all tables, as Markdown."""
    from sepnorm.report.comparison_words import explanation, headline
    from sepnorm.report.tables import comparison_tables, markdown, summary_rows

    tables = [summary_rows(comparison), *comparison_tables(comparison)]
    said = f"{headline(comparison)}\n\n" + "\n".join(markdown(*each) for each in tables)
    return f"{said}\n{explanation(comparison)}\n"


def parse_arms(norms: str, lambdas: str = "", targets: str = "") -> list[dict[str, Any]]:
    """Parses ``"ln,bn+ln@final"`` to changes of a config, each with every uniformity weight on every target.

    >>> parse_arms("ln,bn+ln@all")
    [{'norm': 'ln'}, {'norm': 'bn+ln', 'sites': 'all'}]
    >>> parse_arms("ln", "0,0.1", "cls")
    [{'norm': 'ln'}, {'norm': 'ln', 'uniformity_weight': 0.1, 'uniformity_on': 'cls'}]
    """
    arms: list[dict[str, Any]] = []
    terms = _terms(names_in(lambdas), names_in(targets))
    for part in names_in(norms):
        arms += [parse_arm(part) | term for term in terms]
    if len(arms) < 2:
        raise SepNormError(f"a comparison has at least two arms, found {norms!r}: write them as ln,bn+ln@final.")
    return arms


def _terms(weights: list[str], targets: list[str]) -> list[dict[str, Any]]:
    """Config changes for each weight and target; a weight of 0 needs no target."""
    if targets and not weights:
        raise SepNormError("--targets needs --lambdas: give both, such as --lambdas 0,0.01 --targets cls,tokens.")
    found: list[dict[str, Any]] = []
    for text in weights:
        try:
            weight = float(text)
        except ValueError:
            raise SepNormError(f"--lambdas must be numbers separated by commas, found {text!r}.") from None
        if weight == 0:
            found.append({})
        else:
            found += [{"uniformity_weight": weight, "uniformity_on": target} for target in targets or ["cls"]]
    return found or [{}]
