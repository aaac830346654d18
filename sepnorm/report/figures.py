"""Figures of plotly, each with a title that says what to see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sepnorm.report.diagnosis import Points
    from sepnorm.surgery.inspection import SiteStatistics

#: Told apart by people who see few colours, on light and on dark ground (after Okabe and Ito).
COLOURS = ("#2A86D1", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00", "#999999")
_GROUPS = 20  # labels that get a colour of their own
_BINS = 80
_ROUNDING = 1e-6  # of the largest singular value: what float32 leaves of a 0


def figure(title: str, x: str, y: str, **layout: Any) -> Any:
    """An empty figure with its axes named; the page shows the title above it, where it can be wrapped."""
    import plotly.graph_objects as go

    found = go.Figure()
    found.update_layout(
        template="none",
        meta=title,
        margin={"l": 55, "r": 15, "t": 30, "b": 50},
        xaxis={"title": {"text": x}},
        yaxis={"title": {"text": y}},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        **layout,
    )
    return found


def wrapped(text: str, width: int = 46) -> str:
    """Lines of at most ``width`` characters, where words allow it, for plotly; what looks like markup is shown as it is."""
    import textwrap

    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "<br>".join(textwrap.wrap(safe, width) or [""])


def spectrum(values: Mapping[str, Sequence[float]], of: str = "") -> Any:
    """Singular values by name, relative to the largest, on a logarithmic scale; ``of`` what, if not by the names.

    Those that are 0 but for rounding are not drawn: a LayerNorm leaves one such, since its outputs sum to 0, and a line that fell
    there would look like a finding. The axis has room for all, so that a line that ends early is seen to.
    """
    title = f"Singular values{of and f' of {of}'}: a line that falls or ends early means that few dimensions are used"
    found = figure(title, "index", "relative to the largest")
    found.update_yaxes(type="log", exponentformat="power", dtick=1, range=[-5, 0.1])
    found.update_xaxes(range=[0, max(map(len, values.values()), default=1) + 1])
    for (name, line), colour in zip(values.items(), COLOURS * 9, strict=False):
        top = max(line) or 1.0
        shown = [value / top for value in line if value > top * _ROUNDING] or [1.0]
        found.add_scatter(x=list(range(1, len(shown) + 1)), y=shown, name=name, mode="lines", line={"color": colour})
    return found


def dimension_scales(values: Mapping[str, Sequence[float]]) -> Any:
    """Standard deviations of the dimensions by name, largest first and relative to the median, from variances (dim,)."""
    title = (
        "Scale of the dimensions, largest first: a spike at the left is a loud dimension, a drop to the right dead ones"
    )
    found = figure(title, "dimension, by scale", "deviation, relative to the median")
    found.update_yaxes(type="log", exponentformat="power")
    for (name, variances), colour in zip(values.items(), COLOURS * 9, strict=False):
        scales = sorted((max(value, 0.0) ** 0.5 for value in variances), reverse=True)
        usual = scales[len(scales) // 2] or max(scales) or 1.0
        shown = [max(scale / usual, 1e-6) for scale in scales]
        found.add_scatter(x=list(range(1, len(shown) + 1)), y=shown, name=name, mode="lines", line={"color": colour})
    return found


def histogram(title: str, x: str, values: Mapping[str, Tensor], limits: tuple[float, float] | None = None) -> Any:
    """Shares of values by name, in common bins."""
    found = figure(title, x, "density")
    values = {name: value[value.isfinite()] for name, value in values.items() if value.isfinite().any()}
    low, high = limits or span(values.values()) if values else (0.0, 1.0)
    low, high = (low - 0.5, high + 0.5) if high - low < 1e-6 else (low, high)
    edges = torch.linspace(low, high, _BINS + 1)
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    for (name, value), colour in zip(values.items(), COLOURS * 9, strict=False):
        counts = torch.histc(value.float().clamp(low, high), _BINS, low, high)
        density = (counts / counts.sum() / (edges[1] - edges[0])).tolist()
        line = {"shape": "hvh", "color": colour}
        found.add_scatter(x=middles, y=density, name=name, mode="lines", line=line, fill="tozeroy", opacity=0.8)
    return found


def span(values: Iterable[Tensor]) -> tuple[float, float]:
    """Limits that leave out a thousandth of the values at either side."""
    pooled = torch.cat([_some(v.flatten().float(), 200_000) for v in values])
    return float(pooled.quantile(0.001)), float(pooled.quantile(0.999))


def features(values: Mapping[str, Tensor]) -> Any:
    """All components of [CLS] vectors against those of token vectors, as in Figure 2 of the paper."""
    with_tokens = any("tokens" in name for name in values)
    title = (
        "a [CLS] narrower than the tokens is squeezed by the shared norm" if with_tokens else "all components together"
    )
    return components(values, f"Features: {title}")


def components(values: Mapping[str, Tensor], title: str, limits: tuple[float, float] | None = None) -> Any:
    """All components of vectors, by name."""
    return histogram(title, "value", {name: _some(rows.flatten(), 200_000) for name, rows in values.items()}, limits)


def cosines(values: Mapping[str, Tensor]) -> Any:
    """Cosines of random pairs of rows (count, dim)."""
    found = {}
    for name, rows in values.items():
        unit = torch.nn.functional.normalize(rows.float(), dim=1)
        generator = torch.Generator().manual_seed(0)
        first = torch.randint(len(unit), (20_000,), generator=generator)
        second = (first + torch.randint(1, max(len(unit), 2), (20_000,), generator=generator)) % len(unit)
        found[name] = (unit[first] * unit[second]).sum(1)
    title = "Cosines of random pairs: healthy embeddings lie around 0, a narrow cone near 1"
    low = min(float(value.min()) for value in found.values())
    return histogram(title, "cosine", found, (max(-1.0, min(low, 0.0) - 0.05), 1.0))


def layer_curves(layers: Mapping[str, Sequence[SiteStatistics]]) -> list[Any]:
    """What leaves each norm, [CLS] beside tokens, norm by norm; of several models the legend names each once."""
    measures = (
        ("cosine", "Mean cosine by norm: near 1, the vectors of different samples are alike", "mean cosine", "linear"),
        ("effective_rank", "Effective rank by norm: how many dimensions are filled", "effective rank", "log"),
        ("norm", "Length by norm: [CLS] beside the tokens", "mean length", "log"),
        ("variance", "Variance between samples by norm: at 0, nothing is told apart", "variance", "log"),
    )
    found = []
    for key, title, axis, scale in measures:
        curve = figure(title, "norm, in the order of calls", axis)
        curve.update_yaxes(type=scale, tickformat="~g", nticks=6)
        for number, (name, sites) in enumerate(layers.items()):
            paths = [f"{i}: {site.path}" + (" (degenerate)" if site.degenerate else "") for i, site in enumerate(sites)]
            for part, dash in (("cls", "solid"), ("tokens", "dot")):
                values = [getattr(getattr(site.after, part), key) for site in sites]
                if scale == "log":
                    values = [max(value, 1e-9) for value in values]
                label = "[CLS]" if part == "cls" else "tokens"
                full = f"{label}, {name}" if len(layers) > 1 else label
                colour = COLOURS[2 * number + (part == "tokens")] if len(layers) == 1 else COLOURS[number]
                curve.add_scatter(
                    x=list(range(len(values))),
                    y=values,
                    text=paths,
                    name=name if len(layers) > 1 else label,
                    legendgroup=name if len(layers) > 1 else label,
                    showlegend=len(layers) == 1 or part == "cls",
                    mode="lines+markers",
                    line={"dash": dash, "color": colour},
                    hovertemplate="%{text}<br>%{y:.4g}<extra>" + full + "</extra>",
                )
        found.append(curve)
    return found


def embedding_map(points: Points, name: str, pictures: Mapping[str, int] | None = None) -> Any:
    """Points in the plane by t-SNE, coloured by label where there are labels, with their names on hover.

    ``pictures`` has the number of a picture of the page by the name of a point.
    """
    title = f"Map of {name}: like embeddings lie together"
    found = figure(f"{title}, colours are labels" if points.labels else title, "", "")
    found.update_xaxes(showticklabels=False, zeroline=False)
    found.update_yaxes(showticklabels=False, zeroline=False)
    found.update_layout(hovermode="closest")
    places = place_on_plane(points.rows)
    groups = points.labels or [""] * len(places)
    common = sorted(set(groups), key=lambda group: (-groups.count(group), group))[:_GROUPS]
    for group in [*sorted(common), *([None] if len(set(groups)) > len(common) else [])]:
        chosen = [i for i, g in enumerate(groups) if (g == group if group is not None else g not in common)]
        colour = COLOURS[common.index(group) % len(COLOURS)] if group is not None else "#888888"
        found.add_scatter(
            x=places[chosen, 0].tolist(),
            y=places[chosen, 1].tolist(),
            text=[wrapped(points.names[i], 60) for i in chosen],
            customdata=[pictures.get(points.names[i]) for i in chosen] if pictures else None,
            name=wrapped(group if group is not None else "others"),
            mode="markers",
            marker={"size": 5, "color": colour, "opacity": 0.75},
            hovertemplate="%{text}<extra>" + wrapped(group or "") + "</extra>"
            if points.labels
            else "%{text}<extra></extra>",
            showlegend=bool(points.labels),
        )
    return found


def place_on_plane(rows: Tensor) -> Tensor:
    """(count, 2) by t-SNE from a PCA start; by PCA alone where there are too few different points for it."""
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
        warnings.simplefilter("ignore")  # of degenerate variances, which a collapsed input has
        reduced = PCA(kept, svd_solver="full").fit_transform(((x - x.mean(0)) / scale).numpy())
        if len(x) < 10 or kept < 3:
            flat = torch.zeros(len(x), 2, dtype=torch.float64)
            flat[:, : min(kept, 2)] = torch.from_numpy(reduced[:, :2])
            return flat
        tsne = TSNE(2, perplexity=min(30, (len(x) - 1) / 3), init="pca", max_iter=500, random_state=0)
        with threadpool_limits(
            1
        ):  # its threads wait for each other so often that a busy machine makes them ten times slower
            return torch.from_numpy(tsne.fit_transform(reduced))


def _some(values: Tensor, most: int) -> Tensor:
    """Evenly spaced values where there are more than ``most``."""
    return values if len(values) <= most else values[:: len(values) // most + 1]
