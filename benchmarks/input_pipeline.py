"""Whether images are read and decoded as fast as a model is trained on them.

    python benchmarks/input_pipeline.py [--images 8192] [--steps 150] [--rounds 5]

Writes JPEGs of 32x32, 224x224 and 2048x1536 pixels into tar files as WebDataset has them: smooth pictures with some noise, from a
seed. Prints, each by the time of one thread on the processor (so that other programs matter less), median of the rounds:

- images/s that Pillow opens and decodes, which is the limit;
- images/s that are decoded to bytes of the size that is trained on: whole, and as a stream does it, which decodes no more of
  a large JPEG than it needs;
- images/s that are read from shards, and that are made into batches, which is what a worker does: to read, to decode, and to
  cut out and scale at random;
- images/s of the training step of preset ``small`` (batch 128, one thread) with its batch at hand;
- the share of the time that steps of ``sepnorm pretrain images --preset small --set stream=...`` wait for data, without workers
  and with one. Steps are counted after the first ten, while the worker starts.

Images of 2048x1536 are trained on at 224x224.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sepnorm.data.records import to_image
from sepnorm.domains.images.config import PRESETS, ImageConfig
from sepnorm.domains.images.data import to_bytes
from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.domains.images.recipe import ImageRecipe
from sepnorm.training.batching import StreamedSteps

SHARDS = 4
SIZES = {"32x32": (32, 32), "224x224": (224, 224), "2048x1536": (2048, 1536)}
FEWER = {"32x32": 1, "224x224": 8, "2048x1536": 64}  # so many times
DIFFERENT = {"32x32": 8192, "224x224": 512, "2048x1536": 16}  # pictures, which then come again
STARTING = 10  # steps while a worker starts, which are not counted


def jpeg(number: int, size: tuple[int, int]) -> bytes:
    """A smooth picture with a little noise, about as large as a photograph of this size."""
    draw = np.random.default_rng(number)
    coarse = draw.integers(0, 255, (size[1] // 8 + 2, size[0] // 8 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    pixels = (smooth + draw.normal(0, 5, smooth.shape)).clip(0, 255).astype(np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        return file.getvalue()


def write_shards(folder: Path, pictures: list[bytes], images: int) -> list[bytes]:
    """Shards for training, and one for testing; gives the files of one of the former."""
    for split, shards in (("train", SHARDS), ("test", 1)):
        (folder / split).mkdir(parents=True)
        for shard in range(shards):
            encoded = [pictures[(shard * images + number) % len(pictures)] for number in range(images // SHARDS)]
            with tarfile.open(folder / split / f"{shard}.tar", "w") as tar:
                for number, content in enumerate(encoded):
                    for suffix, data in (("jpg", content), ("cls", b"%d" % (number % 10))):
                        entry = tarfile.TarInfo(f"{number:06}.{suffix}")
                        entry.size = len(data)
                        tar.addfile(entry, io.BytesIO(data))
    return encoded


def per_second(run: Callable[[], Any], images: int, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return images / statistics.median(times)


def reading(folder: Path, size: str, images: int, rounds: int) -> None:
    pictures = [jpeg(number, SIZES[size]) for number in range(min(images, DIFFERENT[size]))]
    encoded = write_shards(folder, pictures, images)
    side = min(224, *SIZES[size])
    config = PRESETS["small"].changed(
        {"data": str(folder), "pretrain_images": None, "image_size": side, "patch_size": side // 8}
        | {"stream": images, "batch_size": min(128, images)}
    )
    recipe = ImageRecipe(config)
    stream = recipe.stream
    assert stream is not None
    source = stream.open(0)
    rates = {
        "Pillow alone": per_second(
            lambda: [Image.open(io.BytesIO(each)).load() for each in encoded], len(encoded), rounds
        ),
        "decoded whole": per_second(
            lambda: [to_bytes(to_image(each), side, 3) for each in encoded], len(encoded), rounds
        ),
        "decoded": per_second(lambda: stream.decode({"bytes": each} for each in encoded), len(encoded), rounds),
        "read": per_second(lambda: source.take(images), images, rounds),
        "made into batches": per_second(batches(recipe, config, images), images, rounds),
    }
    cells = [size, f"{sum(map(len, encoded)) / len(encoded) / 1024:.1f}", *(f"{rate:,.0f}" for rate in rates.values())]
    if size == "32x32":
        print(f"| JPEGs | KiB | {' | '.join(rates)} |\n|" + "---|" * (2 + len(rates)))
    print(f"| {' | '.join(cells)} |", flush=True)


def batches(recipe: ImageRecipe, config: ImageConfig, images: int) -> Callable[[], None]:
    """What a worker does: reads, decodes, cuts out and scales."""
    stream = recipe.stream
    assert stream is not None

    def read(encoded: list[Any]) -> Any:
        return recipe._samples(config, len(encoded), lambda rows: stream.decode(encoded[row] for row in rows.tolist()))

    steps = StreamedSteps(config.changed({"max_steps": 10**6}), images, stream.open(0), read)
    count, done = images // config.batch_size, iter(range(10**6))

    def make() -> None:
        for _ in range(count):
            steps[next(done)]

    return make


def training_step(rounds: int) -> float:
    """Images/s of the preset's training step."""
    config = PRESETS["small"].changed({"norm": "bn+ln"})
    model = MaskedAutoencoder(config)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, fused=True)
    pixels = torch.randn(config.batch_size, config.channels, config.image_size, config.image_size)

    def step() -> None:
        model(pixels, torch.rand(len(pixels), config.patches))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return per_second(lambda: [step() for _ in range(10)], 10 * config.batch_size, rounds)


def pretraining(data: Path, buffer: int, workers: int, steps: int, out: Path) -> tuple[float, float]:
    """Images/s and the share of waiting of the real command, after the first steps, by its TensorBoard log."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = {"stream": buffer, "workers": workers, "pretrain_images": "null", "monitor": 0, "checkpoints": 0}
    words = ["pretrain", "images", "--preset", "small", "--norm", "bn+ln", "--data", str(data), "--quiet"]
    words += ["--max-steps", str(steps), "--out", str(out)]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    subprocess.run([sys.executable, "-m", "sepnorm", *words], check=True, stdout=subprocess.DEVNULL)
    log = EventAccumulator(str(next(out.rglob("tensorboard"))))
    log.Reload()
    rates = {event.step: event.value for event in log.Scalars("samples_per_second")}
    shares = {event.step: event.value for event in log.Scalars("waiting_share")}
    batch = PRESETS["small"].batch_size
    (began, waited), (ended, waited_at_end) = (
        (step * batch / rates[step], shares[step] * step * batch / rates[step]) for step in (STARTING, steps)
    )
    return (steps - STARTING) * batch / (ended - began), (waited_at_end - waited) / (ended - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.images < (fewest := 2 * SHARDS * max(FEWER.values())):
        parser.error(f"--images must be at least {fewest}, so that every shard holds two of the largest")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores; images/s on one core\n")
    with tempfile.TemporaryDirectory() as folder:
        for size, fewer in FEWER.items():
            reading(Path(folder, size), size, args.images // fewer, args.rounds)
        print(f"\ntraining step of `small`: {training_step(args.rounds):,.0f} images/s\n")
        print("| `pretrain images --preset small`, stream of 32x32 | images/s | share of time waiting |\n|---|---|---|")
        for workers in (0, 1):
            out = Path(folder, f"run-{workers}")
            rate, share = pretraining(Path(folder, "32x32"), args.images // 2, workers, args.steps, out)
            print(f"| workers={workers} | {rate:,.0f} | {100 * share:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
