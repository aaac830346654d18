"""Images per second of masked-autoencoder training: shared norms, separate norms, and lightly's modules.

    python benchmarks/images.py [--rounds 5] [--steps 10] [--threads 2] [--folder .lightly]

All contenders are in one process and alternate, one step each in random order, so that other load slows all alike. A
step is a new mask, forward, the loss on normalised pixels of masked patches, backward, and a fused AdamW step on 64
random images in float32. A round is a median over its steps; the next round has new models, at other addresses. Printed
are medians over the rounds, with the lowest and highest ratio of a round in brackets. ``ln again`` is ``ln`` a second
time: its distance from 1 is the noise. With ``--threads 1``, processor time is measured instead of wall time, which
other load disturbs less.

Memory is the peak of a contender's own process during its steps, minus that after all imports, on Linux. Timing uses an
allocator that keeps freed memory, for the reason given in ``norm_overhead.py``; memory does not.

Both sides have encoders of the named size, decoders of width 128 with 2 blocks and 4 heads, and 3 of 4 patches masked.
lightly's model is built as in its own MAE example, from a folder with timm and torchvision that nothing else sees
(``make .lightly``).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "500000000",
}
MEMORY_ONLY = "--memory-of"
TIMING = __name__ == "__main__" and MEMORY_ONLY not in sys.argv
if TIMING and sys.platform == "linux" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)

import torch
from torch import Tensor, nn

# Before lightly's folder is on the path: with torchvision in sight, transformers would import that too.
from transformers import ViTMAEForPreTraining  # noqa: F401

from sepnorm.domains.images.config import ImageConfig
from sepnorm.domains.images.model import MaskedAutoencoder

BATCH = 64
SIZES: dict[str, dict[str, int]] = {
    "ViT-Tiny, 32x32, patch 4": dict(image_size=32, patch_size=4, width=192, depth=12, heads=3),
    "ViT-Small, 64x64, patch 8": dict(image_size=64, patch_size=8, width=384, depth=12, heads=6),
}
OURS = {
    "ln": ("ln", "all"),
    "ln again": ("ln", "all"),
    "bn+ln, all": ("bn+ln", "all"),
    "bn+ln, final": ("bn+ln", "final"),
    "bn+bn, final": ("bn+bn", "final"),
}
CONTENDERS = [*OURS, "lightly"]
MEMORY_STEPS = 5
_kept: list[Any] = []  # a torch.library.Library takes its operators with it when it goes


def settings(size: str, norm: str = "ln", sites: str = "all") -> ImageConfig:
    decoder = dict(decoder_width=128, decoder_depth=2, decoder_heads=4)
    training = dict(mask_ratio=0.75, batch_size=BATCH, learning_rate=1e-3, epochs=1)
    return ImageConfig(norm=norm, sites=sites, **SIZES[size], **decoder, **training)


def import_lightly(folder: str) -> None:
    """Makes lightly importable from ``folder``, even if torchvision's compiled part does not fit this torch."""
    if not Path(folder).is_dir():
        sys.exit(f"there is no folder {folder}: make {Path(folder).name}")
    sys.path.append(str(Path(folder).resolve()))
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        # torchvision declares shape rules for two operators of its compiled part; no model here calls them.
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
    import lightly.models.modules  # noqa: F401


class Lightly(nn.Module):
    """The same autoencoder from lightly's modules, with the forward pass of lightly's example."""

    def __init__(self, config: ImageConfig) -> None:
        from lightly.models.modules import MAEDecoderTIMM, MaskedVisionTransformerTIMM
        from timm.models.vision_transformer import VisionTransformer

        super().__init__()
        self.config = config
        vit = VisionTransformer(
            img_size=config.image_size,
            patch_size=config.patch_size,
            embed_dim=config.width,
            depth=config.depth,
            num_heads=config.heads,
            num_classes=0,
        )
        self.encoder = MaskedVisionTransformerTIMM(vit)
        with warnings.catch_warnings():  # it is to be renamed in lightly 1.7
            warnings.simplefilter("ignore")
            self.decoder = MAEDecoderTIMM(
                num_patches=config.patches,
                patch_size=config.patch_size,
                embed_dim=config.width,
                decoder_embed_dim=config.decoder_width,
                decoder_depth=config.decoder_depth,
                decoder_num_heads=config.decoder_heads,
            )

    def forward(self, images: Tensor) -> Tensor:
        """The loss of ``images`` (images, channels, side, side)."""
        from lightly.models import utils

        size = (len(images), self.encoder.sequence_length)
        kept, masked = utils.random_token_mask(size, self.config.mask_ratio)
        latent = self.decoder.embed(self.encoder.encode(images, idx_keep=kept))
        tokens = utils.set_at_index(utils.repeat_token(self.decoder.mask_token, size), kept, latent)
        predicted = self.decoder.predict(utils.get_at_index(self.decoder.decode(tokens), masked))
        patches = utils.patchify(images, self.config.patch_size)
        target = utils.normalize_mean_var(utils.get_at_index(patches, masked - 1))  # patches have no [CLS] before them
        return nn.functional.mse_loss(predicted, target)


def training_step(contender: str, size: str) -> Callable[[], None]:
    """A training step as a function, with its own new model, optimizer and images."""
    config = settings(size, *OURS.get(contender, ()))
    model = Lightly(config) if contender == "lightly" else MaskedAutoencoder(config)
    images = torch.randn(BATCH, 3, config.image_size, config.image_size)
    parameters = [parameter for parameter in model.train().parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)

    def run() -> None:
        loss = model(images) if contender == "lightly" else model(images, torch.rand(BATCH, config.patches))["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def round_seconds(size: str, steps: int) -> dict[str, float]:
    """Median seconds of a step of each contender, over ``steps`` turns."""
    runs = {contender: training_step(contender, size) for contender in CONTENDERS}
    for run in runs.values():
        run()
        run()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {contender: [] for contender in CONTENDERS}
    for _ in range(steps):
        for contender in random.sample(CONTENDERS, len(CONTENDERS)):
            start = clock()
            runs[contender]()
            times[contender].append(clock() - start)
    return {contender: statistics.median(values) for contender, values in times.items()}


def kilobytes(field: str) -> int:
    """A memory figure of this process on Linux: VmRSS is the current, VmHWM the peak size."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def own_memory(contender: str, size: str) -> int:
    """Kilobytes that training takes beyond the imports, in a process that does nothing else."""
    before = kilobytes("VmRSS")
    run = training_step(contender, size)
    for _ in range(MEMORY_STEPS):
        run()
    return kilobytes("VmHWM") - before


def memory_in_process(contender: str, size: str, threads: int, folder: str) -> float:
    """Megabytes that training takes in its own process."""
    environment = {key: value for key, value in os.environ.items() if key not in KEEP_MEMORY}
    command = [sys.executable, __file__, MEMORY_ONLY, contender, size, "--threads", str(threads), "--folder", folder]
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return int(found.stdout.split()[-1]) / 1024


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def rows(size: str, rounds: list[dict[str, float]], memory: dict[str, float]) -> list[str]:
    found = []
    for contender in CONTENDERS:
        seconds = statistics.median(times[contender] for times in rounds)
        cells = [
            size,
            contender if contender == "lightly" else f"`{contender.split(',')[0]}`{contender.partition(',')[2]}",
            f"{1e3 * seconds:.0f}",
            f"{BATCH / seconds:.0f}",
            spread([times[contender] / times["ln"] for times in rounds]),
            spread([times["lightly"] / times[contender] for times in rounds]),
            f"{memory[contender]:.0f}" if memory else "",
        ]
        found.append(f"| {' | '.join(cells)} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often to start over with new models (default 5)")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each contender in a round (default 10)")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="of torch (default: its own choice)"
    )
    parser.add_argument(
        "--folder", default=".lightly", help="where lightly, timm and torchvision are (default .lightly)"
    )
    parser.add_argument(MEMORY_ONLY, nargs=2, metavar=("CONTENDER", "SIZE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    import_lightly(args.folder)
    torch.manual_seed(0)
    random.seed(0)
    if args.memory_of:
        print(own_memory(*args.memory_of))
        return
    print(
        f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds of {args.steps} steps, batch {BATCH}\n"
    )
    print("| size | norms | ms a step | images/s | time / `ln` | images/s / lightly | memory, MB |\n|" + "---|" * 7)
    for size in SIZES:
        rounds = [round_seconds(size, args.steps) for _ in range(args.rounds)]
        memory = {}
        if sys.platform == "linux":
            memory = {name: memory_in_process(name, size, args.threads, args.folder) for name in CONTENDERS}
        print("\n".join(rows(size, rounds, memory)), flush=True)


if __name__ == "__main__":
    main()
