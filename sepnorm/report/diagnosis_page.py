"""The HTML page of one diagnosis, or of two side by side."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sepnorm.geometry import Summary
from sepnorm.report import figures
from sepnorm.report.diagnosis import Diagnosis
from sepnorm.report.page import Section, table, write_page
from sepnorm.report.verdict import LEVELS
from sepnorm.surgery.inspection import Inspection
from sepnorm.surgery.inspection import table as layer_table

DEFINITIONS = {
    "Mean cosine (anisotropy)": "Mean cosine between two different embeddings. 0 if they point everywhere, near 1 if all lie in a "
    "narrow cone (Ethayarajh 2019).",
    "Uniformity": "log mean exp(-2 |u - v|²) over pairs of embeddings at length one. 0 for one point, about -4 for an even spread "
    "in many dimensions (Wang and Isola 2020).",
    "Effective rank": "exp of the entropy of the singular values, which are not centred and sum to one: how many dimensions are "
    "filled (Roy and Vetterli 2007). RankMe adds 1e-7 to each share (Garrido et al. 2023). Figures from other numbers of "
    "samples, or by eigenvalues, are not comparable.",
    "Participation ratio": "(sum v)² / sum v² of the eigenvalues v of the covariance: how many dimensions carry the variance.",
    "IsoScore": "1 if the variance is alike in all directions, 0 if it is along one (Rudman et al. 2022).",
    "Dominance": "Share of the mean cosine that the strongest one and three dimensions carry (Timkey and van Schijndel 2021).",
    "Loud dimensions": "Those of six times the scale of the median one: they decide the cosines.",
    "alpha-ReQ": "How fast the eigenvalues of the covariance decay: 0 is flat, around 1 is where good encoders lie (Agrawal et al. "
    "2022).",
    "LiDAR": "How many dimensions tell labels apart: the effective rank of the means of labels, in units of the spread within them "
    "(Thilak et al. 2024).",
    "Epps-Pulley": "Distance to an isotropic Gaussian around 0, over random directions (Epps and Pulley 1983; SIGReg, "
    "Balestriero and LeCun 2025). 0 is none.",
    "KoLeo": "Mean logarithm of the distance to the nearest other embedding on the sphere (Sablayrolles et al. 2019). More is "
    "even.",
    "Long tokens": "Share of tokens that enter a norm with more than three times the median length (Darcet et al. 2024).",
    "Dead dimensions": "Dimensions whose standard deviation is below a thousandth of the root mean square of all values.",
    "Degenerate norm": "A norm before the first attention, where [CLS] is the same vector in every sample. A batch norm "
    "there would give a constant, so surgery leaves it alone.",
    "train/eval": "How far the running statistics of a batch norm are from those of these data, in standard deviations.",
}


def write_diagnosis(path: str | Path, diagnoses: Sequence[Diagnosis]) -> Path:
    """Writes diagnoses as one self-contained HTML page.

    Args:
        path: the file to write.
        diagnoses: one diagnosis, or two to compare in the same figures.

    Returns:
        The path.
    """
    names = short_names([d.target for d in diagnoses])
    named = dict(zip(names, diagnoses, strict=True))
    lead = "".join(_verdict(name if len(named) > 1 else "", d) for name, d in named.items())
    sections = [
        Section("Shape of the cloud", figures=[figures.spectrum(_spectra(named)), figures.cosines(_rows(named))]),
        Section("Features", _features_text(named), [figures.features(_features(named))]),
    ]
    sections += layer_sections(named)
    for name, d in named.items():
        if d.layers is not None:
            sections.append(Section(f"{len(d.layers.sites)} norm sites of {name}", site_table(d.layers), folded=True))
    maps = [figures.embedding_map(d.points, name) for name, d in named.items() if d.points is not None]
    sections.append(Section("Map", "<p>Placed by t-SNE from a PCA start.</p>", maps))
    scales = {name: summary.variances for name, summary in all_summaries(named).items()}
    sections.append(Section("Dimensions", figures=[figures.dimension_scales(scales)]))
    sections.append(Section("All measures", _measures(named), folded=True))
    sections.append(replace(definitions(), folded=True))
    return write_page(path, f"Diagnosis of {' and '.join(names)}", lead, sections)


def layer_sections(named: dict[str, Diagnosis]) -> list[Section]:
    """Curves by layer of the diagnoses that have layers; empty if none has."""
    with_layers = {name: d.layers.sites for name, d in named.items() if d.layers is not None}
    if not with_layers:
        return []
    text = "What leaves each norm, from the input to the last norm: [CLS] in solid lines, the other tokens dotted."
    return [Section("Layer by layer", f"<p>{text}</p>", figures.layer_curves(with_layers))]


def level_class(cell: str) -> str:
    """The CSS class of a cell: its level, or more width for sentences."""
    level = cell.partition(":")[0]
    return level.split()[0] if level in LEVELS else "sentence" if cell.endswith(".") else ""


def site_table(layers: Inspection) -> str:
    """An HTML table with a row per norm of a model."""
    header, *rows = layer_table(list(layers.sites))
    rows = [[f"{row[0]} ({row[-1]})" if row[-1] else row[0], *row[1:-1]] for row in rows]
    return table(header[:-1], rows)


def definitions() -> Section:
    lines = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in DEFINITIONS.items())
    return Section("Definitions", f"<dl>{lines}</dl>")


def short_names(targets: Sequence[str]) -> list[str]:
    """The last part of each path, or the whole path if last parts are equal."""
    names = [Path(target).name or target for target in targets]
    if len(set(names)) < len(names):
        names = list(targets)
    return names if len(set(names)) == len(names) else [f"{name} ({i})" for i, name in enumerate(names, 1)]


def summary_rows(named: dict[str, Summary]) -> list[list[str]]:
    """One row per measure, one column per summary."""
    tables = {name: _lines(summary) for name, summary in named.items()}
    return [[key, *(lines[key] for lines in tables.values())] for key in next(iter(tables.values()))]


def _lines(s: Summary) -> dict[str, str]:
    q = s.cosine_quantiles
    dominance, loud = "no common direction", "none"
    if not math.isnan(s.dominance_one):
        dominance = f"{s.dominance_one:.0%}, {s.dominance_three:.0%} (dimension {s.dominant_dimensions[0]})"
    if s.loud_dimensions:
        loud = f"{', '.join(map(str, s.loud_dimensions[:5]))} ({s.loud_share:.0%})"
    return {
        "embeddings": f"{s.count:,} x {s.dim}",
        "mean cosine": f"{s.mean_cosine:.3f} ± {s.mean_cosine_stderr:.3f}",
        "cosine, 1 % to 99 %": f"{q['0.01']:.2f} to {q['0.99']:.2f}",
        "uniformity (best)": f"{s.uniformity:.3f} ± {s.uniformity_stderr:.3f} ({s.uniformity_ideal:.2f})",
        "effective rank": f"{s.effective_rank:.1f} of {s.available}",
        "the same, centred": f"{s.effective_rank_centered:.1f}",
        "RankMe": f"{s.rankme:.1f}",
        "participation ratio": f"{s.participation_ratio:.1f}",
        "IsoScore": f"{s.isoscore:.3f}",
        "dominance of 1, 3": dominance,
        "loud dimensions": loud,
        "dead dimensions": str(s.dead_dimensions),
        "duplicates": f"{max(s.duplicates / s.count, s.near_duplicates):.1%}",
        "alpha-ReQ": f"{s.alpha_req:.2f}",
        "Epps-Pulley": f"{s.epps_pulley:.3g}",
        "KoLeo": f"{s.koleo:.2f}",
        "length": f"{s.mean_length:.3g} ± {s.std_length:.2g}",
        "variance": f"{s.mean_variance:.3g}",
    }


def all_summaries(named: dict[str, Diagnosis]) -> dict[str, Summary]:
    found = {}
    for name, d in named.items():
        prefix = f"{name}: " if len(named) > 1 else ""
        found[f"{prefix}{'[CLS]' if d.layers else 'embeddings'}"] = d.embeddings
        if d.mean_of_tokens is not None:
            found[f"{prefix}mean of tokens"] = d.mean_of_tokens
    return found


def _verdict(name: str, d: Diagnosis) -> str:
    level = d.verdict.level
    of = f"{html.escape(name)}: " if name else ""
    what = "[CLS]" if d.layers else "The embeddings"
    data = f" on {html.escape(d.data)}" if d.data else ""
    rows = [[s.name, f"{s.value:.3g}", s.level, s.threshold] for s in d.verdict.signs]
    told = "" if d.lidar is None else f" LiDAR, the dimensions that tell labels apart: {d.lidar:.1f}."
    notes = "".join(f"<li>{html.escape(line)}</li>" for line in d.embeddings.notes)
    advice = "".join(f"<li>{_with_code(line)}</li>" for line in d.verdict.advice)
    return (
        f'<div class="verdict {level.split()[0]}"><p><strong>{of}{html.escape(d.verdict.title)}</strong></p>'
        f"<p>{html.escape(d.verdict.reason)}</p></div>"
        f'<p class="quiet">{what} of {html.escape(d.target)}{data}, {d.embeddings.count:,} samples.{told}</p>'
        + table(["sign", "value", "level", "threshold"], rows, mark=level_class)
        + f"<h2>What to try next</h2><ul>{advice}</ul>"
        + (f"<h2>Worth knowing</h2><ul>{notes}</ul>" if notes else "")
    )


def _with_code(text: str) -> str:
    """Advice as HTML, with commands and quoted names as code."""
    return re.sub(r"`([^`]+)`|(sepnorm\.\w+\([^)]*\)|sepnorm \w+ [^,]+)", _code, html.escape(text))


def _code(found: re.Match[str]) -> str:
    return f"<code>{found[1] or found[2]}</code>"


def _spectra(named: dict[str, Diagnosis]) -> dict[str, Any]:
    return {name: summary.singular_values for name, summary in all_summaries(named).items()}


def _rows(named: dict[str, Diagnosis]) -> dict[str, Any]:
    return {name: d.points.rows for name, d in named.items() if d.points is not None}


def _features(named: dict[str, Diagnosis]) -> dict[str, Any]:
    found = {}
    for name, d in named.items():
        prefix = f"{name}: " if len(named) > 1 else ""
        if d.points is not None:
            found[f"{prefix}{'[CLS]' if d.layers else 'embeddings'}"] = d.points.rows
        if d.tokens is not None:
            found[f"{prefix}tokens"] = d.tokens
    return found


def _features_text(named: dict[str, Diagnosis]) -> str:
    if any(d.tokens is not None for d in named.values()):
        return "<p>All components of the [CLS] vectors against those of the other tokens, after the last layer.</p>"
    return "<p>All components of the embeddings.</p>"


def _measures(named: dict[str, Diagnosis]) -> str:
    summaries = all_summaries(named)
    return table(["", *summaries], summary_rows(summaries))
