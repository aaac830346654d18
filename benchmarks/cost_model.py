"""A model of the time and memory of a training step: fitted here, checked on sizes it has not seen, then calculated for others.

    python benchmarks/cost_model.py [--rounds 3] [--devices 64] [--flops 400e12] [--bandwidth 3.3e12] [--link 50e9]
        [--latency 20e-6] [--decoded 300]

A step of a masked autoencoder or of a Graphormer, forward, backward and AdamW, is taken to cost

    time = matrix products [FLOP] / rate + (a * states + b * pairs + 28 * parameters) [bytes] / bandwidth + c * layers
    memory = 16 * parameters + d * states + e * pairs [bytes]

where states are the numbers of all hidden states (batch * tokens * width, over the layers), and pairs those of all attention
maps (batch * heads * tokens^2 over the layers, and for molecules batch * atoms^2 * kinds of bonds on a path). Products are
6 FLOP a weight and token and 12 * tokens^2 * width for attention. 28 and 16 bytes a parameter are what AdamW reads and writes, and
weights, gradients and two moments, in float32. The rest is fitted: seconds to time of one thread on the processor (not on
the wall, so that other programs matter less), median of the rounds; memory to the bytes that autograd keeps for the backward pass.

On other hardware a, b, d and e stay, c is left out, and rate, bandwidth and the network are what the options say: FLOP/s that a
device reaches, bytes/s of its memory, bytes/s and seconds a message between devices, images/s that a core decodes. What is printed
for these is calculated, not measured.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import nn

from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel

OPTIMIZER, KEPT = 28, 16  # bytes a parameter: what AdamW moves, and what stays
FLOAT = 4


@dataclass
class Cost:
    """What a step consists of, by the formulas above."""

    flops: float
    states: float
    pairs: float
    parameters: float
    layers: float


@dataclass
class Stack:
    """Layers of a transformer, of which all see as many tokens."""

    width: int
    depth: int
    heads: int
    inner: int  # width of the feed-forward part
    tokens: int

    @property
    def weights(self) -> int:
        return self.depth * (4 * self.width**2 + 2 * self.width * self.inner)


def cost(
    batch: int, stacks: Sequence[Stack], more_weights: int = 0, more_flops: float = 0, more_pairs: float = 0
) -> Cost:
    """``more_weights`` are in no layer, ``more_flops`` and ``more_pairs`` of a sample beyond the layers'."""
    flops = sum(6 * each.weights * each.tokens + 12 * each.depth * each.tokens**2 * each.width for each in stacks)
    states = sum(each.depth * each.tokens * (4 * each.width + each.inner) for each in stacks)
    pairs = sum(each.depth * each.heads * each.tokens**2 for each in stacks)
    return Cost(
        batch * (flops + more_flops),
        batch * states,
        batch * (pairs + more_pairs),
        sum(each.weights for each in stacks) + more_weights,
        sum(each.depth for each in stacks),
    )


@dataclass
class Images:
    """A masked autoencoder; ``decoder`` is its width and depth."""

    batch: int
    width: int
    depth: int
    side: int = 32
    patch: int = 4
    decoder: tuple[int, int] = (64, 1)

    def __str__(self) -> str:
        return f"images {self.side}/{self.patch}, width {self.width}, depth {self.depth}, batch {self.batch}"

    @property
    def cost(self) -> Cost:
        patches = (self.side // self.patch) ** 2
        width, depth = self.decoder
        pixels = 3 * self.patch**2
        encoder = Stack(self.width, self.depth, max(1, self.width // 64), 4 * self.width, 1 + patches // 4)
        decoder = Stack(width, depth, max(1, width // 32), 4 * width, 1 + patches)
        ends = (pixels * self.width, pixels * width, self.width * width)
        flops = 6 * (ends[0] * encoder.tokens + ends[1] * patches + ends[2] * encoder.tokens)
        return cost(self.batch, [encoder, decoder], sum(ends), flops)

    def step(self) -> tuple[nn.Module, Callable[[], Any]]:
        width, depth = self.decoder
        config = PRESETS["small"].changed(
            dict(image_size=self.side, patch_size=self.patch, width=self.width, depth=self.depth, decoder_width=width)
            | dict(heads=max(1, self.width // 64), decoder_heads=max(1, width // 32), decoder_depth=depth, norm="bn+ln")
        )
        model = MaskedAutoencoder(config)
        pixels = torch.randn(self.batch, 3, self.side, self.side)
        return model, lambda: model(pixels, torch.rand(self.batch, config.patches))["loss"]


@dataclass
class Molecules:
    """A Graphormer on chains of as many atoms."""

    batch: int
    width: int
    depth: int
    heads: int
    atoms: int

    def __str__(self) -> str:
        return f"molecules of {self.atoms} atoms, width {self.width}, depth {self.depth}, batch {self.batch}"

    @property
    def cost(self) -> Cost:
        kinds = 5 * 13  # hops, and kinds of bonds of OGB's features
        stack = Stack(self.width, self.depth, self.heads, self.width, 1 + self.atoms)
        path = self.atoms**2 * kinds
        return cost(self.batch, [stack], 210 * self.width, 4 * path * self.heads, path)

    def step(self) -> tuple[nn.Module, Callable[[], Any]]:
        sizes = dict(hidden_size=self.width, num_hidden_layers=self.depth, num_attention_heads=self.heads)
        model = GraphormerModel(GraphormerConfig(features="ogb", intermediate_size=self.width, **sizes))
        graphs, _ = featurise(["C" * self.atoms] * self.batch, "ogb")
        batch = model.collate(graphs)
        return model, lambda: model(**batch).last_hidden_state.square().mean()


FITTED = [
    [Images(64, 64, 4), Images(32, 128, 4), Images(64, 128, 8), Images(16, 256, 4), Images(32, 192, 2, 64, 8, (128, 2)),
     Images(4, 384, 4, 112, 8, (96, 1)), Images(64, 256, 2, 32, 8, (128, 4)), Images(16, 128, 6, 64, 4, (64, 2)),
     Images(8, 512, 3), Images(2, 768, 2, 112, 8, (256, 2))],
    [Molecules(16, 80, 12, 8, 20), Molecules(32, 128, 6, 8, 24), Molecules(32, 256, 4, 16, 12), Molecules(64, 64, 3, 4, 20),
     Molecules(8, 512, 4, 16, 24), Molecules(16, 128, 4, 32, 32), Molecules(4, 768, 3, 32, 16), Molecules(8, 192, 8, 8, 40)],
]  # fmt: skip
CHECKED = [
    [
        Images(8, 192, 12, 224, 16, (192, 2)),
        Images(4, 384, 12, 224, 16, (256, 4)),
        Images(16, 512, 6),
        Images(128, 128, 4),
    ],
    [Molecules(4, 768, 12, 32, 20), Molecules(16, 384, 6, 16, 28), Molecules(32, 80, 12, 8, 25)],
]
MADE_LARGE = {
    "ViT-L, 300 million images, one epoch": (Images(4096, 1024, 24, 224, 16, (512, 8)), 300e6),
    "Graphormer-base, 1 billion molecules, one epoch": (Molecules(8192, 768, 12, 32, 25), 1e9),
}


def measure(size: Images | Molecules, rounds: int) -> tuple[float, float]:
    """Seconds of a step, and bytes that autograd keeps for its backward pass, without parameters."""
    torch.manual_seed(0)
    model, loss = size.step()
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = loss()
    memory = sum(kept.values())
    found.backward()
    optimizer.step()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.process_time() - start)
    return statistics.median(times), float(memory)


def bandwidth_here() -> float:
    """Bytes/s that are read and written by a copy."""
    source = torch.ones(2**24)
    target = torch.empty_like(source)
    times = []
    for _ in range(9):
        start = time.process_time()
        target.copy_(source)
        times.append(time.process_time() - start)
    return 2 * source.nbytes / statistics.median(times)


@dataclass
class Model:
    """What was fitted: seconds a FLOP and a layer, bytes moved and kept for each number of states and pairs."""

    rate: float
    moved: tuple[float, float]
    layer: float
    kept: tuple[float, float]
    bandwidth: float

    @classmethod
    def fit(cls, costs: Sequence[Cost], seconds: Sequence[float], memory: Sequence[float], bandwidth: float) -> Model:
        """Least squares of relative errors, with no coefficient below 0."""
        base = np.array([OPTIMIZER * each.parameters / bandwidth for each in costs])
        parts = np.array([[each.flops, each.states, each.pairs, each.layers] for each in costs])
        scale = parts.max(0)
        found = nnls(parts / scale / np.array(seconds)[:, None], 1 - base / np.array(seconds))[0] / scale
        kept = nnls(parts[:, 1:3] / np.array(memory)[:, None], np.ones(len(memory)))[0]
        moved = (found[1] * bandwidth, found[2] * bandwidth)
        return cls(1 / max(found[0], 1e-30), moved, found[3], (kept[0], kept[1]), bandwidth)

    def seconds(self, each: Cost, rate: float | None = None, bandwidth: float | None = None) -> float:
        bytes_moved = self.moved[0] * each.states + self.moved[1] * each.pairs + OPTIMIZER * each.parameters
        here = self.layer * each.layers if rate is None else 0.0
        return each.flops / (rate or self.rate) + bytes_moved / (bandwidth or self.bandwidth) + here

    def memory(self, each: Cost) -> float:
        return self.kept[0] * each.states + self.kept[1] * each.pairs


def fitted(kind: int, bandwidth: float, rounds: int) -> Model:
    rows = [(size, *measure(size, rounds)) for size in FITTED[kind]]
    model = Model.fit([size.cost for size, *_ in rows], [row[1] for row in rows], [row[2] for row in rows], bandwidth)
    print("\n| size | ms measured | model | error | MB kept | model | error |\n|---|---|---|---|---|---|---|")
    errors: list[tuple[float, float]] = []
    for size, seconds, memory in [*rows, *((size, *measure(size, rounds)) for size in CHECKED[kind])]:
        new = size in CHECKED[kind]
        time_error, memory_error = model.seconds(size.cost) / seconds - 1, model.memory(size.cost) / memory - 1
        cells = [
            f"{'**checked** ' if new else ''}{size}",
            f"{1e3 * seconds:.0f}",
            f"{1e3 * model.seconds(size.cost):.0f}",
        ]
        cells += [f"{100 * time_error:+.0f} %", f"{memory / 1e6:.1f}", f"{model.memory(size.cost) / 1e6:.1f}"]
        print(f"| {' | '.join([*cells, f'{100 * memory_error:+.0f} %'])} |", flush=True)
        errors += [(abs(time_error), abs(memory_error))] if new else []
    print(
        f"\n{model.rate / 1e9:.0f} GFLOP/s; moved {model.moved[0]:.0f} bytes a state and {model.moved[1]:.0f} a pair; kept "
        f"{model.kept[0]:.1f} and {model.kept[1]:.1f}; {1e6 * model.layer:.0f} us a layer"
    )
    means = [100 * statistics.mean(column) for column in zip(*errors, strict=True)]
    print(f"mean error on sizes that were not fitted: time {means[0]:.0f} %, memory {means[1]:.0f} %", flush=True)
    return model


def calculate(name: str, size: Images | Molecules, samples: float, model: Model, args: argparse.Namespace) -> None:
    whole, devices = size.cost, args.devices
    own = Cost(whole.flops / devices, whole.states / devices, whole.pairs / devices, whole.parameters, whole.layers)
    work = model.seconds(own, args.flops, args.bandwidth)
    gradients = 2 * (devices - 1) / devices * FLOAT * whole.parameters / args.link
    waited = max(0.0, gradients - 2 / 3 * work)  # they are sent while the backward pass goes on
    step = work + waited + 2 * args.latency
    steps, rate = samples / size.batch, size.batch / step / devices
    sites = 2 * size.depth
    fixed = KEPT * whole.parameters
    products = own.flops / args.flops
    print(f"\n**{name}** (calculated): batch {size.batch:,} on {devices} devices, {steps:,.0f} steps")
    print(f"- {whole.parameters / 1e6:.0f} million parameters, {whole.flops / size.batch / 1e9:.1f} GFLOP a sample")
    print(f"- a step: {1e3 * products:.1f} ms of products, {1e3 * (work - products):.1f} ms of memory")
    print(f"- gradients: {1e3 * gradients:.1f} ms, of which {1e3 * waited:.1f} ms are not hidden by the backward pass")
    print(
        f"- statistics: {2e3 * args.latency:.2f} ms at the last norm, {2e3 * args.latency * sites:.2f} ms at {sites} sites"
    )
    print(f"- together {1e3 * step:.1f} ms, {rate:,.0f} samples/s a device, {steps * step / 3600:.1f} hours")
    print(
        f"- memory: {(fixed + model.memory(own)) / 1e9:.1f} GB a device in float32, {fixed / 1e9:.1f} GB for any batch"
    )
    if isinstance(size, Images):
        print(f"- decoding: {rate / args.decoded:.1f} cores a device, at {args.decoded:.0f} images/s a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--flops", type=float, default=400e12)
    parser.add_argument("--bandwidth", type=float, default=3.3e12)
    parser.add_argument("--link", type=float, default=50e9)
    parser.add_argument("--latency", type=float, default=20e-6)
    parser.add_argument("--decoded", type=float, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    bandwidth = bandwidth_here()
    print(f"torch {torch.__version__}, one thread, a copy moves {bandwidth / 1e9:.1f} GB/s")
    models = [fitted(kind, bandwidth, args.rounds) for kind in range(2)]
    print(
        f"\nDevices: {args.flops / 1e12:.0f} TFLOP/s reached, {args.bandwidth / 1e12:.1f} TB/s of memory, "
        f"{args.link / 1e9:.0f} GB/s between them, {1e6 * args.latency:.0f} us a message"
    )
    for name, (size, samples) in MADE_LARGE.items():
        calculate(name, size, samples, models[isinstance(size, Molecules)], args)


if __name__ == "__main__":
    main()
