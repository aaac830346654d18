"""From measures to a verdict: which illnesses embeddings have, how severe, why, and what to try.

There are four illnesses, each with its own measure and remedy: **off-centre** (all vectors share a mean), **few
dimensions** (low rank after centring), **loud dimensions** (a few have a far larger scale than the others) and
**duplicates**. The first two are measured without loud dimensions, which would hide everything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sepnorm.geometry import Summary
from sepnorm.report.advice import advice_on

if TYPE_CHECKING:
    from sepnorm.surgery.inspection import Inspection

LEVELS = ("healthy", "partly collapsed", "collapsed")
#: The illnesses, in the order of reports.
ILLNESSES = ("off-centre", "few dimensions", "loud dimensions", "duplicates")

#: Mean cosine of two embeddings from which they are off-centre. This alone is no collapse: centring undoes it.
COSINE = 0.5
#: Centred effective rank below this share of the dimensions is a partial collapse; below this number, a collapse.
RANK_SHARE, RANK_LEAST = 0.25, 2.0
#: Loud dimensions dominate cosines if they have more than this share of the sum of squares.
LOUD_SHARE = 0.25
#: Shares of duplicate embeddings that are a partial collapse, and a collapse.
DUPLICATES = (0.05, 0.5)


@dataclass(eq=False)
class Sign:
    """One measure, compared with its threshold.

    Attributes:
        name: name of the measure.
        value: the measured value.
        level: one of ``LEVELS``.
        threshold: the threshold in words.
        illness: which of ``ILLNESSES`` it measures.
    """

    name: str
    value: float
    level: str
    threshold: str
    illness: str = ""


@dataclass(eq=False)
class Verdict:
    """A verdict on embeddings.

    Attributes:
        level: the worst level of the signs, one of ``LEVELS``.
        reason: why, in one or two sentences.
        signs: the measures behind it.
        advice: what to try, with commands, the simplest first.
        illnesses: names of the illnesses found.
    """

    level: str
    reason: str
    signs: list[Sign]
    advice: list[str]
    illnesses: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The level with the illnesses: ``partly collapsed: off-centre``."""
        return f"{self.level}: {', '.join(self.illnesses)}" if self.illnesses else self.level


def judge(found: Summary, *, target: str, data: str | None = None, layers: Inspection | None = None) -> Verdict:
    """The verdict on embeddings and, if given, the layers of their model."""
    signs = [_off_centre(found), _few_dimensions(found), _loud(found), _duplicates(found)]
    level = max((sign.level for sign in signs), key=LEVELS.index)
    illnesses = [sign.illness for sign in signs if sign.level != "healthy"]
    reason = _reason(illnesses, found) + _where(illnesses, layers)
    return Verdict(level, reason, signs, advice_on(illnesses, found, target, data, layers), illnesses)


def _off_centre(s: Summary) -> Sign:
    without = " without loud dimensions" if s.loud_dimensions else ""
    return Sign(
        f"mean cosine{without}",
        s.rest_mean_cosine,
        LEVELS[s.rest_mean_cosine >= COSINE],
        f"healthy below {COSINE}: above, more than half of each vector is a mean that all of them share",
        "off-centre",
    )


def _few_dimensions(s: Summary) -> Sign:
    distinct = s.count - s.duplicates
    possible = max(min(distinct - 1, s.dim - len(s.loud_dimensions)), 1)
    least = min(RANK_LEAST, RANK_SHARE * possible)
    rank = s.rest_effective_rank_centered
    without = ", without loud dimensions" if s.loud_dimensions else ""
    return Sign(
        f"effective rank, centred{without}",
        rank,
        LEVELS[(rank < RANK_SHARE * possible) + (rank < least)],
        f"healthy from {RANK_SHARE:.0%} of the {possible} dimensions available ({RANK_SHARE * possible:.0f}), "
        f"collapsed below {least:g}",
        "few dimensions",
    )


def _loud(s: Summary) -> Sign:
    return Sign(
        "share of loud dimensions",
        s.loud_share,
        LEVELS[s.loud_share >= LOUD_SHARE],
        f"healthy below {LOUD_SHARE}: loud dimensions have six times the median scale and dominate the cosines",
        "loud dimensions",
    )


def _duplicates(s: Summary) -> Sign:
    share = max(s.duplicates / s.count, s.near_duplicates)
    return Sign(
        "share of duplicates",
        share,
        LEVELS[sum(share >= limit for limit in DUPLICATES)],
        f"healthy below {DUPLICATES[0]:.0%}, collapsed from {DUPLICATES[1]:.0%}: embeddings equal to another one",
        "duplicates",
    )


def _reason(illnesses: list[str], s: Summary) -> str:
    low = math.floor(100 * s.cosine_quantiles["0.01"]) / 100  # no cosine is above 1.00
    cosine = s.rest_mean_cosine
    without = ", loud dimensions left out" if s.loud_dimensions else ""
    words = {
        "off-centre": f"two embeddings have a cosine of {cosine:.2f} on average{without}, because they share a mean vector"
        + ("" if s.loud_dimensions else f"; 99 % of pairs are above {low:.2f}"),
        "few dimensions": f"after centring they fill about {s.rest_effective_rank_centered:.0f} of "
        f"{min(s.available, s.dim - len(s.loud_dimensions))} dimensions{without}",
        "loud dimensions": f"{_named(s.loud_dimensions)} alone {_hold(s)} {s.loud_share:.0%} of the vectors' squared length",
        "duplicates": f"{max(s.duplicates / s.count, s.near_duplicates):.0%} of them are equal to another one",
    }
    said = [words[illness] for illness in illnesses] or [
        f"two embeddings have a cosine of {s.mean_cosine:.2f} on average and after centring they fill about "
        f"{s.effective_rank_centered:.0f} of {s.available} dimensions"
    ]
    return f"{said[0][0].upper()}{said[0][1:]}{''.join(f'; {more}' for more in said[1:])}."


def _hold(s: Summary) -> str:
    return "holds" if len(s.loud_dimensions) == 1 else "hold"


def _named(dimensions: list[int]) -> str:
    """``dimension 7``, or the first three of several."""
    if len(dimensions) == 1:
        return f"dimension {dimensions[0]}"
    more = " and more" if len(dimensions) > 3 else ""
    return f"dimensions {', '.join(map(str, dimensions[:3]))}{more}"


def _where(illnesses: list[str], layers: Inspection | None) -> str:
    """A sentence on the norm from which [CLS] vectors stay close to each other."""
    if layers is None or not illnesses:
        return ""
    sites = [site for site in layers.sites if not site.degenerate]
    close = [site.after.cls.cosine >= COSINE for site in sites]
    if not sites or not close[-1]:
        return ""
    first = len(close)
    while first and close[first - 1]:
        first -= 1
    if first == 0:
        return f" [CLS] vectors are this similar already at {sites[0].path}, the first norm after attention."
    return f" It begins at {sites[first].path}: from there on the mean cosine of [CLS] is above {COSINE}."
