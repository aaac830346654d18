"""What it costs that batch statistics are those of all processes: a training step with and without it.

    python benchmarks/distributed.py [--processes 2] [--rounds 5] [--steps 10] [--preset small]

Processes on this machine, joined by gloo, one thread each, train the masked autoencoder of an image preset under
DistributedDataParallel, each on its part of the batch. Five models take turns in random order, the same in every process:
shared ``ln``; ``bn+ln`` at the last norm, which is the preset's own choice, and at all sites, each with statistics of all
processes, as it is, and with ``sync`` off. A round's figure is the median over its steps of time on the wall, since waiting
for each other is what is measured. Printed are medians over the rounds, and in brackets the lowest and highest of the rounds'
ratios.

Beside it stands what is exchanged for statistics in a step: for each batch norm, a sum, a sum of squares and a count forward,
and two sums backward, in double precision: 8 * (2 * width + 1) + 8 * 2 * width bytes.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from norm_overhead import KEEP_MEMORY
from torch.nn.parallel import DistributedDataParallel

from sepnorm.distributed import part
from sepnorm.domains.images.config import PRESETS, ImageConfig
from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.layer.sep_norm import TokenNorm

SITES = ("final", "all")
ALONE = ", each process for itself"
CONTENDERS = {"ln": ({"norm": "ln"}, True)} | {
    f"bn+ln@{sites}{'' if sync else ALONE}": ({"norm": "bn+ln", "sites": sites}, sync)
    for sites in SITES
    for sync in (True, False)
}


def training_step(config: ImageConfig, sync: bool, images: int) -> Callable[[], None]:
    model = MaskedAutoencoder(config)
    for module in model.modules():
        if isinstance(module, TokenNorm):
            module.sync = sync
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    pixels = torch.randn(images, config.channels, config.image_size, config.image_size)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, fused=True)

    def run() -> None:
        wrapped(pixels, torch.rand(images, config.patches))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def worker(rank: int, args: argparse.Namespace, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    random.seed(0)  # the same order in every process
    preset = PRESETS[args.preset]
    rounds: list[dict[str, float]] = []
    for _ in range(args.rounds):
        runs = {
            name: training_step(preset.changed(changes), sync, preset.batch_size // args.processes)
            for name, (changes, sync) in CONTENDERS.items()
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run()
        for _ in range(args.steps):
            for name in random.sample(list(runs), len(runs)):
                dist.barrier()
                start = time.perf_counter()
                runs[name]()
                times[name].append(time.perf_counter() - start)
        rounds.append({name: statistics.median(values) for name, values in times.items()})
    if rank == 0:
        show(rounds, preset, args)
    part()


def show(rounds: list[dict[str, float]], config: ImageConfig, args: argparse.Namespace) -> None:
    print(f"torch {torch.__version__}, {args.processes} processes, preset {args.preset}, batch {config.batch_size}\n")
    print("| norms | ms a step | time / each for itself | time / `ln` |\n|---|---|---|---|")
    for name in CONTENDERS:
        cells = [name, f"{1e3 * statistics.median(found[name] for found in rounds):.1f}"]
        for base in (f"{name}{ALONE}", "ln"):
            if base not in CONTENDERS:
                cells.append("")
                continue
            ratios = [found[name] / found[base] for found in rounds]
            cells.append(f"{statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"| {' | '.join(cells)} |")
    print()
    for where in SITES:
        model = MaskedAutoencoder(config.changed({"norm": "bn+ln", "sites": where}))
        count = sum(isinstance(module, TokenNorm) for module in model.modules())
        gradients = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
        exchanged = count * (8 * (2 * config.width + 1) + 8 * 2 * config.width)
        print(
            f"bn+ln@{where}, {count} of width {config.width}: {exchanged:,} bytes of statistics, {gradients:,} of gradients"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--preset", default="small", choices=sorted(PRESETS))
    args = parser.parse_args()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    mp.spawn(worker, (args, port), nprocs=args.processes, daemon=True)


if __name__ == "__main__":
    if sys.platform == "linux" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)
    main()
