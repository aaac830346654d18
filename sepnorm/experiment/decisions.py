"""Verdicts on arms against a baseline, by one metric: better, worse, equal or undecided.

An arm is judged by its paired differences to the baseline, one for each seed. They are taken as normal and independent
from seed to seed. Let α be 1 - confidence, m the number of arms, and μ an arm's true mean difference.

*Better, worse.* The two-sided t-test of μ = 0, corrected for the number of arms by Holm's step-down method
(Scandinavian Journal of Statistics 6:65, 1979). The probability that any arm with μ = 0 is called better or worse is at
most α, for any values of the other arms and any dependence between arms through the baseline.

*Equal.* Two one-sided tests of |μ| >= margin (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15:657,
1987), each at α / 2. For one arm this means that the interval lies within ±margin. Holm's method corrects for the
number of arms again. Equal takes precedence over better and worse: a certain difference within the margin is
practically none.

*The interval.* Bonferroni's simultaneous interval of confidence 1 - α/m, cut where Holm's method decides more: at 0 for
an arm that is better or worse, at ±margin for one that is equal. So the verdict can be read off the interval: ``equal``
if and only if it lies within ±margin; else ``better`` or ``worse`` if and only if all of it is on one side of 0 (a
limit of 0 itself is excluded); else ``undecided``. Uncut, all intervals cover at once with probability 1 - α. A cut is
wrong only if a verdict is. Better intervals do not exist: those that agree with Holm's method and cover at once have
limits at 0 and infinity for most arms (Brannath, Kluge & Scharpenberg, arXiv 2402.13719). With one arm this is
Student's interval.

*An open number of seeds* (``most``). The limits of ``sequential`` replace Student's quantiles; nothing else changes. If
μ = 0, an arm's limits at level a are crossed at some look with probability at most a, and limits of different levels
are nested. So the smallest level crossed so far is a p-value at every stopping time, and its minimum over all looks is
a p-value too. Holm's method rejects more if p-values are smaller, so what it rejects at any look is among what it
rejects given those minima. The error rates above thus hold for the whole run and any stopping rule, common to the arms
or not (Tamhane et al., Statistics in Medicine 40:5333, 2021, review such methods).

*No spread.* With a coarse metric, or one at its limit, two runs may differ by the same number in every seed. The t-test
would then be certain with two seeds. Instead, n identical differences count as n equal signs. Their interval is the
point itself if 2^(1 - n), the level of the sign test, is at most the arm's level (six seeds for one arm at 95 %), else
unbounded. This holds under optional stopping as well, since n equal signs contain all fewer. With ``most`` the limits of
``sequential`` have spent nine tenths of the level, and the sign test has the remaining tenth (nine seeds). ``Equal``
needs as many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from sepnorm.arguments import flag, number, whole
from sepnorm.errors import SepNormError
from sepnorm.experiment.forecast import seeds_to_decide
from sepnorm.experiment.intervals import decimals
from sepnorm.experiment.sequential import FIRST, LEAST_LEVEL, RESERVE, critical_values

FARTHEST = 200  # largest number of seeds of a forecast without ``most``
_ROUNDING = 1e-9  # a spread this small relative to the difference or the margin comes from rounding


def _unknown() -> None:
    return None


@dataclass(frozen=True)
class Decision:
    """The verdict on one arm: its mean difference to the baseline with an interval.

    Args:
        mean: mean difference over the seeds, arm minus baseline.
        low: lower limit of the interval; minus infinity if the spread is unknown, as with one seed.
        high: upper limit; infinity if the spread is unknown.
        count: number of seeds.
        verdict: ``better``, ``worse``, ``equal`` or ``undecided``.
    """

    mean: float
    low: float
    high: float
    count: int
    verdict: str
    _forecast: Callable[[], int | None] = field(default=_unknown, repr=False, compare=False)

    @property
    def more_seeds(self) -> int | None:
        """Number of further seeds that decide with a probability of about 80 %.

        It is 0 for a decided arm, and None if it is unknown or above ``most`` (200 without ``most``) in all;
        ``seeds_to_decide`` explains the forecast. Without ``most``, or when all its seeds are used, plan a new
        comparison of ``count + more_seeds`` seeds: adding them to an undecided one is a second look, which only
        ``most`` corrects for.
        """
        return self._forecast()

    def __str__(self) -> str:
        """``+0.012 ± 0.004``; both limits if the interval is cut; the mean alone if it is unbounded."""
        if math.isinf(self.low):
            return f"{self.mean:+.3g}"
        half = (self.high - self.low) / 2
        if half == 0:
            return f"{self.mean:+.3g} ± 0"
        places = self._places(half)
        mean, low, high = (f"{round(value, places) + 0.0:+.{places}f}" for value in (self.mean, self.low, self.high))
        if math.isclose(self.mean - self.low, self.high - self.mean, rel_tol=1e-6):
            return f"{mean} ± {half:.{places}f}"
        if 0 in (self.low, self.high):  # cut by Holm's correction: the difference itself is not 0
            return f"{mean} (above 0, to {high})" if self.low == 0 else f"{mean} (below 0, to {low})"
        return f"{mean} ({low} to {high})"

    def _places(self, half: float) -> int:
        """Decimals to print: one digit of the half-width, two if it begins with 1.

        More if rounding would move 0 into the interval, or out of it.
        """
        first = decimals(half)
        for places in range(first, first + 8):
            if (round(abs(self.mean), places) > round(half, places)) == (abs(self.mean) > half):
                return places
        return first


@dataclass(frozen=True)
class _Arm:
    mean: float
    deviation: float
    count: int
    constant: bool  # all differences are equal


def default_margin(baseline: Sequence[float]) -> float:
    """The default margin of equality: 1 % of the absolute mean of the baseline's values.

    Verdicts treat it as a fixed number, though it comes from the same runs.
    """
    values = [number(value, "a value of the baseline") for value in baseline]
    if not values:
        raise SepNormError("the baseline has no values, so the margin is unknown: give values of at least one seed.")
    return 0.01 * abs(math.fsum(values) / len(values))


def decide(
    differences: Mapping[str, Sequence[float]],
    *,
    margin: float,
    higher_is_better: bool,
    confidence: float = 0.95,
    most: int | None = None,
    others: int = 0,
) -> dict[str, Decision]:
    """Decides for each arm whether it is better, worse or equal, from its paired differences to the baseline.

    The docstring of this module defines verdicts and intervals.

    Without ``most``, the number of seeds must be fixed in advance. With ``most``, you may call this after every seed
    and stop after any of them, up to ``most``; pass the same ``most``, ``margin``, ``confidence`` and arms at every
    call. A verdict once reached may be kept with its interval, even if later calls return another.

    >>> found = decide({"bn": [0.010, 0.014, 0.012, 0.013, 0.009]}, margin=0.005, higher_is_better=True)
    >>> found["bn"].verdict, str(found["bn"])
    ('better', '+0.012 ± 0.003')

    Args:
        differences: by name of the arm, its differences (arm minus baseline), one for each seed.
        margin: largest difference that counts as equal.
        higher_is_better: whether a higher value of the metric is better.
        confidence: of all verdicts together, from 0.5 to 0.999.
        most: largest number of seeds, if the number is not fixed in advance.
        others: number of planned arms without differences, for which verdicts are corrected too.

    Returns:
        A decision for each arm, by its name.

    Raises:
        SepNormError: if an arm has no differences, too many, or one that is not finite, or an argument is out of range.
    """
    margin, flipped = number(margin, "margin", least=0), not flag(higher_is_better, "higher_is_better")
    family = len(differences) + whole(others, "others", least=0)
    level = round(1 - number(confidence, "confidence"), 12)
    if not 0.001 <= level <= 0.5:
        raise SepNormError(f"confidence is a number from 0.5 to 0.999, found {confidence}.")
    if most is not None:
        most = whole(most, "most", least=FIRST)
        if level / max(1, family) < LEAST_LEVEL:
            raise SepNormError(f"confidence {confidence} is too high for {family} arms: lower it or leave arms out.")
    arms = {name: _summary(name, values, margin, most) for name, values in differences.items()}

    half = partial(_half, most=most)
    differing = _holm(arms, lambda name, share: abs(arms[name].mean) > half(arms[name], share), level, others)
    equal = _holm(arms, lambda name, share: abs(arms[name].mean) + half(arms[name], share) <= margin, level, others)

    found = {}
    for name, arm in arms.items():
        share = level / family
        low, high = arm.mean - half(arm, share), arm.mean + half(arm, share)
        verdict = "undecided"
        if name in differing:
            low, high = (max(low, 0.0), high) if arm.mean > 0 else (low, min(high, 0.0))
            verdict = "worse" if (arm.mean > 0) == flipped else "better"
        if name in equal:
            low, high, verdict = max(low, -margin), min(high, margin), "equal"
        forecast = partial(_more_seeds, arm, share, margin, most) if verdict == "undecided" else partial(int, 0)
        found[name] = Decision(arm.mean, low, high, arm.count, verdict, forecast)
    return found


def _summary(name: str, values: Sequence[float], margin: float, most: int | None) -> _Arm:
    count = len(values)
    if not count:
        raise SepNormError(f"the arm {name!r} has no seed in common with the baseline: run both with the same seeds.")
    if most is not None and count > most:
        raise SepNormError(
            f"the arm {name!r} has {count} seeds, but most is {most}: give its first {most}, or set most before the first run."
        )
    if bad := [value for value in values if not math.isfinite(value)]:
        raise SepNormError(
            f"a difference of the arm {name!r} is {bad[0]}: leave out seeds whose runs gave no finite value."
        )
    mean = math.fsum(values) / count
    deviation = math.hypot(*(value - mean for value in values)) / math.sqrt(max(1, count - 1))
    return _Arm(mean, deviation, count, count > 1 and deviation <= _ROUNDING * max(abs(mean), margin))


def _half(arm: _Arm, level: float, most: int | None) -> float:
    """Half-width of an arm's interval of confidence 1 - level."""
    if arm.constant:
        return 0.0 if 2.0 ** (1 - arm.count) <= _sign_level(level, most) else math.inf
    limit = (_student(arm.count, level) if most is None else critical_values(most, level))[arm.count]
    return math.inf if math.isinf(limit) else limit * arm.deviation / math.sqrt(arm.count)


def _sign_level(level: float, most: int | None) -> float:
    """The level of the sign test of identical differences."""
    return level if most is None else RESERVE * level


@lru_cache(maxsize=256)
def _student(most: int, level: float) -> tuple[float, ...]:
    """Student's two-sided critical values by number of seeds, from 0 to ``most``, for a number fixed in advance."""
    from scipy.special import stdtrit

    return (math.inf, math.inf, *(-stdtrit(range(1, most), level / 2)).tolist())


def _holm(names: Iterable[str], rejects: Callable[[str, float], bool], level: float, others: int) -> set[str]:
    """Holm's step-down method: the hypotheses that are rejected, if ``rejects`` tests each at a given level.

    ``others`` further ones have no data and are never rejected.
    """
    every = set(names)
    rest = every
    while rest:
        fallen = {name for name in rest if rejects(name, level / (len(rest) + others))}
        if not fallen:
            break
        # the rest is tested at a higher level, at which those already rejected would be rejected too
        rest = rest - fallen
    return every - rest


def _more_seeds(arm: _Arm, level: float, margin: float, most: int | None) -> int | None:
    if arm.count == most:  # no look is left: as for a new comparison with a fixed number of seeds
        most = None
    if arm.constant:  # assuming it stays constant
        needed = 1 + math.ceil(math.log2(1 / _sign_level(level, most)))
        return max(1, needed - arm.count) if needed <= (most or FARTHEST) else None
    limits = _student(FARTHEST, level) if most is None else critical_values(most, level)
    return seeds_to_decide(arm.mean, arm.deviation, arm.count, limits, margin, sequential=most is not None)
