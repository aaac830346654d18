"""Time and peak memory of separate norms, relative to one LayerNorm, beside the textbook implementation.

    python benchmarks/norm_overhead.py [--rounds 5] [--repeats 20] [--json FILE]

Every figure is a ratio to ``nn.LayerNorm`` on the same tensors. The candidates alternate in random order; a turn is a
warm-up call and three timed ones. The fastest tenth of all counts, since other load only adds time. The next round has
new tensors, at other addresses. Printed is the median over the rounds; the JSON also has the lowest and highest. A line
is marked as invalid if "LayerNorm again" is not about 1.0. Forward+backward is ``torch.autograd.grad`` over input and
parameters of a norm whose input is not a leaf, as inside a network.

glibc returns freed memory to the kernel at moments that depend on the order of small allocations. The page faults that
follow cost more than the norm itself, for one candidate or another. So the benchmark restarts itself with an allocator
that keeps its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable

KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "500000000",
}
if __name__ == "__main__" and sys.platform == "linux" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)

import torch
from torch import Tensor, nn

from sepnorm import SepNorm

SHAPES = [(64, 50, 192), (128, 65, 192), (64, 32, 768), (64, 197, 384), (32, 197, 768), (256, 50, 768)]
NOISE = 0.07  # how far from 1.0 a LayerNorm beside itself may be
GROUPS = [["LayerNorm again", "textbook", "bn+ln", "ln+ln"], ["LayerNorm again", "bn+bn", "ln+bn", "bn"]]


class Textbook(nn.Module):
    """Split, normalise, concatenate: the layer as published, with batch norm over [CLS]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.cls_norm, self.token_norm = nn.BatchNorm1d(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.cls_norm(x[:, 0]).unsqueeze(1), self.token_norm(x[:, 1:])], dim=1)


def build(name: str, dim: int) -> nn.Module:
    if name.startswith("LayerNorm"):
        return nn.LayerNorm(dim)
    return Textbook(dim) if name == "textbook" else SepNorm.from_spec(name, dim)


def forward(norm: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return norm(x)

    return run


def forward_backward(norm: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], object]:
    wanted = [x, *norm.parameters()]
    return lambda: torch.autograd.grad(norm(x), wanted, grad)


def measure_seconds(candidates: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name in random.sample(list(candidates), len(candidates)):
            run = candidates[name]
            run()
            for _ in range(3):
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.quantiles(values, n=10)[0] for name, values in times.items()}


def peak_bytes(run: Callable[[], object]) -> int:
    """Peak memory of tensors made during ``run``, from the profiler's allocation events."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = most = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def measure(
    passes: Callable[..., Callable[[], object]], group: list[str], rounds: int, repeats: int
) -> list[dict[str, object]]:
    print(f"\n{passes.__name__.replace('_', ' + ')}: time x, peak memory m")
    print(f"{'(batch, tokens, dim)':22}{'LayerNorm':>10}" + "".join(f"{name:>18}" for name in group))
    rows: list[dict[str, object]] = []
    for shape in SHAPES:
        timed: list[dict[str, float]] = []
        for _ in range(rounds):
            x = torch.randn(shape, requires_grad=True) * 1.0
            grad = torch.randn_like(x)
            runs = {name: passes(build(name, shape[-1]), x, grad) for name in ["LayerNorm", *group]}
            timed.append(measure_seconds(runs, repeats))
        memory = {name: peak_bytes(run) for name, run in runs.items()}
        line = f"{shape!s:22}{statistics.median(t['LayerNorm'] for t in timed) * 1e3:7.2f} ms"
        for name in group:
            ratios = sorted(t[name] / t["LayerNorm"] for t in timed)
            memory_ratio = memory[name] / memory["LayerNorm"]
            line += f"{statistics.median(ratios):10.2f}x{memory_ratio:5.2f}m "
            rows.append(
                {
                    "passes": passes.__name__,
                    "shape": list(shape),
                    "norm": name,
                    "time_ratio": round(statistics.median(ratios), 3),
                    "lowest": round(ratios[0], 3),
                    "highest": round(ratios[-1], 3),
                    "memory_ratio": round(memory_ratio, 3),
                }
            )
        noisy = abs(statistics.median(t["LayerNorm again"] / t["LayerNorm"] for t in timed) - 1) > NOISE
        print(line + ("  noisy, does not count" if noisy else ""), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often to start over with new tensors (default 5)")
    parser.add_argument("--repeats", type=int, default=20, help="turns of each candidate in a round (default 20)")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32; ratios to nn.LayerNorm, lower is better;"
    )
    print("'LayerNorm again' shows the noise of the measurement")
    rows = []
    for group in GROUPS:
        for passes in (forward, forward_backward):
            rows += measure(passes, group, args.rounds, args.repeats)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
