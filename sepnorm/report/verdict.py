"""From figures to a verdict in words: which illnesses embeddings have, how bad they are, why, and what to try.

Four illnesses are told apart, each by a measure of its own, since each has another remedy: **off-centre** (a mean vector that
all share), **few dimensions** (low rank after centring), **loud dimensions** (a few of far larger scale than the others) and
**duplicates**. The first and the second are measured without loud dimensions, which would hide the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sepnorm.geometry import Summary
from sepnorm.report.advice import advice_on

if TYPE_CHECKING:
    from sepnorm.surgery.inspection import Inspection

LEVELS = ("healthy", "partly collapsed", "collapsed")
#: The illnesses, in the order in which they are named.
ILLNESSES = ("off-centre", "few dimensions", "loud dimensions", "duplicates")

#: Mean cosine of two embeddings from which on they are off-centre. That alone is never a collapse: subtracting the mean undoes it.
COSINE = 0.5
#: Centred effective rank below this share of the dimensions is a partial collapse, and below this number of dimensions a collapse.
RANK_SHARE, RANK_LEAST = 0.25, 2.0
#: Loud dimensions with more than this share of the sum of squares decide the cosines.
LOUD_SHARE = 0.25
#: Shares of embeddings that are equal to another one: a partial collapse, and a collapse.
DUPLICATES = (0.05, 0.5)


@dataclass(eq=False)
class Sign:
    """One figure, the level it stands for, the threshold in words, and the illness that it is the measure of."""

    name: str
    value: float
    level: str
    threshold: str
    illness: str = ""


@dataclass(eq=False)
class Verdict:
    """The worst level of the signs, a sentence that says why, and what to try, with commands; ``illnesses`` by name."""

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
    """The verdict on embeddings, and on the layers of the model that they come from."""
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
        f"healthy below {COSINE}: above, half of what vectors hold is a mean that all share",
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
        f"healthy below {LOUD_SHARE}: loud dimensions have six times the scale of the median one, and decide the cosines",
        "loud dimensions",
    )


def _duplicates(s: Summary) -> Sign:
    share = max(s.duplicates / s.count, s.near_duplicates)
    return Sign(
        "share of duplicates",
        share,
        LEVELS[sum(share >= limit for limit in DUPLICATES)],
        f"healthy below {DUPLICATES[0]:.0%}, collapsed from {DUPLICATES[1]:.0%}: embeddings that are equal to another",
        "duplicates",
    )


def _reason(illnesses: list[str], s: Summary) -> str:
    low = s.cosine_quantiles["0.01"]
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
    """At which norm the [CLS] vectors come close to each other for good."""
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
