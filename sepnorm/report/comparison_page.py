"""The HTML page of a comparison: verdict and tables first, then the figures that explain them."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.geometry import Summary, singular_values
from sepnorm.report import figures
from sepnorm.report.arms import styles
from sepnorm.report.comparison_figures import against_lambda, against_uniformity, loss_curves
from sepnorm.report.comparison_words import FEW, explanation, verdict_parts
from sepnorm.report.diagnosis import Diagnosis
from sepnorm.report.diagnosis_page import definitions, layer_sections, level_class, site_table
from sepnorm.report.diagnosis_page import summary_rows as measure_rows
from sepnorm.report.forest import forest
from sepnorm.report.page import Section, table, write_page
from sepnorm.report.progress_figures import progress_curves
from sepnorm.report.runs import diagnosis_of
from sepnorm.report.selection import shown_arms
from sepnorm.report.tables import comparison_tables, summary_rows

#: Makes the sections that a domain adds, from the arms shown in figures and the seed shown.
Extra = Callable[[Sequence[Arm], int], Sequence[Section]]
_PICTURES = 600  # points of a map that get a picture, a few kilobytes each


def write_comparison(
    path: Path,
    title: str,
    comparison: Comparison,
    extra: Extra | None = None,
    draw: Callable[[str], str | None] | None = None,
    note: str = "",
) -> Path:
    """Writes the page of a comparison. Figures show the runs of its first seed.

    ``draw`` turns the name of a test sample into an SVG, or None if there is no picture. ``note`` stands
    below the title.
    """
    arms = shown_arms(comparison)
    drawn = [loss_curves(arms)] if all(any(arm.losses.values()) for arm in arms) else []
    drawn += progress_curves(arms)
    drawn += against_uniformity(comparison)
    plot = forest(comparison)
    first = [*([Section("Differences by seed", plot)] if plot else []), _tables(comparison)]
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
    lead = (f'<p class="quiet">{html.escape(note)}</p>' if note else "") + _lead(comparison)
    return write_page(path, title, lead, [*first, *folded], list(pictures.values()))


def has_vectors(arm: Arm) -> bool:
    """Whether the first run of an arm saved embeddings."""
    return bool(arm.folders) and (arm.folders[min(arm.folders)] / "embeddings.npz").is_file()


def _tables(comparison: Comparison) -> Section:
    """The deciding columns, an explanation, and all columns folded."""
    every = "".join(table(*each, mark=verdict_class) for each in comparison_tables(comparison))
    header, rows = summary_rows(comparison)
    spare = ["uniformity", "rank", *([comparison.beside.name] if comparison.beside is not None else [])]
    body = (
        table(header, rows, mark=verdict_class, spare=spare)
        + f'<p class="quiet">{html.escape(explanation(comparison))}</p>'
    )
    return Section("Results", f"{body}<details><summary>All metrics and differences</summary>{every}</details>")


def _lead(comparison: Comparison) -> str:
    """The verdict box: the decided arms, then every arm with its numbers."""
    note, clauses, best = verdict_parts(comparison)
    verdicts = {each.verdict for each in comparison.decisions().values()}
    kind = next((f" {verdict}" for verdict in ("better", "worse") if verdict in verdicts), "")
    items = "".join(f"<li>{html.escape(each)}</li>" for each in clauses)
    lines = [f"<p>{html.escape(each.strip())}</p>" if each else "" for each in (note, best)]
    listed = f"<ul>{items}</ul>" if items else ""
    return f'<div class="verdict{kind}">{lines[0]}{_decided(comparison)}{listed}{lines[1]}</div>'


def _decided(comparison: Comparison) -> str:
    """The decided arms in bold, best first."""
    baseline, metric, found = comparison.arms[0].name, comparison.primary, comparison.decisions()
    if metric is None:
        return ""
    lines = []
    for verdict, words in (("better", "Better than"), ("equal", "Practically equal to"), ("worse", "Worse than")):
        names = [arm.name for arm in comparison.ranked() if arm.name in found and found[arm.name].verdict == verdict]
        said = ", ".join(names) if len(names) <= FEW else f"{len(names)} of {len(comparison.arms) - 1} arms"
        if names:
            text = f"{words} {baseline} by {metric.name}: {said}"
            lines.append(f"<p><strong>{html.escape(text)}</strong></p>")
    return "".join(lines) or f"<p>{html.escape(f'No arm is decided against {baseline} by {metric.name}.')}</p>"


def verdict_class(cell: str) -> str:
    """The CSS class of a cell that ends with a verdict."""
    found = re.search(r"(?:^| )(better|equal|worse)(?: after \d+ seeds)?$", cell)
    return found[1] if found else ""


def _which(comparison: Comparison, arms: Sequence[Arm]) -> str:
    """A sentence on which arms are shown, if not all are."""
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
    """Diagnoses of all arms, and of those shown in figures. Vectors of the others are not kept."""
    every = {}
    for arm in comparison.arms:
        every[arm.name] = found = diagnosis_of(arm, seed)
        if arm not in arms:
            found.points = found.tokens = None
    return every, {arm.name: every[arm.name] for arm in arms}


def _collapse(named: dict[str, Diagnosis], seed: int) -> Section:
    """Verdicts with reasons, and all measures of [CLS] and of the mean of tokens."""
    rows = [[name, d.verdict.title, d.verdict.reason] for name, d in named.items()]
    body = f"<p>Test samples of seed {seed}.</p>" + table(["arm", "[CLS] is", "reason"], rows, mark=level_class)
    body += _measures("[CLS]", {name: d.embeddings for name, d in named.items()})
    means = {name: d.mean_of_tokens for name, d in named.items() if d.mean_of_tokens is not None}
    return Section("Has [CLS] collapsed?", body + (_measures("mean of tokens", means) if means else ""))


def _measures(what: str, summaries: dict[str, Summary]) -> str:
    """One column per arm; if there are many, one row per arm."""
    rows = [[what, *summaries], *measure_rows(summaries)]
    if len(summaries) > FEW:
        rows = [list(row) for row in zip(*rows, strict=True)]
    return table(rows[0], rows[1:])


def shape_section(named: dict[str, Diagnosis]) -> Section:
    tokens = {name: singular_values(d.tokens).tolist() for name, d in named.items() if d.tokens is not None}
    drawn = [figures.spectrum({name: d.embeddings.singular_values for name, d in named.items()}, "[CLS]")]
    drawn += [figures.spectrum(tokens, "tokens")] if tokens else []
    rows = {name: d.points.rows for name, d in named.items() if d.points is not None}
    return Section("Shape of [CLS] and tokens", figures=[*drawn, figures.cosines(rows)])


def feature_section(named: dict[str, Diagnosis]) -> Section:
    """One figure per arm, all with the same limits."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, d in named.items():
        parts[name] = {"[CLS]": d.points.rows} if d.points is not None else {}
        parts[name] |= {"tokens": d.tokens} if d.tokens is not None else {}
    limits = figures.span(rows for found in parts.values() for rows in found.values())
    text = (
        "<p>All components of the vectors after the last layer, on the same scale for every arm. A [CLS] that is narrower than "
        "the tokens is squeezed by a norm that they share.</p>"
    )
    looks = styles(parts)
    drawn = [
        figures.components(found, f"Features of {name}", limits, looks[name].colour) for name, found in parts.items()
    ]
    return Section("Features", text, drawn)


def _pictures(diagnosis: Diagnosis, draw: Callable[[str], str | None]) -> dict[str, str]:
    """Pictures of some points of the map, by name."""
    names = [] if diagnosis.points is None else [name for name in dict.fromkeys(diagnosis.points.names) if name]
    drawn = {name: draw(name) for name in names[:: max(1, math.ceil(len(names) / _PICTURES))]}
    return {name: picture for name, picture in drawn.items() if picture is not None}


def map_section(comparison: Comparison, named: dict[str, Diagnosis], pictures: dict[str, int]) -> Section:
    """Maps of the baseline and of the arm with the best primary metric."""
    pair = [comparison.arms[0], *comparison.ranked()[:1]]
    places = {arm.name: named[arm.name].points for arm in pair}
    text = "<p>[CLS] of test samples, placed by t-SNE from a PCA start: the baseline and the best other arm"
    text += "".join(f" by {html.escape(metric.name)}" for metric in comparison.leading[:1])
    drawn = [figures.embedding_map(points, name, pictures) for name, points in places.items() if points is not None]
    return Section("Map", f"{text}.</p>", drawn)


def _sites(named: dict[str, Diagnosis]) -> list[Section]:
    """A folded table of norms for each arm."""
    tables = [
        f"<details><summary>{html.escape(name)}, {len(d.layers.sites)} norms</summary>{site_table(d.layers)}</details>"
        for name, d in named.items()
        if d.layers is not None
    ]
    return [Section("Norm by norm", "".join(tables))] if tables else []
