"""Advice for each illness of embeddings: remedies that were measured to help, with commands."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sepnorm.geometry import Summary

if TYPE_CHECKING:
    from sepnorm.surgery.inspection import Inspection

#: Advise recalibration if running statistics differ from those of the data by more than this many standard deviations.
DISCREPANCY = 0.5
#: Mention registers if more than this share of tokens has a far larger norm than the others.
ARTEFACTS = 0.001
_NO_SCORE = (
    "A better verdict is not a better score: on sentences `bn+ln` scores higher with worse uniformity. Judge a remedy by a task: "
    "heal does so if you give it labels or rated pairs."
)


def advice_on(illnesses: list[str], s: Summary, target: str, data: str | None, layers: Inspection | None) -> list[str]:
    """One line for each thing to try, the simplest first."""
    remedies = {
        "off-centre": "Subtract the mean before comparing, x = x - x.mean(0). It needs no training; separate norms "
        "do the same while they train.",
        "few dimensions": "Whitening spreads what is there. It helped image encoders and ruined the embeddings of a few hundred "
        "sentences, so try it on held-out data: heal does.",
        "loud dimensions": f"{_loudest(s)} Standardise the dimensions before comparing, x = (x - x.mean(0)) / x.std(0).",
        "duplicates": "Look at the inputs of equal vectors: do they repeat, are they empty or cut off before they differ? If they "
        "differ, the encoder ignores them, and no linear map will tell them apart.",
    }
    advice = [remedies[illness] for illness in illnesses]
    advice += _of_layers(layers) if layers is not None else []
    if not illnesses:
        return [
            *advice,
            "There is no collapse to repair. Separate norms may still help: only training tells.",
        ]
    if set(illnesses) - {"duplicates"}:
        more = "" if data is None else f" --data {data}"
        advice.append(f"Let heal choose a remedy and check it: sepnorm heal {target}{more} --out healed")
    advice.append(_NO_SCORE)
    return advice + _of_model(target, data, layers)


def _loudest(s: Summary) -> str:
    if not s.loud_dimensions:
        return ""
    first = s.loud_dimensions[0]
    if not math.isnan(s.dominance_one) and s.dominant_dimensions[0] == first:
        return f"Dimension {first} alone carries {s.dominance_one:.0%} of the mean cosine."
    return f"Dimension {first} is the loudest."


def _of_layers(layers: Inspection) -> list[str]:
    said = []
    off = [site for site in layers.sites if site.discrepancy is not None and site.discrepancy > DISCREPANCY]
    if off:
        said.append(
            f"At {len(off)} norms, such as {off[0].path}, the running statistics do not fit these data "
            f"(discrepancy {off[0].discrepancy:.1f}): measure them again by sepnorm.calibrate(model, batches)."
        )
    worst = max(layers.sites, key=lambda site: site.tokens.high_norm, default=None)
    if worst is not None and worst.tokens.high_norm > ARTEFACTS:
        said.append(
            f"At {worst.path} {worst.tokens.high_norm:.1%} of the tokens are more than three times as long as the median: as in "
            "large vision transformers without registers, they may hold what belongs to the whole input."
        )
    return said


def _of_model(target: str, data: str | None, layers: Inspection | None) -> list[str]:
    if layers is None:
        if data is None:
            return [
                "See at which layer of the model it happens: sepnorm diagnose MODEL --data DATA, with the data they are from."
            ]
        return ["Separate norms need a [CLS], which this model does not have."]
    if any("+" in site.norm for site in layers.sites):
        return [
            "[CLS] has a norm of its own already: train on with a uniformity term or contrastive pairs on [CLS], "
            "which move it apart."
        ]
    return [
        "Give [CLS] a norm of its own. The copy works like the original; then train it on your data: "
        f"sepnorm convert {target} --norm bn+ln --sites final --data {data} --out converted",
        f"Then look at both: sepnorm diagnose converted --data {data} --compare {target}",
    ]
