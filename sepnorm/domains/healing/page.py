"""The page of a healing: before and after side by side."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sepnorm.report import figures
from sepnorm.report.diagnosis_page import short_names, summary_rows
from sepnorm.report.page import Section, table, write_page

if TYPE_CHECKING:
    from sepnorm.domains.healing.healing import Healing

_SHOWN, _NEIGHBOURS = 6, 3


def write_page_of(healing: Healing, path: Path) -> Path:
    """Writes the page and returns its path."""
    name = short_names([healing.target])[0]
    sections = [
        Section("Similarity", _thresholds(healing), _cosines(healing)),
        Section(
            "Spectrum",
            figures=[
                figures.spectrum(
                    {"before": healing.summaries[0].singular_values, "after": healing.summaries[1].singular_values}
                )
            ],
        ),
        Section("Candidates", _candidates(healing)),
        Section("Neighbours of a few samples", _neighbours(healing)),
        Section(
            "All figures",
            table(
                ["", "before", "after"], summary_rows(dict(zip(("before", "after"), healing.summaries, strict=True)))
            ),
        ),
    ]
    return write_page(path, f"Healing of {name}", _lead(healing), sections)


def _lead(healing: Healing) -> str:
    best = next((each for each in healing.scored if each.name == healing.title), None)
    gain = f" {best.difference:+.4f} ± {best.half:.4f} beside nothing." if best is not None and healing.changed else ""
    said = healing.title if healing.changed else "Nothing is better than to leave the vectors as they are"
    before, after = healing.verdicts
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in healing.notes)
    return (
        f'<div class="verdict {"healthy" if healing.changed else ""}"><p><strong>{html.escape(said)}</strong></p>'
        f"<p>Chosen by {html.escape(healing.measure)}.{html.escape(gain)}</p></div>"
        f"<p>Verdict before: {html.escape(before.title)}. After: {html.escape(after.title)}. A better verdict is "
        "no better score.</p>"
        f'<p class="quiet">{html.escape(healing.target)}, {healing.count:,} samples.</p>'
        + (f'<ul class="quiet">{notes}</ul>' if notes else "")
    )


def _thresholds(healing: Healing) -> str:
    rows = [[f"{old.rate:,}", str(old), str(new)] for old, new in zip(healing.before, healing.after, strict=False)]
    return (
        "<p>The cosine that unrelated pairs of these data exceed once in so many times, with a 95 % interval: a threshold on "
        "similarity belongs above it.</p>" + table(["once in", "before", "after"], rows)
    )


def _cosines(healing: Healing) -> list[object]:
    before, after = healing.before_and_after()
    known = _known(healing)
    shown = []
    for number, (name, rows) in enumerate((("before", before), ("after", after))):
        found = {"random pairs": figures.random_cosines(rows)}
        if known is not None:
            found[known[0]] = known[1][number]
        shown.append(figures.histogram(f"Cosines {name}", "cosine", found, (-0.6, 1.0)))
    return shown


def _known(healing: Healing) -> tuple[str, tuple[Tensor, Tensor]] | None:
    """Cosines of related pairs before and after, and what the pairs are."""
    source, found = healing.source, healing.map
    if source.pairs is not None:
        first, second, ratings = source.pairs
        best = ratings >= ratings.quantile(0.75)
        sides = [(first[p][best], second[p][best]) for p in (source.own, healing.pooling)]
        return (
            "pairs rated highest",
            (torch.cosine_similarity(*sides[0]), torch.cosine_similarity(found(sides[1][0]), found(sides[1][1]))),
        )
    if source.views is not None:
        old, new = source.views[source.own], source.views[healing.pooling]
        return (
            "two views of one",
            (torch.cosine_similarity(*old), torch.cosine_similarity(found(new[0]), found(new[1]))),
        )
    if source.labels is None:
        return None
    partner = _same_label(source.labels)
    here = torch.tensor([i for i, other in enumerate(partner) if other is not None])
    there = torch.tensor([other for other in partner if other is not None])
    before, after = healing.before_and_after()
    return (
        "same label",
        (torch.cosine_similarity(before[here], before[there]), torch.cosine_similarity(after[here], after[there])),
    )


def _same_label(labels: list[str]) -> list[int | None]:
    """For each sample the previous one with the same label, or None."""
    last: dict[str, int] = {}
    found: list[int | None] = []
    for number, label in enumerate(labels):
        found.append(last.get(label))
        last[label] = number
    return found


def _candidates(healing: Healing) -> str:
    if not healing.scored:
        return "<p>No other was tried.</p>"
    rows = [
        [each.name, f"{each.score:.4f}", f"{each.difference:+.4f} ± {each.half:.4f}", "better" if each.better else ""]
        for each in healing.scored
    ]
    text = "The intervals hold for all candidates at once. One is taken only if its interval is above 0."
    return f"<p>{text}</p>" + table(
        ["candidate", "score", "minus nothing", ""], rows, mark=lambda cell: cell if cell == "better" else ""
    )


def _neighbours(healing: Healing) -> str:
    before, after = healing.before_and_after()
    names, labels = healing.source.names, healing.source.labels
    chosen = torch.linspace(0, len(before) - 1, _SHOWN).long().tolist()
    rows = []
    for number in chosen:
        cells = [_said(names, labels, number)]
        for vectors in (before, after):
            cosines = torch.cosine_similarity(vectors[number][None], vectors)
            cosines[number] = -2
            best = cosines.topk(min(_NEIGHBOURS, len(vectors) - 1))
            cells.append(
                "; ".join(
                    f"{value:.2f} {_said(names, labels, i)}"
                    for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
                )
            )
        rows.append(cells)
    return table(["sample", "nearest before", "nearest after"], rows)


def _said(names: list[str], labels: list[str] | None, number: int) -> str:
    return names[number][:80] + (f" [{labels[number]}]" if labels else "")
