"""Critical values for a t-test that is repeated after every seed and may stop after any of them.

The test is group-sequential, with a look after each seed from the third up to ``most``, which is fixed in advance. It
is two-sided, for normal differences of unknown variance that are independent from seed to seed.

*Guarantee.* Let t(n) be Student's statistic of the first n differences minus their true mean. The critical values c(n)
satisfy ``P(|t(n)| > c(n) for some n <= most) = 0.9 · level``. So the intervals ``mean ± c(n) · deviation / √n`` cover
the true mean at all looks at once with a probability above 1 - level, for any stopping rule: the repeated confidence
intervals of Jennison & Turnbull (Controlled Clinical Trials 5:33, 1984). The remaining tenth is a reserve for
differences that are not quite normal. Nothing is guaranteed beyond ``most`` seeds.

*Shape.* Look n has the nominal level ``2 · (1 - Φ(C · (most / n)^0.35))``, turned into a quantile of Student's t: the
boundaries of Wang & Tsiatis (Biometrics 43:193, 1987) with exponent 0.15, between those of O'Brien & Fleming (0) and
Pocock (0.5), by the significance-level method for t. A smaller level widens the limits at every look, so levels are
nested. With twelve seeds and a true difference of one standard deviation these limits decide in 82 % of comparisons,
Pocock's shape in 70 %, one t-test of all twelve seeds in 88 %. A Gaussian mixture-t confidence sequence (Wang & Ramdas,
arXiv 2310.03722), which needs no ``most``, decides in 53 % at best. A larger ``most`` finds smaller differences and
decides large ones later: two standard deviations take 6.4 seeds on average if ``most`` is 12, 9.0 if it is 30, 14.4 if
it is 100.

*The constant C* is computed, not simulated, from the exact law of the path (Jennison & Turnbull, Biometrika 78:133,
1991, give another form of it). Let r(n) be the sum of n values over √n times their Euclidean norm, so that
t = r √((n - 1) / (1 - r²)). If the mean is 0, the direction of the values is uniform on the sphere. Hence r(3) is
uniform on [-1, 1], and r is a Markov chain: √(n + 1) r(n + 1) = √n r(n) cos θ + sin θ, where θ in [-π/2, π/2] is
independent of the past and has a density proportional to cos^(n - 1) θ. The probability of staying within the limits
follows by integration, from the last look to the first.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import ndarray

FIRST = 3  # two seeds decide nothing: a limit for t with one degree of freedom would be in the hundreds
LEAST_LEVEL = 1e-4  # below it the error of the integration may exceed a hundredth of the level
_SHAPE = 0.15
RESERVE = 0.1
_NEVER = 1e-8  # looks with a lower nominal level are skipped
_CELLS, _NODES = 128, 32  # the level is exact to a thousandth for levels from 0.005, to a hundredth from LEAST_LEVEL


@lru_cache(maxsize=256)
def critical_values(most: int, level: float) -> tuple[float, ...]:
    """Limits for |t| by the number of seeds, from 0 to ``most``; infinite where nothing can be decided.

    >>> [round(limit, 2) for limit in critical_values(6, 0.05)]
    [inf, inf, inf, 14.01, 5.6, 3.8, 3.07]
    """
    from scipy.optimize import brentq
    from scipy.special import ndtri

    level = (1 - RESERVE) * level
    lowest, highest = -ndtri(level / 2), -ndtri(level / 2 / max(1, most - FIRST + 1))
    constant = lowest  # for a single look
    if most > FIRST:
        constant = brentq(lambda c: math.log(_leaving(_limits(most, c)) / level), lowest, highest, xtol=2e-5)
    return tuple([math.inf] * FIRST + _limits(most, constant).tolist())


def _limits(most: int, constant: float) -> ndarray:
    import numpy as np
    from scipy.special import ndtr, stdtrit

    looks = np.arange(FIRST, most + 1)
    tail = ndtr(-constant * (most / looks) ** (0.5 - _SHAPE))
    return np.where(2 * tail < _NEVER, np.inf, -stdtrit(looks - 1, tail))


def _leaving(limits: ndarray) -> float:
    """P(|t(n)| exceeds its limit at some look); ``limits`` begin at FIRST seeds and have two or more entries."""
    import numpy as np
    from scipy.interpolate import PchipInterpolator

    looks = np.arange(FIRST, FIRST + len(limits))
    edges = 1 / np.sqrt(1 + (looks - 1) / limits**2)  # in units of |r|
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    stays: Any = np.ones_like  # P(no later look leaves the limits | r at this look), as a function of |r|
    for n in range(int(looks[-1]) - 1, FIRST - 1, -1):
        edge = math.sqrt(n + 1) * edges[n + 1 - FIRST]
        grid = _grid(edges[n - FIRST], math.sqrt(max(edge**2 - 1, 0) / n))
        # √n r cos θ + sin θ = size · sin(θ + turn), which is within ±edge for θ in at most two ranges
        size, turn = np.sqrt(1 + n * grid**2), np.arctan(math.sqrt(n) * grid)
        inner = np.arcsin(np.minimum(1, edge / size))
        reach = min(math.pi / 2, 8 / math.sqrt(n))  # about eight standard deviations of θ
        total = np.zeros_like(grid)
        for low, high in ((-inner - turn, inner - turn), (math.pi - inner - turn, np.full_like(grid, reach))):
            low = np.clip(low, -reach, reach)
            half = np.maximum(np.minimum(high, reach) - low, 0) / 2
            angle = low[:, None] + half[:, None] * (1 + points)
            after = np.abs(size[:, None] * np.sin(angle + turn[:, None])) / math.sqrt(n + 1)
            total += half * ((np.cos(angle) ** (n - 1) * stays(after)) @ weights)
        scale = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(math.pi)
        stays = PchipInterpolator(grid, scale * total)
    return 1 - float(stays.integrate(0, edges[0]))  # |r(3)| is uniform


def _grid(edge: float, kink: float) -> ndarray:
    """Points from 0 to ``edge``, dense at ``kink``.

    Below the kink the next look cannot leave the limits; above it the probability grows like a root.
    """
    import numpy as np

    if not 1e-6 < kink < edge - 1e-6:
        return np.linspace(0, edge, _CELLS + 1)
    steps = np.linspace(0, 1, _CELLS // 2 + 1)
    return np.concatenate([kink * (1 - (1 - steps[:-1]) ** 2), kink + (edge - kink) * steps**2])
