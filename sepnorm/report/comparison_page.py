"""The page of a comparison: the tables with paired differences first, then what explains them."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from sepnorm.experiment.comparison import Arm, Comparison, by_mean, comparable
from sepnorm.experiment.decisions import Decision
from sepnorm.experiment.metrics import LOSS, Metric
from sepnorm.geometry import Summary, singular_values
from sepnorm.report import figures
from sepnorm.report.comparison_figures import against_lambda, against_uniformity, loss_curves
from sepnorm.report.diagnosis import Diagnosis
from sepnorm.report.diagnosis_page import definitions, layer_sections, site_table
from sepnorm.report.diagnosis_page import summary_rows as measure_rows
from sepnorm.report.forest import forest
from sepnorm.report.page import Section, table, write_page
from sepnorm.report.progress_figures import progress_curves
from sepnorm.report.runs import diagnosis_of
from sepnorm.report.selection import MOST_ARMS, shown_arms
from sepnorm.report.tables import comparison_tables, summary_rows
from sepnorm.report.verdict import LEVELS

#: The sections that a domain adds, from the arms with figures of their own and the seed that they are shown for.
Extra = Callable[[Sequence[Arm], int], Sequence[Section]]
_PICTURES = 600  # of points of a map, a few kilobytes each


def write_comparison(
    path: Path,
    title: str,
    comparison: Comparison,
    extra: Extra | None = None,
    draw: Callable[[str], str | None] | None = None,
) -> Path:
    """Writes the page, from the comparison and what the runs of its first seed left in their folders.

    ``draw`` makes an SVG of a test sample from its name, or None where there is no picture of it.
    """
    arms = shown_arms(comparison)
    said = html.escape(headline(comparison))
    lead = f'<div class="verdict">{_decided(comparison)}<p>{said}</p></div>'
    drawn = [loss_curves(arms)] if all(any(arm.losses.values()) for arm in arms) else []
    drawn += progress_curves(arms)
    drawn += against_uniformity(comparison)
    first = [*(Section("Differences by seed", figures=[each]) for each in forest(comparison)), _tables(comparison)]
    sections = [
        *([Section("Training", _which(comparison, arms), drawn)] if drawn else []),
        *_lambda(comparison),
    ]
    pictures: dict[str, str] = {}
    if all(has_vectors(arm) for arm in comparison.arms):
        seed = min(comparison.arms[0].folders)
        every, shown = diagnoses(comparison, arms, seed)
        pictures = _pictures(shown[comparison.arms[0].name], draw) if draw is not None else {}
        sections += [
            *(extra(arms, seed) if extra is not None else ()),
            _collapse(every, seed),
            shape_section(shown),
            feature_section(shown),
            *layer_sections(shown),
            map_section(comparison, shown, {name: number for number, name in enumerate(pictures)}),
            *_sites(every),
            definitions(),
        ]
    folded = [replace(section, folded=True) for section in sections]
    return write_page(path, title, lead, [*first, *folded], list(pictures.values()))


def has_vectors(arm: Arm) -> bool:
    """Whether the first run of an arm left embeddings."""
    return bool(arm.folders) and (arm.folders[min(arm.folders)] / "embeddings.npz").is_file()


def headline(comparison: Comparison) -> str:
    """What the comparison says of every arm by the primary metric, or of geometry where there are no labels."""
    scored = any(metric.kind == "score" for metric in comparison.columns)
    said = "" if scored else "The data have no labels, so only geometry was measured. "
    metric, baseline = comparison.primary, comparison.arms[0].name
    if metric is None:
        return said + "None of the metrics is declared as better one way, so there is no verdict."
    found = comparison.decisions()
    clauses = [f"{name} is {clause(each)}" for name, each in found.items()]
    if len(found) > MOST_ARMS:
        verdicts = [each.verdict for each in found.values()]
        counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in ("better", "equal", "undecided", "worse")]
        best = next(arm.name for arm in comparison.ranked() if arm.name in found)
        clauses = [
            f"of {len(found)} arms {', '.join(counts)}",
            f"{best}, with the best mean, is {clause(found[best])}",
        ]
    if missing := [arm.name for arm in comparison.arms[1:] if arm.name not in found]:
        clauses.append(f"{', '.join(missing)} gave no finite values")
    return f"{said}{metric.name} against {baseline}: {'; '.join(clauses)}.{_best(comparison, metric)}"


def _best(comparison: Comparison, metric: Metric) -> str:
    """The arm with the best mean by the primary metric, and by what is seen beside it: often another one."""
    if comparison.beside is None:
        return ""
    said = []
    for each in (metric, comparison.beside):
        arm = by_mean(comparison.arms, each)[0]
        said.append(f"{each.name} {arm.interval(each.key)} ({arm.name})")
    return f" Best means: {', '.join(said)}."


def clause(decision: Decision) -> str:
    """``better (+0.012 ± 0.004, 5 seeds)``; where nothing is decided, how many seeds more would probably do."""
    seeds = f"{decision.count} seed{'s' * (decision.count > 1)}"
    verdict = "practically equal" if decision.verdict == "equal" else decision.verdict
    more = ""
    if decision.verdict == "undecided":
        count = decision.more_seeds
        more = "; more seeds would hardly decide it" if count is None else f"; about {count} more would decide it"
        more = "" if decision.count < 2 else more
    return f"{verdict} ({decision}, {seeds}{more})"


def _tables(comparison: Comparison) -> Section:
    """The few columns that decide, how they are made, and all columns folded up."""
    every = "".join(table(*each, mark=verdict_class) for each in comparison_tables(comparison))
    body = (
        table(*summary_rows(comparison), mark=verdict_class)
        + f'<p class="quiet">{html.escape(explanation(comparison))}</p>'
    )
    return Section("Results", f"{body}<details><summary>All metrics and differences</summary>{every}</details>")


def explanation(comparison: Comparison) -> str:
    """How verdicts and intervals are made."""
    arms = len(comparison.arms) - 1
    note = "Means over seeds ± 95 % interval (Student). Differences are paired by seed: the same data, order and first weights. "
    if comparison.primary is not None:
        margin = f"{comparison.margin_to():.2g}"
        note += f"Arms are judged by {comparison.primary.name} alone, "
        note += f"corrected for {arms} arms (Holm). " if arms > 1 else "at 95 %. "
        note += (
            f"Equal means that the interval lies within ±{margin}. Other columns are exploratory and have no verdict. "
        )
    if comparison.most is not None:
        note += (
            f"Seeds were added until every arm was decided, {comparison.most} at most; intervals of the primary metric allow for "
            "looking after every seed. "
        )
    if not all(comparable(arm, comparison.arms[0], LOSS) for arm in comparison.arms):
        note += "The loss has the uniformity term in it, so that of arms with another lambda is not compared. "
    uniformity = any(metric.key == "cls_uniformity" for metric in comparison.columns)
    return note + "Lower uniformity is better." * uniformity


def _decided(comparison: Comparison) -> str:
    """The arms that are decided, best first; only these are bold."""
    baseline, metric, found = comparison.arms[0].name, comparison.primary, comparison.decisions()
    if metric is None:
        return ""
    lines = []
    for verdict, words in (("better", "Better than"), ("equal", "Practically equal to"), ("worse", "Worse than")):
        names = [arm.name for arm in comparison.ranked() if arm.name in found and found[arm.name].verdict == verdict]
        said = ", ".join(names) if len(names) <= MOST_ARMS else f"{len(names)} of {len(comparison.arms) - 1} arms"
        if names:
            text = f"{words} {baseline} by {metric.name}: {said}"
            lines.append(f"<p><strong>{html.escape(text)}</strong></p>")
    return "".join(lines) or f"<p>{html.escape(f'No arm is decided against {baseline} by {metric.name}.')}</p>"


def verdict_class(cell: str) -> str:
    """What a cell with a verdict at its end is marked as."""
    return next(
        (verdict for verdict in ("better", "equal", "worse") if cell == verdict or cell.endswith(f" {verdict}")), ""
    )


def _which(comparison: Comparison, arms: Sequence[Arm]) -> str:
    """Says so where not all arms have figures of their own."""
    if len(arms) == len(comparison.arms):
        return ""
    by = "".join(f" by {metric.name}" for metric in comparison.leading[:1])
    return (
        f"<p>Figures with a line for each arm show {len(arms)} of the {len(comparison.arms)} arms: the baseline "
        f"{html.escape(arms[0].name)} and the {len(arms) - 1} best{html.escape(by)}. Tables have all of them.</p>"
    )


def _lambda(comparison: Comparison) -> list[Section]:
    drawn = against_lambda(comparison)
    text = "<p>The weight of the uniformity term; means over seeds with 95 % intervals, a line for each norm.</p>"
    return [Section("Lambda", text, drawn)] if drawn else []


def diagnoses(
    comparison: Comparison, arms: Sequence[Arm], seed: int
) -> tuple[dict[str, Diagnosis], dict[str, Diagnosis]]:
    """Of every arm, and of those that are shown in figures; of the others no vectors are kept."""
    every = {}
    for arm in comparison.arms:
        every[arm.name] = found = diagnosis_of(arm, seed)
        if arm not in arms:
            found.points = found.tokens = None
    return every, {arm.name: every[arm.name] for arm in arms}


def _collapse(named: dict[str, Diagnosis], seed: int) -> Section:
    """Verdicts with their reasons, and every measure of [CLS] and of the mean of tokens."""
    rows = [[name, d.verdict.title, d.verdict.reason] for name, d in named.items()]
    body = f"<p>Test samples of seed {seed}.</p>" + table(["arm", "[CLS] is", "reason"], rows, mark=_level_class)
    body += _measures("[CLS]", {name: d.embeddings for name, d in named.items()})
    means = {name: d.mean_of_tokens for name, d in named.items() if d.mean_of_tokens is not None}
    return Section("Has [CLS] collapsed?", body + (_measures("mean of tokens", means) if means else ""))


def _level_class(cell: str) -> str:
    return (
        cell.split(":")[0].split()[0] if cell.partition(":")[0] in LEVELS else "sentence" if cell.endswith(".") else ""
    )


def _measures(what: str, summaries: dict[str, Summary]) -> str:
    """A column for each arm, or a row where there are many."""
    rows = [[what, *summaries], *measure_rows(summaries)]
    if len(summaries) > MOST_ARMS:
        rows = [list(row) for row in zip(*rows, strict=True)]
    return table(rows[0], rows[1:])


def shape_section(named: dict[str, Diagnosis]) -> Section:
    tokens = {name: singular_values(d.tokens).tolist() for name, d in named.items() if d.tokens is not None}
    drawn = [figures.spectrum({name: d.embeddings.singular_values for name, d in named.items()}, "[CLS]")]
    drawn += [figures.spectrum(tokens, "tokens")] if tokens else []
    rows = {name: d.points.rows for name, d in named.items() if d.points is not None}
    return Section("Shape of [CLS] and tokens", figures=[*drawn, figures.cosines(rows)])


def feature_section(named: dict[str, Diagnosis]) -> Section:
    """A figure for each arm, all with the same limits."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, d in named.items():
        parts[name] = {"[CLS]": d.points.rows} if d.points is not None else {}
        parts[name] |= {"tokens": d.tokens} if d.tokens is not None else {}
    limits = figures.span(rows for found in parts.values() for rows in found.values())
    text = (
        "<p>All components of the vectors after the last layer, on the same scale for every arm. A [CLS] that is narrower than "
        "the tokens is squeezed by a norm that they share.</p>"
    )
    drawn = [figures.components(found, f"Features of {name}", limits) for name, found in parts.items()]
    return Section("Features", text, drawn)


def _pictures(diagnosis: Diagnosis, draw: Callable[[str], str | None]) -> dict[str, str]:
    """Pictures of some points of the map by their names."""
    names = [] if diagnosis.points is None else [name for name in dict.fromkeys(diagnosis.points.names) if name]
    drawn = {name: draw(name) for name in names[:: max(1, math.ceil(len(names) / _PICTURES))]}
    return {name: picture for name, picture in drawn.items() if picture is not None}


def map_section(comparison: Comparison, named: dict[str, Diagnosis], pictures: dict[str, int]) -> Section:
    """The baseline and the arm with the best leading metric."""
    pair = [comparison.arms[0], *comparison.ranked()[:1]]
    places = {arm.name: named[arm.name].points for arm in pair}
    text = "<p>[CLS] of test samples, placed by t-SNE from a PCA start: the baseline and the best other arm"
    text += "".join(f" by {html.escape(metric.name)}" for metric in comparison.leading[:1])
    drawn = [figures.embedding_map(points, name, pictures) for name, points in places.items() if points is not None]
    return Section("Map", f"{text}. Distances between far groups mean little.</p>", drawn)


def _sites(named: dict[str, Diagnosis]) -> list[Section]:
    """The table of norms of each arm, folded up."""
    tables = [
        f"<details><summary>{html.escape(name)}, {len(d.layers.sites)} norms</summary>{site_table(d.layers)}</details>"
        for name, d in named.items()
        if d.layers is not None
    ]
    return [Section("Norm by norm", "".join(tables))] if tables else []
