"""Cost of Mixture Normalisation: a training step of an image preset with ``mix`` at the last norm, relative to
``bn+bn``.

    python benchmarks/mixture.py [--preset small] [--rounds 3] [--steps 30] [--threads 1]

All arms are in one process and alternate, one step each in random order, so that other load slows all alike. A step is
a new mask, forward, backward and a fused AdamW step on a batch of random images. The fastest tenth of an arm's steps
counts, since other load only adds time; the next round has new models. Printed are medians over the rounds, with the
lowest and highest ratio of a round in brackets. The distance of ``bn+bn again`` from 1 is the noise. Components are
fitted to random images, which cost the same as real ones. With one thread, processor time is measured instead of wall
time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch

from sepnorm.domains.images.config import PRESETS, ImageConfig
from sepnorm.domains.images.model import MaskedAutoencoder

BASE = "bn+bn@final"
ARMS = {
    "ln": ("ln", "final"),
    BASE: ("bn+bn", "final"),
    "bn+bn again": ("bn+bn", "final"),
    "bn+mix@final": ("bn+mix", "final"),
    "ln+mix@final": ("ln+mix", "final"),
    "mix@final": ("mix", "final"),
    "bn+bn@all": ("bn+bn", "all"),
    "bn+mix@all": ("bn+mix", "all"),
}


def training_step(config: ImageConfig) -> Callable[[], None]:
    """A training step as a function, with its own new model, optimizer and images."""
    model = MaskedAutoencoder(config).train()
    images = torch.randn(config.batch_size, config.channels, config.image_size, config.image_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, fused=True)

    def run() -> None:
        model(images, torch.rand(config.batch_size, config.patches))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def round_seconds(preset: ImageConfig, steps: int) -> dict[str, float]:
    """Seconds of a step of each arm: the fastest tenth of ``steps`` turns."""
    runs = {arm: training_step(preset.changed({"norm": norm, "sites": sites})) for arm, (norm, sites) in ARMS.items()}
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for turn in range(steps + 2):
        for arm in random.sample(list(ARMS), len(ARMS)):
            start = clock()
            runs[arm]()
            if turn > 1:  # the first ones warm up, and start the mixtures
                times[arm].append(clock() - start)
    return {arm: statistics.mean(sorted(values)[: max(steps // 10, 1)]) for arm, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="small", help="of images (default small)")
    parser.add_argument("--rounds", type=int, default=3, help="how often to start over with new models (default 3)")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each arm in a round (default 30)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    random.seed(0)
    rounds = [round_seconds(PRESETS[args.preset], args.steps) for _ in range(args.rounds)]
    print(
        f"torch {torch.__version__}, preset {args.preset}, {args.threads} threads, {args.rounds} rounds of {args.steps} steps\n"
    )
    print(f"| norms | ms a step | time / `{BASE}` |\n|---|---|---|")
    for arm in ARMS:
        ratios = [times[arm] / times[BASE] for times in rounds]
        milliseconds = 1e3 * statistics.median(times[arm] for times in rounds)
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| `{arm}` | {milliseconds:.0f} | {spread} |")


if __name__ == "__main__":
    main()
