"""Time of the linear probes, relative to scikit-learn's logistic regression with the same strengths and choice.

    python benchmarks/probes.py [--count 6000] [--dim 128] [--classes 102] [--rounds 3] [--threads N]
    python benchmarks/probes.py --large [--count 1000000] [--dim 768] [--classes 1000] [--strengths 6] [--steps 2]

The first measures both probes, with and without a BatchNorm before the head: every strength on four fifths of the
samples, then the best on all. The peer fits them one after another on one thread, with at most 300 steps each, as this
package's probes once did; with ``--converged`` it takes as many as a tolerance of 1e-9 needs. The two alternate.
Printed are medians over the rounds, ratios within a round, and the difference of the accuracies on new samples.

The second takes a few steps on a memory-mapped file of float16 features, and prints the time of one pass over it and
the peak memory. The time of whole probes is extrapolated to the number of passes in ``--whole``.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
from torch import Tensor

from sepnorm.domains.linear_heads import Rows
from sepnorm.domains.logistic import fit_classes
from sepnorm.domains.probes import STRENGTHS, Split, choosing, linear_probes


class Features:
    """Samples of classes with close centres, far from the origin, with a falling spread: a collapsed [CLS]."""

    def __init__(self, dim: int, classes: int) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.turn = torch.linalg.qr(torch.randn(dim, dim, generator=self.generator))[0]
        self.spread = torch.logspace(0, -2.5, dim)
        self.centres = 0.3 * torch.randn(classes, dim, generator=self.generator)
        self.offset = 3 * torch.randn(dim, generator=self.generator)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(len(self.centres), (count,), generator=self.generator)
        own = torch.randn(count, len(self.spread), generator=self.generator)
        own *= torch.rand(count, 1, generator=self.generator) + 0.5  # some lie further out
        return ((self.centres[labels] + own) * self.spread) @ self.turn + self.offset, labels


def peer(split: Split, converged: bool) -> list[float]:
    """Accuracy without and with a BatchNorm, by scikit-learn."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    limits = dict(max_iter=100_000, tol=1e-9) if converged else dict(max_iter=300)
    train, test, labels = split.train.double(), split.test.double(), split.train_labels
    held_out = choosing(labels)
    found = []
    for standardise in (False, True):
        mean = train.mean(0) if standardise else torch.zeros(train.shape[1], dtype=torch.float64)
        std = train.std(0) if standardise else train.square().mean().sqrt()
        rows = (train - mean) / std
        scores = {}
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            for c in STRENGTHS:
                head = LogisticRegression(C=c, **limits).fit(rows[~held_out].numpy(), labels[~held_out].numpy())
                scores[c] = head.score(rows[held_out].numpy(), labels[held_out].numpy())
            best = max(STRENGTHS, key=lambda c: (scores[c], -c))
            head = LogisticRegression(C=best, **limits).fit(rows.numpy(), labels.numpy())
        found.append(float(head.score(((test - mean) / std).numpy(), split.test_labels.numpy())))
    return found


def compare(args: argparse.Namespace) -> None:
    made = Features(args.dim, args.classes)
    train, test = made.draw(args.count), made.draw(max(2000, args.count // 4))
    split = Split(*train, *test)
    print(f"{args.count:,} x {args.dim} x {args.classes}, {len(STRENGTHS)} strengths, with and without a BatchNorm")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; scikit-learn on one\n")
    ours, theirs = [], []
    for _ in range(args.rounds):
        start = time.perf_counter()
        found = [each["top1"] for each in linear_probes(split, [False, True])]
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        reference = peer(split, args.converged)
        theirs.append(time.perf_counter() - start)
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    print(f"sepnorm       {statistics.median(ours):7.2f} s   accuracy {found[0]:.4f}, with BatchNorm {found[1]:.4f}")
    print(
        f"scikit-learn  {statistics.median(theirs):7.2f} s   accuracy {reference[0]:.4f}, with BatchNorm {reference[1]:.4f}"
    )
    print(f"ratio         {statistics.median(ratios):7.1f}x  ({min(ratios):.1f} to {max(ratios):.1f})")


class Timed(Rows):
    """Rows that record how long each pass over them takes, by the number of outputs computed for a row."""

    def chunks(self, kept: Tensor | None = None, columns: int = 1) -> Iterator[tuple[Tensor, slice]]:
        start = time.perf_counter()
        yield from super().chunks(kept, columns)
        self.passes = [*getattr(self, "passes", []), (columns, time.perf_counter() - start)]


def large(args: argparse.Namespace) -> None:
    made = Features(args.dim, args.classes)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "features"
        file = numpy.memmap(path, numpy.float16, "w+", shape=(args.count, args.dim))
        labels = torch.empty(args.count, dtype=torch.long)
        for begin in range(0, args.count, 2**15):
            end = min(args.count, begin + 2**15)
            rows, labels[begin:end] = made.draw(end - begin)
            file[begin:end] = rows.half().numpy()
        file.flush()
        print(f"{args.count:,} x {args.dim} in float16, {path.stat().st_size / 2**30:.2f} GiB in a file", flush=True)
        start = time.perf_counter()
        timed = Timed(torch.from_numpy(file))
        print(f"mean and products: {time.perf_counter() - start:.1f} s", flush=True)
        strengths = STRENGTHS[-args.strengths :]
        start = time.perf_counter()
        scales = timed.overall_scale().expand(len(strengths), -1)
        found = fit_classes(timed, labels, scales, strengths, most=args.steps)
        seconds = time.perf_counter() - start
    passes = [(columns // args.classes, taken) for columns, taken in timed.passes if columns >= args.classes]
    a_head = statistics.median(taken / heads for heads, taken in passes)
    speed = 4 * args.count * args.dim * args.classes / a_head / 1e9
    print(
        f"{args.steps} steps of {len(strengths)} heads of {args.classes:,} classes: {seconds:.1f} s, {len(passes)} passes"
    )
    print(f"a pass: {a_head:.1f} s for each head, {speed:.0f} GFLOP/s on {torch.get_num_threads()} threads")
    begun = args.count * math.log(args.classes)
    print(f"objectives, where equal shares have 1: {', '.join(f'{v / begun:.4f}' for v in found.objective.tolist())}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak of resident memory: {peak:.2f} GiB, pages of the file included")
    fits = 2 * (0.8 * len(STRENGTHS) + 1)  # with and without a BatchNorm; the last fit is on all
    print(f"calculated: {fits * args.whole * a_head / 3600:.1f} h for both probes, {args.whole} passes for each head")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="a few steps on features in a file")
    parser.add_argument("--count", type=int, help="samples (default 6,000, with --large 1,000,000)")
    parser.add_argument("--dim", type=int, help="dimensions (default 128, with --large 768)")
    parser.add_argument("--classes", type=int, help="classes (default 102, with --large 1,000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of torch (default as many as it takes)")
    parser.add_argument("--converged", action="store_true", help="scikit-learn up to a tolerance of 1e-9")
    parser.add_argument("--strengths", type=int, default=len(STRENGTHS), help="with --large: how many at once")
    parser.add_argument("--steps", type=int, default=2, help="with --large: steps (default 2)")
    parser.add_argument("--whole", type=int, default=40, help="with --large: passes that a whole fit is taken to have")
    parser.add_argument("--folder", help="with --large: where the file is made (default that of temporary files)")
    args = parser.parse_args()
    for name, usual, of_large in (("count", 6000, 1_000_000), ("dim", 128, 768), ("classes", 102, 1000)):
        if getattr(args, name) is None:
            setattr(args, name, of_large if args.large else usual)
    if args.threads:
        torch.set_num_threads(args.threads)
    (large if args.large else compare)(args)


if __name__ == "__main__":
    main()
