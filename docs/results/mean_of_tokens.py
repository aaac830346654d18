"""Why a batch norm at the last norm helps the mean of tokens: four linear probes of that mean.

    python docs/results/mean_of_tokens.py FOLDER DATA

``FOLDER`` is a finished comparison of images, ``DATA`` what it was trained on. The mean of tokens is probed before and after the
last norm, each as it is and with every dimension standardised before the probe. A batch norm is one affine map for all tokens,
so the mean after it is that map of the mean before it: what the probe gains by it, it gains by the scale of dimensions. A
LayerNorm divides every token by a number of its own, so the mean after it can also lose or gain information.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.images.data import load_images
from sepnorm.domains.images.encoder import ImageEncoder
from sepnorm.domains.probes import Split, linear_probes
from sepnorm.experiment.intervals import interval
from sepnorm.surgery.families import encoder_of

_BATCH = 256


def means(encoder: ImageEncoder, images: Tensor) -> tuple[Tensor, Tensor]:
    """Means of patches (count, dim) before and after the last norm, of images as bytes (count, channels, height, width)."""
    seen: list[Tensor] = []

    def keep(norm: Any, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0][:, 1:].mean(1))

    handle = encoder_of(encoder.model).layernorm.register_forward_pre_hook(keep)
    try:
        with encoder.evaluating():
            after = [encoder.encode(encoder.pixels(batch)).mean for batch in images.split(_BATCH)]
    finally:
        handle.remove()
    return torch.cat(seen), torch.cat(after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("data", metavar="DATA")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for metrics in sorted(options.folder.glob("runs/*/metrics.json")):
        config = json.loads((metrics.parent / "config.json").read_text(encoding="utf-8"))
        encoder = open_encoder(str(metrics.parent))
        assert isinstance(encoder, ImageEncoder)
        images = load_images(options.data, encoder.prepare.size[0], len(encoder.prepare.mean))
        train, test = (means(encoder, part.images) for part in (images.train, images.test))
        arm = config["norm"] if config["norm"] == "ln" else f"{config['norm']}@{config['sites']}"
        for place, fitted, scored in zip(("before", "after"), train, test, strict=True):
            split = Split(fitted, images.train.labels, scored, images.test.labels)
            for scale, each in zip(("as it is", "standardised"), linear_probes(split, [False, True]), strict=True):
                found[arm][f"{place}, {scale}"][config["seed"]] = each.scores["top1"]
    columns = [f"{place}, {scale}" for place in ("before", "after") for scale in ("as it is", "standardised")]
    print(f"| arm | seeds | {' | '.join(columns)} |")
    print(f"| --- | --- |{' --- |' * len(columns)}")
    for arm, scores in found.items():
        cells = [interval([*scores[column].values()]) for column in columns]
        print(f"| {arm} | {cells[0].count} | {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
