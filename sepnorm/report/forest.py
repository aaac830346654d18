"""The forest plot: paired differences of each arm in the primary metric, by seed, with interval, margin and verdict."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

from sepnorm.experiment.comparison import Arm, Comparison, paired
from sepnorm.report.arms import Style, kind_of, styles
from sepnorm.report.comparison_words import verdict_of, why_unjudged
from sepnorm.report.page import typeset
from sepnorm.report.selection import references, shown_arms

_VERDICTS = {"better": "better", "worse": "worse", "equal": "practically equal", "undecided": "undecided"}
_TICKS = 6  # at most
_SEEDS, _MEAN = "24%", "68%"  # heights in a row: side by side, so that neither hides the other


@dataclass(frozen=True)
class _Scale:
    """Positions of values on the common axis, in per cent of its width."""

    low: float
    high: float

    def __call__(self, value: float) -> str:
        share = (value - self.low) / (self.high - self.low)
        return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def forest(comparison: Comparison) -> str:
    """The plot as HTML: a row per arm against the baseline, then against the second reference; empty without a verdict.

    Rows are SVG between text, so that the plot wraps on a phone, works with screen readers and needs no script.
    """
    metric = comparison.primary
    if metric is None or not comparison.decisions():
        return ""
    arms, margin = shown_arms(comparison), comparison.margin_to()
    looks = styles(arm.name for arm in arms)
    groups = [(to, [arm for arm in arms[1:] if arm is not to]) for to in references(comparison)]
    scale = _scale(comparison, groups, margin)
    ticks = round_ticks(scale.low, scale.high)
    ground = _ground(scale, ticks, margin)
    parts = []
    for to, rows in groups:
        lines = "".join(_row(comparison, arm, to, scale, ground, looks[arm.name]) for arm in rows)
        parts.append(f'<h3>Minus {html.escape(to.name)}</h3><ul class="rows">{lines}</ul>')
    side = "right" if metric.higher_is_better else "left"
    name = html.escape(metric.name)
    return (
        f'<figure class="forest"><p class="title">Paired differences in {name}: {side} of the line is better</p>'
        f"{_key(margin)}{''.join(parts)}{_axis(scale, ticks, f'difference in {name}')}"
        f"<figcaption>{_caption(comparison, arms)}</figcaption></figure>"
    )


def round_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two limits.

    >>> round_ticks(-0.013, 0.032)
    [-0.01, 0.0, 0.01, 0.02, 0.03]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= _TICKS)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.6g}") for number in range(first, last + 1)]


def _scale(comparison: Comparison, groups: list[tuple[Arm, list[Arm]]], margin: float) -> _Scale:
    """The range of everything drawn, with a margin at both ends."""
    values = [0.0, margin, -margin]
    for to, rows in groups:
        decisions = comparison.decisions(to)
        for arm in rows:
            values += [value for value in _gaps(comparison, arm, to).values() if math.isfinite(value)]
            if decision := decisions.get(arm.name):
                values += [value for value in (decision.low, decision.high) if math.isfinite(value)]
    room = 0.04 * (max(values) - min(values)) or 1.0
    return _Scale(min(values) - room, max(values) + room)


def _gaps(comparison: Comparison, arm: Arm, to: Arm) -> dict[int, float]:
    assert comparison.primary is not None
    key = comparison.primary.key
    return paired(arm.values(key), to.values(key))


def _ground(scale: _Scale, ticks: list[float], margin: float) -> str:
    """The background of a row: margin as a band, ticks, and the line at 0."""
    width = 100 * 2 * margin / (scale.high - scale.low)
    band = f'<rect class="band" x="{scale(-margin)}" width="{width:.2f}%" height="100%"/>'
    lines = "".join(
        f'<line class="{"tick" if tick else "zero"}" x1="{scale(tick)}" x2="{scale(tick)}" y2="100%"/>'
        for tick in ticks
    )
    return band + lines


def _row(comparison: Comparison, arm: Arm, to: Arm, scale: _Scale, ground: str, look: Style) -> str:
    """One row: name, dots for seeds, diamond for the mean, interval, and verdict."""
    decision = comparison.decisions(to).get(arm.name)
    marks = "".join(
        f'<circle cx="{scale(gap)}" cy="{_SEEDS}" r="4"><title>seed {seed}: {gap:+.4f}</title></circle>'
        for seed, gap in _gaps(comparison, arm, to).items()
        if math.isfinite(gap)
    )
    if decision is None:
        assert comparison.primary is not None
        said = html.escape(why_unjudged(arm, to, comparison.primary))
    else:
        if math.isfinite(decision.high - decision.low):
            marks += f'<line class="interval" x1="{scale(decision.low)}" x2="{scale(decision.high)}" y1="{_MEAN}" y2="{_MEAN}"/>'
            marks += "".join(
                f'<svg x="{scale(end)}" y="{_MEAN}" class="point"><path class="interval" d="M0 -5V5"/></svg>'
                for end in (decision.low, decision.high)
            )
        marks += f'<svg x="{scale(decision.mean)}" y="{_MEAN}" class="point">{_DIAMOND}</svg>'
        when = verdict_of(decision, arm, to).removeprefix(decision.verdict)
        said = f'<b class="{decision.verdict}">{_VERDICTS[decision.verdict]}</b>{when} {typeset(str(decision))}'
    kind = f" <small>{look.kind}</small>" if look.kind else ""
    return (
        f'<li class="row {look.kind}" style="--arm:{look.colour}"><span class="name">{html.escape(arm.name)}{kind}</span>'
        f'<svg class="strip" aria-hidden="true">{ground}{marks}</svg><span class="said">{said}</span></li>'
    )


_DIAMOND = '<path class="mean" d="M-7 0L0 -7L7 0L0 7Z"/>'


def _axis(scale: _Scale, ticks: list[float], title: str) -> str:
    numbers = "".join(
        f'<text x="{scale(tick)}" y="14" text-anchor="middle">{typeset(f"{tick:g}")}</text>' for tick in ticks
    )
    name = f'<text x="50%" y="34" text-anchor="middle">{title}</text>'
    return f'<div class="row" aria-hidden="true"><svg class="strip axis">{numbers}{name}</svg></div>'


def _key(margin: float) -> str:
    """The legend: dots, diamonds and band."""
    drawn = {
        "one seed": '<circle cx="50%" cy="50%" r="4"/>',
        "mean with its interval": '<line class="interval" x2="100%" y1="50%" y2="50%"/>'
        f'<svg x="50%" y="50%" class="point">{_DIAMOND}</svg>',
        f"practically equal, ±{margin:.2g}": '<rect class="band" width="100%" height="100%"/>',
    }
    items = "".join(f'<li><svg aria-hidden="true">{mark}</svg>{said}</li>' for said, mark in drawn.items())
    return f'<ul class="legend">{items}</ul>'


def _caption(comparison: Comparison, arms: list[Arm]) -> str:
    assert comparison.primary is not None
    said = (
        f"Each line is an arm's {comparison.primary.name} minus that of another arm, paired by seed, in the unit of "
        f"{comparison.primary.name}."
    )
    if any(kind_of(arm.name) for arm in arms):
        said += " Shared norms are hollow, separate ones filled."
    if len(arms) < len(comparison.arms):
        said += f" {len(arms)} of {len(comparison.arms)} arms are drawn: the baseline and the best. Tables have all."
    return html.escape(said)
