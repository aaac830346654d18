"""What small batches cost a norm that depends on them, and what ``statistics=step`` gives back.

    python benchmarks/accumulation.py [--steps 200] [--rounds 5] [--probes SEEDS]

The masked autoencoder of the ``demo`` preset with ``bn+ln`` at the last norm, on scikit-learn's digits, at first and after so
many steps of training. A step of 64 images is made of batches of 4, 8, 16 or 32. Printed is how far the encoder's gradient is from
that of one batch of 64, as a share of the latter's length: with statistics of each batch, and with those of the step. Then the
time of a step, the median of ratios to a step of batches with statistics of their own, in turns.

With ``--probes``, whole runs instead: a batch of 64, and 8 batches of 8 a step with statistics of each and of the step. Printed are
the probes of [CLS] as differences from the large batch of the same seed, mean and deviation over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.choices import seeded
from sepnorm.domains import open_domain
from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.training.accumulation import Accumulation

BATCH = 64


def step(model: MaskedAutoencoder, parts: list[dict[str, Tensor]], accumulation: Accumulation | None) -> Tensor:
    """The encoder's gradient over all parts."""
    model.zero_grad()
    if accumulation is not None:
        accumulation.measure(lambda batch: model(**batch), parts)
    for part in parts:
        (model(**part)["loss"] / len(parts)).backward()
    if accumulation is not None:
        accumulation.end()
    return torch.cat([p.grad.flatten() for p in model.mae.vit.parameters() if p.grad is not None])


def cut(batch: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    return [{key: value[start : start + size] for key, value in batch.items()} for start in range(0, BATCH, size)]


def probes(seeds: int) -> None:
    domain = open_domain("images")
    config = domain.presets["demo"].changed({"norm": "bn+ln", "checkpoints": 0, "monitor": 0})
    small = {"batch_size": 8, "accumulation": BATCH // 8}
    ways = {"": {}, "of each batch": small, "of the step": small | {"statistics": "step"}}
    recipe: Any = domain.recipe(config)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for seed in range(seeds):
        for way, changes in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                model, _ = recipe.pretrain(config.changed(changes | {"seed": seed}), Path(folder))
            recipe.recalibrate(model)
            found[way].append(recipe.measure(model)[0])
    print("| 8 batches of 8 against one of 64 | linear probe | kNN |\n|---|---|---|")
    for way in list(ways)[1:]:
        cells = []
        for key in ("cls_linear_top1", "cls_knn"):
            gaps = [100 * (own[key] - large[key]) for own, large in zip(found[way], found[""], strict=True)]
            cells.append(f"{statistics.mean(gaps):+.1f} ± {statistics.stdev(gaps):.1f}")
        print(f"| statistics {way} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--probes", type=int, metavar="SEEDS")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.probes:
        probes(args.probes)
        return
    domain = open_domain("images")
    config = domain.presets["demo"].changed({"norm": "bn+ln"})
    recipe: Any = domain.recipe(config)
    model = MaskedAutoencoder(config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=config.learning_rate)

    def batch(number: int) -> dict[str, Tensor]:
        draw = seeded(0, number, 9)
        rows = torch.randperm(len(recipe.data.train), generator=draw)[:BATCH]
        noise = torch.rand(BATCH, config.patches, generator=draw)
        return {"pixel_values": recipe.pixels(recipe.data.train.images[rows]), "noise": noise}

    sizes = (4, 8, 16, 32)
    print("| gradient of a step of 64 | " + " | ".join(f"batches of {size}" for size in sizes) + " |\n|" + "---|" * 5)
    for done in (0, args.steps):
        for number in range(done):
            step(model, [batch(number)], None)
            optimizer.step()
        errors: dict[bool, list[list[float]]] = {False: [], True: []}
        for number in range(args.rounds):
            large = batch(10_000 + number)
            true = step(model, [large], None)
            for shared, found in errors.items():
                ways = [step(model, cut(large, size), Accumulation(model) if shared else None) for size in sizes]
                found.append([float((way - true).norm() / true.norm()) for way in ways])
        for shared, found in errors.items():
            cells = [f"{statistics.mean(column):.3f}" for column in zip(*found, strict=True)]
            name = "of the step" if shared else "of each batch"
            print(f"| statistics {name}, after {done} steps | {' | '.join(cells)} |")
    ratios: list[list[float]] = []
    for number in range(args.rounds):
        large, row = batch(number), []
        for size in sizes:
            times = []
            for accumulation in (None, Accumulation(model)):
                start = time.perf_counter()
                for _ in range(5):
                    step(model, cut(large, size), accumulation)
                times.append(time.perf_counter() - start)
            row.append(times[1] / times[0])
        ratios.append(row)
    cells = [f"{statistics.median(column):.2f}" for column in zip(*ratios, strict=True)]
    print(f"| time, statistics of the step / of each batch | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
