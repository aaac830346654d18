"""From figures to a verdict in words: healthy, partly collapsed or collapsed, with the reasons and what to try."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sepnorm.geometry import Summary

if TYPE_CHECKING:
    from sepnorm.surgery.inspection import Inspection

LEVELS = ("healthy", "partly collapsed", "collapsed")

#: Mean cosine of two embeddings from which on they are partly collapsed, and collapsed.
COSINE = (0.5, 0.9)
#: The same for uniformity, as shares of what an even spread has. Pairs that are all at a cosine c have -4 (1 - c), so in many
#: dimensions, where -4 is even, these are the same limits.
UNIFORMITY = (0.5, 0.1)
#: Effective rank below this share of the dimensions is a partial collapse, and below this number of dimensions a collapse.
RANK_SHARE, RANK_LEAST = 0.25, 2.0
#: Running statistics further than this from those of the data (in standard deviations) are worth estimating anew.
DISCREPANCY = 0.5
#: A dimension that carries more than this share of the mean cosine is worth removing.
DOMINANT = 0.5


@dataclass(eq=False)
class Sign:
    """One figure, the level it stands for, and the threshold in words."""

    name: str
    value: float
    level: str
    threshold: str


@dataclass(eq=False)
class Verdict:
    """The worst level of the signs, a sentence that says why, and what to try, with commands."""

    level: str
    reason: str
    signs: list[Sign]
    advice: list[str]


def judge(found: Summary, *, target: str, data: str | None = None, layers: Inspection | None = None) -> Verdict:
    """The verdict on embeddings, and on the layers of the model that they come from."""
    signs = [_cosine(found), _uniformity(found), _rank(found)]
    level = max((sign.level for sign in signs), key=LEVELS.index)
    return Verdict(level, _reason(level, signs, found, layers), signs, _advice(level, found, target, data, layers))


def _cosine(s: Summary) -> Sign:
    level = LEVELS[sum(s.mean_cosine >= limit for limit in COSINE)]
    threshold = (
        f"healthy below {COSINE[0]}, collapsed from {COSINE[1]}: two random embeddings should point different ways"
    )
    return Sign("mean cosine", s.mean_cosine, level, threshold)


def _uniformity(s: Summary) -> Sign:
    limits = [share * s.uniformity_ideal for share in UNIFORMITY]
    level = LEVELS[sum(s.uniformity >= limit for limit in limits)]
    threshold = (
        f"healthy below {limits[0]:.2f}, collapsed from {limits[1]:.2f}: a half and a tenth of {s.uniformity_ideal:.2f}, which is "
        "even on the sphere"
    )
    return Sign("uniformity", s.uniformity, level, threshold)


def _rank(s: Summary) -> Sign:
    least = min(RANK_LEAST, RANK_SHARE * s.available)
    level = LEVELS[(s.effective_rank < RANK_SHARE * s.available) + (s.effective_rank < least)]
    threshold = (
        f"healthy from {RANK_SHARE:.0%} of the {s.available} dimensions available ({RANK_SHARE * s.available:.0f}), "
        f"collapsed below {least:g}"
    )
    return Sign("effective rank", s.effective_rank, level, threshold)


def _reason(level: str, signs: list[Sign], s: Summary, layers: Inspection | None) -> str:
    cosine, _, rank = signs
    said = []
    if cosine.level != "healthy":
        low = s.cosine_quantiles["0.01"]
        said.append(
            f"two embeddings have a cosine of {s.mean_cosine:.2f} on average, and 99 % of pairs are above {low:.2f}"
        )
    if rank.level != "healthy":
        said.append(f"they fill about {s.effective_rank:.0f} of {s.available} dimensions")
    if signs[1].level != "healthy" and not said:
        said.append(f"their uniformity is {s.uniformity:.2f}, where {s.uniformity_ideal:.2f} would be even")
    if level == "healthy":
        said.append(
            f"two embeddings have a cosine of {s.mean_cosine:.2f} on average and they fill about {s.effective_rank:.0f} of "
            f"{s.available} dimensions"
        )
    sentence = f"{said[0][0].upper()}{said[0][1:]}{''.join(f'; {more}' for more in said[1:])}."
    return sentence + _where(level, layers)


def _where(level: str, layers: Inspection | None) -> str:
    """At which norm the [CLS] vectors come close to each other for good."""
    if layers is None or level == "healthy":
        return ""
    sites = [site for site in layers.sites if not site.degenerate]
    close = [site.after.cls.cosine >= COSINE[0] for site in sites]
    if not sites or not close[-1]:
        return ""
    first = len(close)
    while first and close[first - 1]:
        first -= 1
    if first == 0:
        return f" This is so from the first norm that sees different [CLS], {sites[0].path}, on."
    return f" It begins at {sites[first].path}: from there on the mean cosine of [CLS] is above {COSINE[0]}."


def _advice(level: str, s: Summary, target: str, data: str | None, layers: Inspection | None) -> list[str]:
    advice = []
    if not math.isnan(s.dominance_one) and s.dominance_one > DOMINANT and s.mean_cosine > 0.1:
        advice.append(
            f"Dimension {s.dominant_dimensions[0]} alone carries {s.dominance_one:.0%} of the mean cosine: standardise the "
            "dimensions before comparing embeddings, x = (x - x.mean(0)) / x.std(0)."
        )
    if layers is not None:
        off = [site for site in layers.sites if site.discrepancy is not None and site.discrepancy > DISCREPANCY]
        if off:
            advice.append(
                f"At {len(off)} norms, such as {off[0].path}, the running statistics do not fit these data "
                f"(discrepancy {off[0].discrepancy:.1f}): estimate them anew, sepnorm.calibrate(model, batches)."
            )
    if level == "healthy":
        return [
            *advice,
            "There is no collapse to repair. Whether separate norms help all the same only training tells.",
        ]
    if layers is None:
        if s.mean_cosine >= COSINE[0] and s.effective_rank_centered >= RANK_SHARE * s.available:
            advice.append(
                "The cone is a common offset and the rest is spread well: subtract the mean before comparing, "
                "x = x - x.mean(0)."
            )
        advice.append(
            "See at which layer of the model it happens: sepnorm diagnose MODEL --data DATA, with the data they are from."
            if data is None
            else "Separate norms need a [CLS], which this model has not: take one that has, or centre and whiten its vectors."
        )
        return advice
    converted = any("+" in site.norm for site in layers.sites)
    if converted:
        advice.append(
            "[CLS] has a norm of its own already: train on with a uniformity term or contrastive pairs on [CLS], "
            "which move it apart."
        )
    else:
        advice.append(
            "Give [CLS] a norm of its own; the copy works as the original does, and is then to be trained on your data: "
            f"sepnorm convert {target} --norm bn+ln --sites final --data {data} --out converted"
        )
        advice.append(f"Then look at both: sepnorm diagnose converted --data {data} --compare {target}")
    return advice
