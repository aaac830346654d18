"""Plotly figures, each with a title and a caption that says what is plotted and how to read it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sepnorm.report.arms import COLOURS, NEUTRAL, Style, styles

if TYPE_CHECKING:
    from sepnorm.report.diagnosis import Points
    from sepnorm.surgery.inspection import SiteStatistics

_SYMBOLS = ("circle", "square", "triangle-up")  # distinguish labels with the same colour
_GROUPS = 20  # labels with their own style
_BINS = 80
_PAIRS = 20_000  # random pairs of a histogram of cosines
_MOST_AT_ONCE = 2**24  # values of pairs that are compared at once
_ROUNDING = 1e-6  # relative to the largest singular value: a zero in float32
_CLIFF = 0.1  # a last singular value below this times the previous one is the zero of a trained LayerNorm


def figure(title: str, x: str, y: str, caption: str = "") -> Any:
    """An empty figure with named axes. The page shows the title above it and the caption below, where both can wrap.

    The caption says what is plotted, in which unit; by default the axes say it. The part of the title after a colon
    says how to read the figure, and is appended to the caption.
    """
    import plotly.graph_objects as go

    topic, _, reading = title.partition(": ")
    plotted = caption or f"Vertical axis: {y}. Horizontal axis: {x}."
    found = go.Figure()
    found.update_layout(
        template="none",
        meta={"title": topic, "caption": f"{plotted} {reading[:1].upper()}{reading[1:]}{'.' * bool(reading)}".strip()},
        margin={"l": 55, "r": 15, "t": 10, "b": 45},
        xaxis={"title": {"text": x, "standoff": 8}},
        yaxis={"title": {"text": y, "standoff": 8}},
        showlegend=False,  # the page has its own legend, which wraps and works by keyboard
    )
    return found


def wrapped(text: str, width: int = 46) -> str:
    """Text for plotly, wrapped at ``width`` characters where words allow it; markup is escaped."""
    import textwrap

    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "<br>".join(textwrap.wrap(safe, width) or [""])


def spectrum(values: Mapping[str, Sequence[float]], of: str = "") -> Any:
    """Singular values by name, relative to the largest, on a logarithmic scale. ``of`` says of what, for the caption.

    Values that are zero up to rounding are not drawn. Neither is a last value far below the previous one: outputs of a
    LayerNorm sum to 0, so one singular value vanishes, and the drop would look like a finding. The axis covers all
    dimensions, so that a line that ends early is visible.
    """
    title = f"Singular values{of and f' of {of}'}: a line that falls or ends early means that few dimensions are used"
    caption = "Singular values by rank, as shares of the largest (no unit), on a logarithmic axis."
    found = figure(title, "rank of the singular value", "share of the largest", caption)
    found.update_yaxes(type="log", tickformat="~g", dtick=1, range=[-5, 0.1])
    found.update_xaxes(range=[0, max(map(len, values.values()), default=1) + 1])
    for name, look in styles(values).items():
        top = max(values[name]) or 1.0
        shown = [value / top for value in values[name] if value > top * _ROUNDING] or [1.0]
        if len(shown) == len(values[name]) > 2 and shown[-1] < _CLIFF * shown[-2]:
            shown.pop()
        _add_line(found, list(range(1, len(shown) + 1)), shown, name, look)
    return found


def dimension_scales(values: Mapping[str, Sequence[float]]) -> Any:
    """Standard deviations of dimensions, largest first, relative to the median, from variances (dim,) by name."""
    title = (
        "Scale of the dimensions, largest first: a spike at the left is a loud dimension, a drop to the right dead ones"
    )
    caption = "Standard deviation of each dimension, in units of the median one, on a logarithmic axis."
    found = figure(title, "dimension, largest first", "deviation / median", caption)
    for name, look in styles(values).items():
        scales = sorted((max(value, 0.0) ** 0.5 for value in values[name]), reverse=True)
        usual = scales[len(scales) // 2] or max(scales) or 1.0
        _add_line(found, list(range(1, len(scales) + 1)), [max(scale / usual, 1e-6) for scale in scales], name, look)
    log_axis(found)
    return found


def log_axis(found: Any) -> None:
    """Makes the vertical axis logarithmic. Ticks are all digits, 1, 2 and 5, or powers of ten, as space allows."""
    values = [value for trace in found.data for value in trace.y if 0 < value < math.inf]
    decades = math.log10(max(values) / min(values)) if values else 0.0
    ticks = None if decades < 0.5 else "D2" if decades < 3 else math.ceil(decades / 6)
    found.update_yaxes(type="log", tickformat="~g", nticks=6, dtick=ticks)
    if values and decades < 0.01:  # what differs by rounding alone is a level line
        middle = math.log10(max(values))
        found.update_yaxes(range=[middle - 0.1, middle + 0.1])


def _add_line(found: Any, x: list[Any], y: list[float], name: str, look: Style) -> None:
    found.add_scatter(x=x, y=y, name=name, mode="lines", line=look.line, meta=look.kind)


def histogram(
    title: str, x: str, values: Mapping[str, Tensor], limits: tuple[float, float] | None = None, caption: str = ""
) -> Any:
    """Histograms by name, in common bins. They are filled if there are at most two."""
    found = figure(title, x, "density", caption or f"Distribution of the {x}: the area below each line is 1.")
    values = {name: value[value.isfinite()] for name, value in values.items() if value.isfinite().any()}
    low, high = limits or span(values.values()) if values else (0.0, 1.0)
    low, high = (low - 0.5, high + 0.5) if high - low < 1e-6 else (low, high)
    edges, slack = torch.linspace(low, high, _BINS + 1), 1e-3 * (high - low)  # rounding can put a cosine above 1
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    for name, look in styles(values).items():
        inside = values[name].float().clamp(low, high)[(values[name] > low - slack) & (values[name] < high + slack)]
        density = (torch.histc(inside, _BINS, low, high) / len(values[name]) / (edges[1] - edges[0])).tolist()
        line = {**look.line, "shape": "hvh"}
        filled = "tozeroy" if len(values) <= 2 else "none"
        found.add_scatter(x=middles, y=density, name=name, mode="lines", line=line, fill=filled, meta=look.kind)
    return found


def span(values: Iterable[Tensor]) -> tuple[float, float]:
    """Limits that exclude 0.1 % of the values on either side."""
    pooled = torch.cat([_some(v.flatten().float(), 200_000) for v in values])
    return float(pooled.quantile(0.001)), float(pooled.quantile(0.999))


def features(values: Mapping[str, Tensor]) -> Any:
    """Histogram of all components of [CLS] vectors and of token vectors, as in Figure 2 of the paper."""
    with_tokens = any("tokens" in name for name in values)
    reading = ": a [CLS] narrower than the tokens is squeezed by the shared norm" if with_tokens else ""
    return components(values, f"Components{reading}")


def components(
    values: Mapping[str, Tensor], title: str, limits: tuple[float, float] | None = None, colour: str = COLOURS[0]
) -> Any:
    """Histogram of all components of vectors, by name: [CLS] in ``colour``, tokens as a dotted outline."""
    caption = (
        "Distribution of all components of the vectors, in their own unit: the area below each line is 1. A thousandth at either "
        "end is left out."
    )
    rows = {name: _some(vectors.flatten(), 200_000) for name, vectors in values.items()}
    found = histogram(title, "value of a component", rows, limits, caption)
    for trace in found.data:
        if trace.name.endswith("tokens"):
            trace.update(line={"color": NEUTRAL, "dash": "dot"}, fill="none")
        elif len(values) <= 2:
            trace.line.color = colour
    return found


def cosines(values: Mapping[str, Tensor]) -> Any:
    """Histogram of cosines of random pairs of rows (count, dim)."""
    found = {name: random_cosines(rows) for name, rows in values.items()}
    title = "Cosines of random pairs: healthy embeddings lie around 0, a narrow cone near 1"
    caption = (
        f"Distribution of the cosine (no unit) of {_PAIRS:,} random pairs of vectors: the area below each line is 1."
    )
    low = min(float(value.min()) for value in found.values())
    return histogram(title, "cosine", found, (max(-1.0, min(low, 0.0) - 0.05), 1.0), caption)


def random_cosines(rows: Tensor) -> Tensor:
    """Cosines (pairs,) of random pairs of different rows (count, dim)."""
    unit = torch.nn.functional.normalize(rows.float(), dim=1)
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(len(unit), (_PAIRS,), generator=generator)
    second = (first + torch.randint(1, max(len(unit), 2), (_PAIRS,), generator=generator)) % len(unit)
    size = max(1, _MOST_AT_ONCE // unit.shape[1])
    parts = zip(first.split(size), second.split(size), strict=True)
    return torch.cat([(unit[one] * unit[other]).sum(1) for one, other in parts])


def layer_curves(layers: Mapping[str, Sequence[SiteStatistics]]) -> list[Any]:
    """Statistics of the outputs of each norm: [CLS] as solid lines, tokens dotted. The legend names each model once."""
    measures = (
        ("cosine", "Mean cosine by norm: near 1, the vectors of different samples are alike", "mean cosine", "linear"),
        (
            "effective_rank",
            "Effective rank by norm: the higher, the more dimensions are filled",
            "effective rank",
            "log",
        ),
        ("norm", "Length by norm", "mean length", "log"),
        ("variance", "Variance between samples by norm: at 0, nothing is told apart", "variance", "log"),
    )
    looks, alone = styles(layers), len(layers) == 1
    found = []
    for key, title, axis, scale in measures:
        drawn = f"{axis[0].upper()}{axis[1:]} of what leaves each norm{', on a logarithmic axis' * (scale == 'log')}"
        curve = figure(title, "norm, in the order of calls", axis, f"{drawn}: [CLS] solid, tokens dotted.")
        for name, sites in layers.items():
            paths = [f"{i}: {site.path}" + (" (degenerate)" if site.degenerate else "") for i, site in enumerate(sites)]
            for part, label, dash in (("cls", "[CLS]", "solid"), ("tokens", "tokens", "dot")):
                values = [getattr(getattr(site.after, part), key) for site in sites]
                colour = NEUTRAL if alone and part == "tokens" else looks[name].colour
                curve.add_scatter(
                    x=list(range(len(values))),
                    y=[max(value, 1e-9) for value in values] if scale == "log" else values,
                    text=paths,
                    name=label if alone else name,
                    legendgroup=label if alone else name,
                    showlegend=alone or part == "cls",
                    mode="lines+markers",
                    line={"dash": dash, "color": colour},
                    marker=looks[name].marker | {"color": colour},
                    meta="" if alone else looks[name].kind,
                    hovertemplate="%{text}<br>%{y:.4g}<extra>" + (label if alone else f"{label}, {name}") + "</extra>",
                )
        if scale == "log":
            log_axis(curve)
        found.append(curve)
    return found


def embedding_map(points: Points, name: str, pictures: Mapping[str, int] | None = None) -> Any:
    """A t-SNE map of the points, coloured by label if there are labels, with names on hover.

    ``pictures`` maps names of points to numbers of pictures on the page.
    """
    title = f"Map of {name}: like embeddings lie together, while distances between far groups mean little"
    marks = ", coloured by label" if points.labels else ""
    caption = f"Each point is the embedding of a sample, placed by t-SNE{marks}. The axes have no unit."
    found = figure(title, "", "", caption)
    found.update_xaxes(showticklabels=False, zeroline=False, showgrid=False, showline=True, mirror=True)
    found.update_yaxes(showticklabels=False, zeroline=False, showgrid=False, showline=True, mirror=True)
    found.update_layout(hovermode="closest", margin={"l": 5, "r": 5, "t": 5, "b": 5})
    places = place_on_plane(points.rows)
    groups = points.labels or [""] * len(places)
    common = sorted(set(groups), key=lambda group: (-groups.count(group), group))[:_GROUPS]
    for group in [*sorted(common), *([None] if len(set(groups)) > len(common) else [])]:
        chosen = [i for i, g in enumerate(groups) if (g == group if group is not None else g not in common)]
        place = common.index(group) if group is not None else 0
        colour = COLOURS[place % len(COLOURS)] if group is not None else NEUTRAL
        found.add_scatter(
            x=places[chosen, 0].tolist(),
            y=places[chosen, 1].tolist(),
            text=[wrapped(points.names[i], 60) for i in chosen],
            customdata=[pictures.get(points.names[i]) for i in chosen] if pictures else None,
            name=wrapped(group if group is not None else "others"),
            mode="markers",
            marker={"size": 5, "color": colour, "opacity": 0.8, "symbol": _SYMBOLS[place // len(COLOURS)]},
            hovertemplate="%{text}<extra>" + wrapped(group or "") + "</extra>"
            if points.labels
            else "%{text}<extra></extra>",
            showlegend=bool(points.labels),
        )
    return found


def place_on_plane(rows: Tensor) -> Tensor:
    """Coordinates (count, 2) by t-SNE from a PCA start; by PCA alone if there are too few distinct points."""
    import warnings

    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    x = rows.double()
    scale = float((x - x.mean(0)).abs().max())
    if scale == 0 or len(x) < 2:
        return torch.zeros(len(x), 2)
    kept = min(50, *x.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # degenerate variances of collapsed inputs
        reduced = PCA(kept, svd_solver="full").fit_transform(((x - x.mean(0)) / scale).numpy())
        if len(x) < 10 or kept < 3:
            flat = torch.zeros(len(x), 2, dtype=torch.float64)
            flat[:, : min(kept, 2)] = torch.from_numpy(reduced[:, :2])
            return flat
        tsne = TSNE(2, perplexity=min(30, (len(x) - 1) / 3), init="pca", max_iter=500, random_state=0)
        with threadpool_limits(1):  # threads synchronise so often that t-SNE is ten times slower on a busy machine
            return torch.from_numpy(tsne.fit_transform(reduced))


def _some(values: Tensor, most: int) -> Tensor:
    """At most ``most`` of the values, evenly spaced."""
    return values if len(values) <= most else values[:: len(values) // most + 1]
