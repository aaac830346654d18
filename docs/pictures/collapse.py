"""Draws collapse.svg: what healthy and collapsed embeddings look like, with the figures that sepnorm.geometry gives for them.

python docs/pictures/collapse.py
"""

from pathlib import Path

import torch

from sepnorm.geometry import summary

SIDE, RADIUS = 260, 95
CASES = {
    "healthy": lambda n: torch.randn(n, 3),
    "narrow cone": lambda n: torch.tensor([0.5, 0.8, 0.6]) * 3 + 0.6 * torch.randn(n, 3),
    "few dimensions": lambda n: torch.randn(n, 1) * torch.tensor([0.9, 0.5, 0.2]) + 0.06 * torch.randn(n, 3),
}
LEVELS = {"healthy": "#2A86D1", "narrow cone": "#D55E00", "few dimensions": "#E69F00"}


def panel(number: int, name: str) -> str:
    torch.manual_seed(1)
    rows = CASES[name](300)
    found = summary(rows)
    x, y, _ = torch.nn.functional.normalize(rows, dim=1).T
    middle = SIDE * number + SIDE / 2
    dots = "".join(
        f'<circle cx="{middle + RADIUS * float(a):.1f}" cy="{125 - RADIUS * float(b):.1f}" r="2.2"/>'
        for a, b in zip(x, y, strict=True)
    )
    caption = (
        f"mean cosine {abs(found.mean_cosine):.2f}",
        f"uniformity {found.uniformity:.2f} (best {found.uniformity_ideal:.2f})",
        f"effective rank {found.effective_rank:.1f} of 3",
    )
    lines = "".join(f'<text x="{middle}" y="{256 + 18 * i}">{line}</text>' for i, line in enumerate(caption))
    return (
        f'<circle cx="{middle}" cy="125" r="{RADIUS}" fill="none" stroke="#9aa3ad"/>'
        f'<g fill="{LEVELS[name]}" fill-opacity=".7">{dots}</g><text x="{middle}" y="20" font-weight="600">{name}</text>{lines}'
    )


def main() -> None:
    panels = "".join(panel(i, name) for i, name in enumerate(CASES))
    size = f'viewBox="0 0 {SIDE * len(CASES)} 305" width="{SIDE * len(CASES)}" height="305"'
    style = 'font-family="system-ui, sans-serif" font-size="13" text-anchor="middle" fill="#59636e"'
    ground = f'<rect width="{SIDE * len(CASES)}" height="305" fill="#ffffff"/>'
    text = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{ground}{panels}</svg>\n'
    Path(__file__).with_suffix(".svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
