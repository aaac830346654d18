"""Draws what a comparison found, for the README: the spectrum of [CLS] under each norm, and the score of every seed.

    python docs/pictures/domains.py runs/results/digits docs/pictures/images.svg cls_linear_top1 "linear probe" ln bn@final

Lines join the runs of one seed, which have the same data, masks and initial weights; bars are means. Spectra are of the
[CLS] of the first seed, its mean vector included, relative to the largest singular value.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np

WIDTH, HEIGHT, TOP, LEFT, BOTTOM = 780, 290, 46, 56, 240
COLOURS = ("#59636e", "#D98200", "#2A86D1", "#8250DF")
_LEAST = 1e-3  # singular values below this, relative to the largest, are not drawn


def spectrum(run: Path) -> np.ndarray:
    with np.load(run / "embeddings.npz") as arrays:
        rows = arrays["cls"].astype(np.float64)
    values = np.linalg.svd(rows, compute_uv=False)
    return values / values[0]


def axis(title: str, left: float, right: float, ticks: dict[float, str]) -> str:
    marks = "".join(
        f'<path d="M{left} {y:.1f}H{right}" stroke="#e3e6ea"/><text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
        for y, name in ticks.items()
    )
    return f'{marks}<text x="{(left + right) / 2}" y="22" font-weight="600">{title}</text>'


def spectra(folder: Path, arms: list[str]) -> str:
    left, right = LEFT, WIDTH / 2 - 20
    decades = int(-math.log10(_LEAST))
    ticks = {TOP + (BOTTOM - TOP) * i / decades: f"1e-{i}" if i else "1" for i in range(decades + 1)}
    found = {arm: spectrum(folder / "runs" / f"{arm}-seed0") for arm in arms}
    longest = max(map(len, found.values()))
    lines = []
    for colour, values in zip(COLOURS, found.values(), strict=False):
        points = [
            f"{left + (right - left) * i / (longest - 1):.1f},{TOP - (BOTTOM - TOP) * math.log10(value) / decades:.1f}"
            for i, value in enumerate(values)
            if value >= _LEAST
        ]
        lines.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2.2"/>')
    ends = f'<text x="{left}" y="{BOTTOM + 18}">1</text><text x="{right}" y="{BOTTOM + 18}">{longest}</text>'
    return axis("singular values of [CLS], first seed", left, right, ticks) + "".join(lines) + ends


def scores(folder: Path, arms: list[str], metric: str, title: str) -> str:
    left, right = WIDTH / 2 + 50, WIDTH - 20
    values = {arm: by_seed(folder, arm, metric) for arm in arms}
    every = [value for seeds in values.values() for value in seeds.values()]
    low, high = min(every), max(every)
    low, high = low - 0.08 * (high - low), high + 0.08 * (high - low)
    places = [left + (right - left) * (i + 0.5) / len(arms) for i in range(len(arms))]

    def height(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    ticks = {height(low + (high - low) * i / 4): f"{low + (high - low) * i / 4:.3f}" for i in range(5)}
    seeds = sorted(set.intersection(*(set(found) for found in values.values())))
    joined = "".join(
        '<polyline fill="none" stroke="#c3c9d0" points="'
        + " ".join(f"{x:.1f},{height(found[seed]):.1f}" for x, found in zip(places, values.values(), strict=True))
        + '"/>'
        for seed in seeds
    )
    dots = []
    for x, colour, (arm, found) in zip(places, COLOURS, values.items(), strict=False):
        mean = height(sum(found.values()) / len(found))
        dots.append(f'<path d="M{x - 26:.1f} {mean:.1f}h52" stroke="{colour}" stroke-width="3"/>')
        dots += [f'<circle cx="{x:.1f}" cy="{height(v):.1f}" r="4" fill="{colour}"/>' for v in found.values()]
        dots.append(f'<text x="{x:.1f}" y="{BOTTOM + 18}" fill="{colour}" font-weight="600">{arm}</text>')
    return axis(title, left, right, ticks) + joined + "".join(dots)


def by_seed(folder: Path, arm: str, metric: str) -> dict[int, float]:
    found = {}
    for run in sorted((folder / "runs").glob(f"{arm}-seed*")):
        if (run / "metrics.json").is_file():
            found[int(run.name.rpartition("seed")[2])] = json.loads((run / "metrics.json").read_text())[metric]
    return found


def draw(folder: Path, target: Path, metric: str, title: str, arms: list[str]) -> None:
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    style = 'font-family="system-ui, sans-serif" font-size="12" text-anchor="middle" fill="#59636e"'
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    both = spectra(folder, arms) + scores(folder, arms, metric, title)
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{ground}{both}</svg>\n', encoding="utf-8"
    )


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
