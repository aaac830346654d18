"""Draws a comparison from its record: the spectrum of [CLS] under each norm, and the score of every seed.

    python docs/results/regenerate.py --render

Shared norms are dashed lines and hollow dots, separate ones solid lines and full dots. Grey lines join the runs of one seed, which
have the same data, masks and initial weights; bars are means. Spectra are of the [CLS] of the first seed, its mean vector
included, relative to the largest singular value.
"""

from __future__ import annotations

import math
from typing import Any

from sepnorm.report.arms import Style, styles

WIDTH, HEIGHT, TOP, BOTTOM = 860, 400, 62, 300
_LEAST = 1e-3  # singular values below this, relative to the largest, are not drawn
_NAMES = {"ln": "LayerNorm", "bn": "BatchNorm", "rms": "RMSNorm"}


def label(arm: str) -> tuple[str, str]:
    """How a legend names an arm, in two lines."""
    norm, _, sites = arm.partition("@")
    where = ", all norms" if sites == "all" else ""
    if "+" in norm:
        return f"separate {norm}", f"[CLS] and tokens apart{where}"
    return f"shared {norm}", f"one {_NAMES.get(norm, norm)} for all{where}"


def dashes(style: Style) -> str:
    return ' stroke-dasharray="7 5"' if style.kind == "shared" else ""


def steps(low: float, high: float) -> list[float]:
    """Three to six round numbers that enclose an interval."""
    size = 10 ** math.floor(math.log10((high - low) / 3))
    step = next(size * factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]


def axis(title: str, left: float, right: float, ticks: dict[float, str]) -> str:
    marks = "".join(
        f'<path d="M{left} {y:.1f}H{right}" stroke="#e3e6ea"/>'
        f'<text x="{left - 8}" y="{y + 5:.1f}" text-anchor="end">{name}</text>'
        for y, name in ticks.items()
    )
    return f'{marks}<text x="{(left + right) / 2}" y="30" font-weight="600" fill="#1f2328">{title}</text>'


def spectra(found: dict[str, list[float]], arms: tuple[str, ...]) -> str:
    left, right = 66, WIDTH / 2 - 24
    decades = int(-math.log10(_LEAST))
    ticks = {TOP + (BOTTOM - TOP) * i / decades: f"{10.0**-i:g}" for i in range(decades + 1)}
    longest = max(len(found[arm]) for arm in arms)

    def place(index: int) -> float:
        return left + (right - left) * index / (longest - 1)

    lines = []
    for arm, style in styles(arms).items():
        points = [
            f"{place(i):.1f},{TOP - (BOTTOM - TOP) * math.log10(value) / decades:.1f}"
            for i, value in enumerate(found[arm])
            if value >= _LEAST
        ]
        line = f'stroke="{style.colour}" stroke-width="3"{dashes(style)}'
        lines.append(f'<polyline points="{" ".join(points)}" fill="none" {line}/>')
    quarters = [1, *(round(longest * i / 4) for i in (1, 2, 3, 4))]
    numbers = "".join(f'<text x="{place(number - 1):.1f}" y="{BOTTOM + 22}">{number}</text>' for number in quarters)
    below = f'<text x="{(left + right) / 2}" y="{BOTTOM + 44}">dimension, the strongest first</text>'
    return axis("Singular values of [CLS] / the largest", left, right, ticks) + "".join(lines) + numbers + below


def scores(values: dict[str, dict[int, float]], title: str) -> str:
    left, right = WIDTH / 2 + 66, WIDTH - 16
    every = [value for seeds in values.values() for value in seeds.values()]
    marks = steps(min(every), max(every))
    places = [left + (right - left) * (i + 0.5) / len(values) for i in range(len(values))]

    def height(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - marks[0]) / (marks[-1] - marks[0])

    ticks = {height(mark): f"{mark:.2f}" if marks[-1] - marks[0] > 0.03 else f"{mark:.3f}" for mark in marks}
    joined = "".join(
        '<polyline fill="none" stroke="#c3c9d0" points="'
        + " ".join(f"{x:.1f},{height(found[seed]):.1f}" for x, found in zip(places, values.values(), strict=True))
        + '"/>'
        for seed in next(iter(values.values()))
    )
    dots = []
    for x, (arm, style) in zip(places, styles(values).items(), strict=True):
        found, colour = values[arm], style.colour
        mean, inside = height(sum(found.values()) / len(found)), "#ffffff" if style.kind == "shared" else colour
        dots.append(f'<path d="M{x - 30:.1f} {mean:.1f}h60" stroke="{colour}" stroke-width="4"/>')
        dots += [
            f'<circle cx="{x:.1f}" cy="{height(v):.1f}" r="5" fill="{inside}" stroke="{colour}" stroke-width="2"/>'
            for v in found.values()
        ]
        dots.append(f'<text x="{x:.1f}" y="{BOTTOM + 22}" fill="{colour}" font-weight="600">{arm}</text>')
    return axis(title, left, right, ticks) + joined + "".join(dots)


def legend(arms: tuple[str, ...]) -> str:
    found = []
    for number, (arm, style) in enumerate(styles(arms).items()):
        x, colour = 30 + (WIDTH - 40) * number / len(arms), style.colour
        name, words = label(arm)
        found.append(
            f'<path d="M{x:.1f} {HEIGHT - 30}h34" stroke="{colour}" stroke-width="3"{dashes(style)}/>'
            f'<g text-anchor="start"><text x="{x + 44:.1f}" y="{HEIGHT - 32}" font-weight="600" fill="{colour}">{name}</text>'
            f'<text x="{x + 44:.1f}" y="{HEIGHT - 12}">{words}</text></g>'
        )
    return "".join(found)


def draw(record: dict[str, Any], picture: Any) -> str:
    """The picture as SVG. ``picture`` says which arms, which metric and what it is called."""
    values = {
        arm: dict(zip(record["seeds"], record["arms"][arm]["metrics"][picture.metric], strict=True))
        for arm in picture.arms
    }
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
    style = 'font-family="system-ui, sans-serif" font-size="16" text-anchor="middle" fill="#59636e"'
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    both = spectra(record["spectra"], picture.arms) + scores(values, picture.score) + legend(picture.arms)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{ground}{both}</svg>\n'
