"""The forest plot: every arm's paired difference in the primary metric, seed by seed, with interval, margin and verdict."""

from __future__ import annotations

from typing import Any

from sepnorm.experiment.comparison import Arm, Comparison, paired
from sepnorm.report.figures import COLOURS, figure
from sepnorm.report.selection import references, shown_arms

_ROW = 52  # pixels
_VERDICTS = {"better": "better", "worse": "worse", "equal": "practically equal", "undecided": "undecided"}


def forest(comparison: Comparison) -> list[Any]:
    """One figure with a line for each arm, against the baseline and, below, against the next reference; none without a verdict."""
    metric = comparison.primary
    if metric is None or not comparison.decisions():
        return []
    rows = [(arm, to) for to in references(comparison) for arm in shown_arms(comparison)[1:] if arm is not to]
    side = "right" if metric.higher_is_better else "left"
    title = f"Paired differences in {metric.name}: {side} of the line is better"
    found = figure(title, f"difference in {metric.name}", "", height=110 + _ROW * len(rows), showlegend=False)
    names = [f"{arm.name}<br>minus {to.name}" for arm, to in rows]
    margin = comparison.margin_to()
    found.add_vrect(x0=-margin, x1=margin, fillcolor="#888888", opacity=0.15, line_width=0)
    found.add_vline(x=0, line={"color": "#888888", "width": 1})
    places = {arm.name: number for number, arm in enumerate(comparison.arms)}
    for (arm, to), name in zip(rows, names, strict=True):
        _row(found, comparison, arm, to, name, COLOURS[places[arm.name] % len(COLOURS)])
    found.update_layout(hovermode="closest", margin={"l": 20, "r": 20, "t": 10, "b": 50})
    found.update_yaxes(
        categoryorder="array", categoryarray=names[::-1], automargin=True, range=[-0.6, len(rows) - 0.4], showgrid=False
    )
    found.update_xaxes(zeroline=False)
    return [found]


def _row(found: Any, comparison: Comparison, arm: Arm, to: Arm, name: str, colour: str) -> None:
    """Dots for seeds, a diamond with the interval, and the verdict at the right, where it fits on a phone too."""
    metric = comparison.primary
    assert metric is not None
    gaps = paired(arm.values(metric.key), to.values(metric.key))
    found.add_scatter(
        x=list(gaps.values()),
        y=[name] * len(gaps),
        text=[f"seed {seed}" for seed in gaps],
        mode="markers",
        marker={"size": 7, "color": colour, "opacity": 0.45},
        hovertemplate="%{text}: %{x:+.4f}<extra></extra>",
    )
    decision = comparison.decisions(to).get(arm.name)
    if decision is None:
        return
    words = f"<b>{_VERDICTS[decision.verdict]}</b> {decision}"
    found.add_annotation(
        text=words, x=1, xref="paper", xanchor="right", y=name, yanchor="bottom", yshift=6, showarrow=False
    )
    bounded = decision.high - decision.low < float("inf")
    found.add_scatter(
        x=[decision.mean],
        y=[name],
        error_x={
            "type": "data",
            "array": [decision.high - decision.mean if bounded else 0],
            "arrayminus": [decision.mean - decision.low if bounded else 0],
            "thickness": 2,
            "color": colour,
        },
        text=[words],
        mode="markers",
        marker={"size": 11, "symbol": "diamond", "color": colour},
        hovertemplate="%{text}<extra></extra>",
    )
