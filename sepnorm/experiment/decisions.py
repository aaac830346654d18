"""Verdicts on arms against a baseline, on one metric: better, worse, practically equal or undecided.

An arm is judged by its paired differences to the baseline, one a seed, which are taken as normal and independent from
seed to seed. Let α be 1 - confidence, m the number of arms, and μ an arm's true mean difference.

*Better, worse.* The two-sided t-test of μ = 0. The number of arms is allowed for by Holm's step-down method (Scandinavian
Journal of Statistics 6:65, 1979): whatever else is true, and however the arms depend on each other through the baseline,
the probability that any arm with μ = 0 is called better or worse is at most α.

*Equal.* Two one-sided tests of |μ| >= margin (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15:657, 1987),
each at α / 2, so that for one arm this means that the interval lies within ±margin. Holm's method allows for the number of
arms again. It goes before better and worse: a difference that is certain but within the margin is practically none.

*The interval.* Bonferroni's simultaneous interval, of confidence 1 - α/m, cut at what Holm's method adds: at 0 for an arm that
is better or worse, at ±margin for one that is equal. Holm's steps after the first decide a little more than Bonferroni's
intervals show, and the cut is what they decide. So the verdict can be read off the interval: ``equal`` if and only if it
lies within ±margin, else ``better`` or ``worse`` if and only if all of it is on one side of 0 (a limit of 0 itself is not part
of it), else ``undecided``. Uncut, all intervals cover at once with probability 1 - α; a cut is wrong only where a verdict is. More
is not to be had: intervals that agree with Holm's method and cover at once have limits at 0 and at infinity for most
arms (Brannath, Kluge & Scharpenberg, arXiv 2402.13719). With one arm all this is Student's interval.

*A number of seeds that is not fixed* (``most``). Student's quantiles are replaced by the limits of ``sequential``, and nothing
else changes. Each arm's limits at a level a are crossed at some look with probability a at most, if μ = 0, and limits of
different levels are nested. So the smallest level crossed so far is a p-value at every stopping time, and its minimum over
all looks is a p-value too. Holm's method rejects more if p-values are smaller; so what it rejects at any look is among what
it rejects given those minima, and the error rates above hold for the run as a whole, for any rule of stopping, common to the
arms or not (Tamhane et al., Statistics in Medicine 40:5333, 2021, review such methods).

*No spread.* Two runs may differ by the very same number in every seed, with a coarse metric or a metric at its limit. The
t-test would then be certain with two seeds. Instead n identical differences count as n equal signs: their interval is the
point itself if 2^(1 - n), the level of the sign test, is at most the arm's level (six seeds for one arm at 95 %), else
unbounded. That holds under optional stopping as well, since n equal signs contain all fewer. If the difference is
within the margin, the arm is equal without that condition: this is a description of what was seen, with no error rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from sepnorm.arguments import flag, number, whole
from sepnorm.errors import SepNormError
from sepnorm.experiment.forecast import seeds_to_decide
from sepnorm.experiment.sequential import FIRST, LEAST_LEVEL, critical_values

FARTHEST = 200  # seeds, to which a forecast reaches where there is no ``most``
_ROUNDING = 1e-9  # a spread this small beside the difference or the margin comes from rounding


def _unknown() -> None:
    return None


@dataclass(frozen=True)
class Decision:
    """The mean difference to the baseline over ``count`` seeds, its interval from ``low`` to ``high``, and the verdict.

    The verdict is ``better``, ``worse``, ``equal`` or ``undecided``. The interval is unbounded where the spread is unknown, as with
    one seed.
    """

    mean: float
    low: float
    high: float
    count: int
    verdict: str
    _forecast: Callable[[], int | None] = field(default=_unknown, repr=False, compare=False)

    @property
    def more_seeds(self) -> int | None:
        """How many more seeds would decide with a probability of about 80 %: 0 if it is decided, None if unknown or too many.

        Too many is more than 200 in all, or than ``most``. See ``seeds_to_decide`` for what is behind the number. Without
        ``most`` it is for planning: to add seeds to an undecided comparison is a second look, which only ``most`` allows for.
        """
        return self._forecast()

    def __str__(self) -> str:
        """``+0.012 ± 0.004``; the limits themselves where the interval is cut; the mean alone where it is unbounded."""
        if math.isinf(self.low):
            return f"{self.mean:+.3g}"
        half = (self.high - self.low) / 2
        if half == 0:
            return f"{self.mean:+.3g} ± 0"
        places = self._places(half)
        mean, low, high = (f"{round(value, places) + 0.0:+.{places}f}" for value in (self.mean, self.low, self.high))
        if math.isclose(self.mean - self.low, self.high - self.mean, rel_tol=1e-6):
            return f"{mean} ± {half:.{places}f}"
        if 0 in (self.low, self.high):  # cut there by Holm's correction: the difference itself is not 0
            return f"{mean} (above 0, to {high})" if self.low == 0 else f"{mean} (below 0, to {low})"
        return f"{mean} ({low} to {high})"

    def _places(self, half: float) -> int:
        """Decimals: one digit of the half-width, two if the first is a 1, more where rounding would hide or invent a 0 inside."""
        size = math.floor(math.log10(half))
        first = max(0, (1 if half < 2 * 10**size else 0) - size)
        for places in range(first, first + 8):
            if (round(abs(self.mean), places) > round(half, places)) == (abs(self.mean) > half):
                return places
        return first


@dataclass(frozen=True)
class _Arm:
    mean: float
    deviation: float
    count: int
    constant: bool  # all differences are the same number


def default_margin(baseline: Sequence[float]) -> float:
    """The margin within which arms are practically equal: 1 % of the absolute mean of the baseline's values.

    Verdicts take it as a given number, though it comes from the same runs.
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
) -> dict[str, Decision]:
    """A decision for each arm, from its paired differences to the baseline (arm minus baseline), one a seed.

    Without ``most`` the number of seeds is one that was fixed in advance. With it, this may be called after every seed, and the
    comparison may stop after any of them, up to ``most``: the same ``most``, ``margin``, ``confidence`` and arms at every call.
    A verdict may be kept with its interval once it is reached, whatever later calls return. The docstring of this module defines
    verdicts and intervals.

    >>> found = decide({"bn": [0.010, 0.014, 0.012, 0.013, 0.009]}, margin=0.005, higher_is_better=True)
    >>> found["bn"].verdict, str(found["bn"])
    ('better', '+0.012 ± 0.003')
    """
    margin, flipped = number(margin, "margin", least=0), not flag(higher_is_better, "higher_is_better")
    level = round(1 - number(confidence, "confidence"), 12)
    if not 0.001 <= level <= 0.5:
        raise SepNormError(f"confidence is a number from 0.5 to 0.999, found {confidence}.")
    if most is not None:
        most = whole(most, "most", least=FIRST)
        if level / max(1, len(differences)) < LEAST_LEVEL:
            raise SepNormError(
                f"confidence {confidence} is too high for {len(differences)} arms: lower it or leave arms out."
            )
    arms = {name: _summary(name, values, margin, most) for name, values in differences.items()}

    half = partial(_half, most=most)
    differing = _holm(arms, lambda name, share: abs(arms[name].mean) > half(arms[name], share), level)
    equal = _holm(arms, lambda name, share: abs(arms[name].mean) + half(arms[name], share) <= margin, level)
    least = 2 if most is None else FIRST
    equal |= {name for name, arm in arms.items() if arm.constant and arm.count >= least and abs(arm.mean) <= margin}

    found = {}
    for name, arm in arms.items():
        share = level / len(arms)
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
    """Half the width of an arm's interval of confidence 1 - level."""
    if arm.constant:
        return 0.0 if 2.0 ** (1 - arm.count) <= level else math.inf
    limit = (_student(arm.count, level) if most is None else critical_values(most, level))[arm.count]
    return math.inf if math.isinf(limit) else limit * arm.deviation / math.sqrt(arm.count)


@lru_cache(maxsize=256)
def _student(most: int, level: float) -> tuple[float, ...]:
    """Student's two-sided critical values by the number of seeds, from 0 to ``most``, for one look at a number fixed in advance."""
    from scipy.special import stdtrit

    return (math.inf, math.inf, *(-stdtrit(range(1, most), level / 2)).tolist())


def _holm(names: Iterable[str], rejects: Callable[[str, float], bool], level: float) -> set[str]:
    """Holm's step-down method: which hypotheses fall, if ``rejects`` tests each at a given level."""
    every = set(names)
    rest = every
    while rest:
        fallen = {name for name in rest if rejects(name, level / len(rest))}
        if not fallen:
            break
        rest = rest - fallen  # those left are tested at a higher level, at which the fallen would have fallen too
    return every - rest


def _more_seeds(arm: _Arm, level: float, margin: float, most: int | None) -> int | None:
    if arm.constant:  # if it stays so
        needed = FIRST if abs(arm.mean) <= margin else 1 + math.ceil(math.log2(1 / level))
        return needed - arm.count if needed <= (most or FARTHEST) else None
    limits = _student(FARTHEST, level) if most is None else critical_values(most, level)
    return seeds_to_decide(arm.mean, arm.deviation, arm.count, limits, margin, sequential=most is not None)
