"""Sections of a comparison's page: predictions against true values, and nearest neighbours of molecules."""

from __future__ import annotations

import html
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.experiment.comparison import Arm
from sepnorm.report import figures
from sepnorm.report.arms import styles
from sepnorm.report.page import Section
from sepnorm.report.runs import embeddings, names_of

#: Name of a run's file with ``true`` and ``predicted`` (test molecules, targets), without suffix.
FILE = "predictions"
_ASKED, _NEIGHBOURS = 5, 4  # molecules in the table, and neighbours of each
_POINTS = 2000  # per figure


def predictions(arms: Sequence[Arm], seed: int) -> Section | None:
    """Predicted against true values of the first target, one colour per arm; None if no arm predicted numbers."""
    found = {arm.name: embeddings(arm.folders[seed] / f"{FILE}.npz") for arm in arms if _has(arm, seed)}
    kept = {name: arrays for name, arrays in found.items() if "predicted" in arrays}
    if not kept:
        return None
    true = next(iter(kept.values()))["true"][:, 0]
    known = true.isfinite()
    if set(true[known].tolist()) <= {0.0, 1.0}:
        values = {
            f"{name}, class {label}": arrays["predicted"][known & (true == label), 0].sigmoid()
            for name, arrays in kept.items()
            for label in (0, 1)
        }
        drawn = figures.histogram("Predicted probability by true class", "probability of class 1", values, (0.0, 1.0))
    else:
        drawn = figures.figure("Predicted against true: on the line a prediction is right", "true", "predicted")
        ends = [float(true[known].min()), float(true[known].max())]
        drawn.add_scatter(x=ends, y=ends, mode="lines", line={"color": "#888888", "width": 1}, showlegend=False)
        looks = styles(kept)
        for name, arrays in kept.items():
            x, y = true[known][:_POINTS].tolist(), arrays["predicted"][known, 0][:_POINTS].tolist()
            marker = looks[name].marker | {"size": 4, "opacity": 0.6}
            drawn.add_scatter(x=x, y=y, name=name, mode="markers", marker=marker, meta=looks[name].kind)
    return Section("Predictions", f"<p>Test molecules of seed {seed}, the first target.</p>", [drawn])


def neighbours(arms: Sequence[Arm], seed: int) -> Section | None:
    """Some test molecules with their nearest neighbours by cosine of [VNode], per arm; None without structures."""
    parts = []
    for arm in arms[:: max(1, len(arms) - 1)]:  # the baseline and the last
        if not _has(arm, seed):
            continue
        arrays = embeddings(arm.folders[seed] / f"{FILE}.npz")
        smiles = names_of(arm.folders[seed])
        if not smiles or not all(smiles):
            continue
        unit = F.normalize(embeddings(arm.folders[seed] / "embeddings.npz")["cls"].float(), dim=1)
        asked = torch.linspace(0, len(smiles) - 1, min(_ASKED, len(smiles))).long()
        cosines = (unit[asked] @ unit.T).scatter(1, asked[:, None], -2.0)
        nearest = cosines.argsort(dim=1, descending=True, stable=True)[:, : min(_NEIGHBOURS, len(smiles) - 1)]
        lines = "".join(
            f"<tr>{''.join(_cell(smiles[i], arrays['true'][i]) for i in [int(row), *others])}</tr>"
            for row, others in zip(asked, nearest.tolist(), strict=True)
        )
        head = f'<th scope="col">molecule</th><th scope="colgroup" colspan="{_NEIGHBOURS}">nearest by [VNode]</th>'
        parts.append(
            f'<h3>{html.escape(arm.name)}</h3><div class="scroll" role="region" tabindex="0" '
            f'aria-label="Nearest molecules of {html.escape(arm.name, quote=True)}"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{lines}</tbody></table></div>"
        )
    text = f"<p>Test molecules of seed {seed}, with the first target below each.</p>"
    return Section("Nearest molecules", text + "".join(parts)) if parts else None


def _has(arm: Arm, seed: int) -> bool:
    return (arm.folders[seed] / f"{FILE}.npz").is_file()


def _cell(smiles: str, targets: Tensor) -> str:
    said = "".join("missing" if value != value else f"{value:.3g}" for value in targets[:1].tolist())
    name = html.escape(smiles, quote=True)
    return f'<td title="{name}"><span role="img" aria-label="{name}">{draw(smiles)}</span><br>{said}</td>'


def draw(smiles: str, side: int = 110) -> str:
    """The structure as SVG on a white background."""
    from rdkit import Chem
    from rdkit.Chem.Draw import rdMolDraw2D

    drawer = rdMolDraw2D.MolDraw2DSVG(side, side)
    rdMolDraw2D.PrepareAndDrawMolecule(drawer, Chem.MolFromSmiles(smiles))
    drawer.FinishDrawing()
    text = str(drawer.GetDrawingText())
    return text[text.index("<svg") :]
