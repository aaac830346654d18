"""What it costs that batch statistics are those of all processes: a training step with and without it.

    python benchmarks/distributed.py [--processes 2] [--rounds 5] [--steps 10] [--preset small] [--layer] [--previous]

Processes on this machine, joined by gloo, one thread each, train the masked autoencoder of an image preset under
DistributedDataParallel, each on its part of the batch. Nine models take turns in random order, the same in every process:
shared ``ln``; ``bn+ln`` at the last norm, which is the preset's own choice, and at all sites, each with statistics of all
processes, as it is; likewise but waiting for every exchange as soon as it begins, where the tokens' norm is computed otherwise;
with ``sync`` off; and with ``sync`` off but a message of one number at each site, forward and backward, that is waited for at
once. A round's figure is the median over its steps of time on the wall, since waiting for each other is what is measured.
Printed are medians over the rounds, and in brackets the lowest and highest of the rounds' ratios. Below is which share of the
cost of statistics at all sites, waited for at once, the messages without statistics have: processes wait for each other.

With ``--layer``, one layer alone, forward and backward, where these differences are a larger part of the whole: the lower quartile
over many turns, on shapes of the ``small`` preset and of ViT-Base.

With ``--previous``, what it would do to training not to wait: one process trains the ``demo`` preset on digits, ``--rounds``
seeds, with ``bn+ln`` at the last norm and at all sites, normalising [CLS] by its batch, and by the batch before, through whose
statistics no gradient flows. Printed are the loss, the linear probe and the kNN probe of [CLS], mean and deviation over seeds.

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
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from norm_overhead import KEEP_MEMORY
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from sepnorm.distributed import Exchange, part
from sepnorm.domains.images.config import PRESETS, ImageConfig
from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.domains.images.recipe import ImageRecipe
from sepnorm.layer import SepNorm, kernels
from sepnorm.layer import statistics as layer_statistics
from sepnorm.layer.sep_norm import TokenNorm
from sepnorm.layer.statistics import Statistics

SITES = ("final", "all")
AT_ONCE, ALONE, EMPTY = ", waited for at once", ", each process for itself", ", messages without statistics"
CONTENDERS = {"ln": {"norm": "ln"}} | {
    f"bn+ln@{sites}{way}": {"norm": "bn+ln", "sites": sites} for sites in SITES for way in ("", AT_ONCE, ALONE, EMPTY)
}


class WaitedFor(Exchange):
    """An exchange during which nothing else is done."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x)
        self.wait()


class Meeting(torch.autograd.Function):
    """Changes nothing, and waits for all processes by a message of one number, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(torch.zeros(1))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        dist.all_reduce(torch.zeros(1))
        return grads[0]


def training_step(name: str, config: ImageConfig, images: int) -> Callable[[], None]:
    model = MaskedAutoencoder(config)
    for module in model.modules():
        if isinstance(module, TokenNorm):
            module.sync = not name.endswith((ALONE, EMPTY))
            if name.endswith(EMPTY):
                module.register_forward_pre_hook(lambda _, given: (Meeting.apply(given[0]), *given[1:]))
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    pixels = torch.randn(images, config.channels, config.image_size, config.image_size)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, fused=True)

    def run() -> None:
        kernels.Exchange = layer_statistics.Exchange = WaitedFor if name.endswith(AT_ONCE) else Exchange  # type: ignore[misc]
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
    if args.layer:
        layers(rank, args)
        part()
        return
    preset = PRESETS[args.preset]
    rounds: list[dict[str, float]] = []
    for _ in range(args.rounds):
        runs = {
            name: training_step(name, preset.changed(changes), preset.batch_size // args.processes)
            for name, changes in CONTENDERS.items()
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


def layers(rank: int, args: argparse.Namespace) -> None:
    """One layer with statistics of all processes, as it is and without overlap, and for each process alone."""
    for shape, turns in (((64, 17, 128), 100 * args.steps), ((64, 197, 768), 5 * args.steps)):
        x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
        norms = {name: SepNorm(shape[-1], sync=name != ALONE) for name in ("", AT_ONCE, ALONE)}
        times: dict[str, list[float]] = {name: [] for name in norms}
        for _ in range(turns):
            for name in random.sample(list(norms), len(norms)):
                kernels.Exchange = layer_statistics.Exchange = WaitedFor if name == AT_ONCE else Exchange  # type: ignore[misc]
                dist.barrier()
                start = time.perf_counter()
                torch.autograd.grad(norms[name](x), [x, *norms[name].parameters()], grad)
                times[name].append(time.perf_counter() - start)
        if rank == 0:
            quartiles = {name: statistics.quantiles(found, n=4)[0] for name, found in times.items()}
            cells = [f"bn+ln{name} {1e6 * found:,.0f} us" for name, found in quartiles.items()]
            print(f"{shape}: {'; '.join(cells)}")


def by_the_batch_before(kernel: Any, bn: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """In the place of ``BatchKernel._native``: running statistics are those of the last batch, and normalise."""
    mean, var = layer_statistics.moments(x)
    first = not int(bn.num_batches_tracked)
    old = Statistics(mean, (var + bn.eps).rsqrt(), 0.0) if first else layer_statistics.running_statistics(bn, x.dtype)
    if kernel.call.track:
        bn.num_batches_tracked.add_(1)
        bn.running_mean.copy_(mean)
        bn.running_var.copy_(var)
    kernel.stats = old
    scale, shift = layer_statistics.scale_shift(old, weight, bias)
    return torch.addcmul(shift, x, scale)


def previous(seeds: int) -> None:
    torch.set_num_threads(1)
    native = kernels.BatchKernel._native
    print("| [CLS] normalised by | loss | linear probe | kNN |\n|---|---|---|---|")
    for sites in SITES:
        config = PRESETS["demo"].changed({"norm": "bn+ln", "sites": sites, "checkpoints": 0, "monitor": 0})
        recipe = ImageRecipe(config)
        for way, forward in (("its batch", native), ("the batch before", by_the_batch_before)):
            kernels.BatchKernel._native = forward  # type: ignore[method-assign]
            found: list[dict[str, float]] = []
            for seed in range(seeds):
                with tempfile.TemporaryDirectory() as folder:
                    model, trained = recipe.pretrain(config.changed({"seed": seed}), Path(folder))
                recipe.recalibrate(model)
                found.append(recipe.measure(model)[0] | {"loss": trained.losses[-1][1]})
            cells = []
            for key in ("loss", "cls_linear_top1", "cls_knn"):
                values = [each[key] for each in found]
                cells.append(f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}")
            print(f"| {way}, {sites} | {' | '.join(cells)} |", flush=True)


def show(rounds: list[dict[str, float]], config: ImageConfig, args: argparse.Namespace) -> None:
    print(f"torch {torch.__version__}, {args.processes} processes, preset {args.preset}, batch {config.batch_size}\n")
    print("| norms | ms a step | time / each for itself | time / `ln` |\n|---|---|---|---|")
    for name in CONTENDERS:
        cells = [name, f"{1e3 * statistics.median(found[name] for found in rounds):.1f}"]
        for base in (f"{name.partition(',')[0]}{ALONE}", "ln"):
            if base not in CONTENDERS:
                cells.append("")
                continue
            ratios = [found[name] / found[base] for found in rounds]
            cells.append(f"{statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"| {' | '.join(cells)} |")
    print()
    ways = [[found[f"bn+ln@all{way}"] for found in rounds] for way in (EMPTY, AT_ONCE, ALONE)]
    shares = [(empty - alone) / (waited - alone) for empty, waited, alone in zip(*ways, strict=True)]
    print(
        f"bn+ln@all, share of the cost that messages without statistics have: {statistics.median(shares):.2f} "
        f"({min(shares):.2f} to {max(shares):.2f})"
    )
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
    parser.add_argument("--layer", action="store_true")
    parser.add_argument("--previous", action="store_true")
    args = parser.parse_args()
    if args.previous:
        previous(args.rounds)
        return
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    mp.spawn(worker, (args, port), nprocs=args.processes, daemon=True)


if __name__ == "__main__":
    if sys.platform == "linux" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)
    main()
