"""Where a training step of Graphormer-slim spends its time, and what other ways of attention would take: see ``molecules.py``.

Shares are of the time that torch's profiler sees in operations. Padding is counted, not timed: tokens and pairs of tokens
beside those that molecules have, in parts of similar size, in whole batches, and if the same tokens stood in rows as long as
the largest molecule of the batch, with a mask that keeps molecules apart. These rows are counted as if molecules filled them to
the end, so it is the least that packing takes. Torch's attention with the bias as mask stands beside ours, forward and
backward, on the parts of one batch.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.domains.molecules.attention import attend
from sepnorm.domains.molecules.batches import parts_by_size
from sepnorm.domains.molecules.graphormer import GraphormerConfig

#: Kinds of operations by how the profiler's names begin; what is in none is the rest.
KINDS = {
    "products of linear layers": ("aten::mm", "aten::addmm"),
    "products of attention": ("aten::bmm", "aten::baddbmm"),
    "softmax": ("aten::_softmax",),
    "random numbers and masks of dropout": ("_Attention", "aten::ge"),  # drawn by NumPy within the attention
    "copies": ("aten::copy_", "aten::_to_copy", "aten::clone", "aten::contiguous"),
    "norms and activations": ("aten::native_layer_norm", "aten::gelu"),
    "optimizer": ("Optimizer", "aten::_fused_adamw"),
}
_REST = "all else: embeddings, bias, sums, autograd"


def show_profile(run: Callable[[], object], count: int) -> None:
    """Prints the share of each kind of operation in ``run``, which makes ``count`` steps."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    times: dict[str, float] = defaultdict(float)
    copies = conversions = 0
    for event in profile.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key.startswith(names)), _REST)
        times[kind] += event.self_cpu_time_total
        copies += event.count if event.key == "aten::copy_" else 0
        conversions += event.count if event.key == "aten::_to_copy" else 0
    print("\nprofile of a training step of ours, ln: share of time by kind of operation")
    for kind in [*KINDS, _REST]:
        print(f"  {kind:44}{100 * times[kind] / sum(times.values()):7.1f} %")
    print(f"  {copies / count:,.0f} copies a step, {conversions / count:,.0f} of them into another type", flush=True)


def show_padding(sizes: Sequence[int], batch_size: int) -> None:
    """Prints what is padded in batches in random order. ``sizes`` are atoms; [VNode] is one token more."""
    tokens = np.array(sizes) + 1
    real, padded = np.zeros(2), {"parts of similar size, as here": np.zeros(2), "whole batches": np.zeros(2)}
    packed = parts = batches = 0
    for start in range(0, len(tokens), batch_size):
        batch = np.sort(tokens[start : start + batch_size])
        real += batch.sum(), (batch**2).sum()
        lengths = parts_by_size((batch - 1).tolist())
        for count, most in zip(lengths, batch[np.cumsum(lengths) - 1].tolist(), strict=True):
            padded["parts of similar size, as here"] += count * most, count * most**2
        padded["whole batches"] += len(batch) * batch[-1], len(batch) * batch[-1] ** 2
        packed += int(batch.sum() * batch[-1])
        parts, batches = parts + len(lengths), batches + 1
    print(
        f"\npadding of {batches} random batches of {batch_size}, {parts / batches:.1f} parts each: tokens, pairs of tokens"
    )
    for name, found in padded.items():
        rows, pairs = 100 * (found / real - 1)
        print(f"  {name:44}{rows:7.1f} % {pairs:7.1f} %")
    print(
        f"  {'packed into rows of the largest, at least':44}{0:7.1f} % {100 * (packed / real[1] - 1):7.1f} %",
        flush=True,
    )


def show_attention(sizes: Sequence[int], rounds: int) -> None:
    """Prints the time of ``scaled_dot_product_attention`` with the bias as mask, as a ratio to ours, of one batch."""
    config = GraphormerConfig()
    heads, width = config.num_attention_heads, config.hidden_size
    ordered = sorted(sizes)
    lengths = parts_by_size(ordered)
    shapes = [(n, 1 + ordered[end - 1]) for n, end in zip(lengths, np.cumsum(lengths).tolist(), strict=True)]
    rows = torch.randn(sum(n * tokens for n, tokens in shapes), 3 * width)
    biases = [torch.randn(heads, n, tokens, tokens).transpose(0, 1) for n, tokens in shapes]

    def torchs(rows: Tensor, biases: Sequence[Tensor], dropout: float) -> Tensor:
        found = []
        for some, bias in zip(rows.split([n * tokens for n, tokens in shapes]), biases, strict=True):
            query, key, value = some.view(len(bias), -1, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
            found.append(mixed.transpose(1, 2).reshape(len(some), -1))
        return torch.cat(found)

    def seconds(way: Callable[..., Tensor], dropout: float) -> float:
        leaves = [rows.clone().requires_grad_(), *(bias.clone().requires_grad_() for bias in biases)]
        start = time.process_time()
        for _ in range(config.num_hidden_layers):
            way(leaves[0], leaves[1:], dropout).sum().backward()
        return time.process_time() - start

    print("\nattention of a batch, forward and backward: scaled_dot_product_attention with the bias as mask / ours")
    for dropout in (0.0, config.attention_probs_dropout_prob):
        seconds(torchs, dropout), seconds(attend, dropout)
        ratios = []
        for _ in range(rounds):
            times = {way: seconds(way, dropout) for way in random.sample([torchs, attend], 2)}
            ratios.append(times[torchs] / times[attend])
        middle = statistics.median(ratios)
        print(f"  dropout {dropout:<36}{middle:7.2f}x ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
