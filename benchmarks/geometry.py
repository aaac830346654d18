"""Time and peak memory of ``sepnorm.geometry.summary`` for embeddings in a file, by their number.

    python benchmarks/geometry.py [--counts 10000 100000 1000000] [--dims 384] [--rounds 3] [--json FILE]

The embeddings are float32 in a memory-mapped .npy file, made in a temporary folder and deleted afterwards. Every
measurement has its own process. Peak memory is the largest anonymous memory (``RssAnon``, without the pages of the
file) above that after the imports, sampled every two milliseconds. The peer is ``numpy.linalg.svd(x,
compute_uv=False)`` of all embeddings in float64, which computes the singular values only, if these take less than 1
GiB; its time excludes the conversion to float64. The two alternate. Printed are medians over the rounds: times, and
their ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

from sepnorm import geometry

PEER_BYTES = 2**30


def make(path: Path, count: int, dim: int) -> None:
    """Writes embeddings off the origin, with a spread that falls over the dimensions, in parts."""
    rng = numpy.random.default_rng(0)
    scale = numpy.geomspace(1, 0.01, dim, dtype=numpy.float32)
    x = numpy.lib.format.open_memmap(path, "w+", numpy.float32, (count, dim))
    for start in range(0, count, 2**15):
        piece = x[start : start + 2**15]
        piece[:] = rng.standard_normal(piece.shape, dtype=numpy.float32) * scale + numpy.float32(0.1)
    x.flush()


def prepare(what: str, x: numpy.ndarray) -> Callable[[], object]:
    if what == "summary":
        return lambda: geometry.summary(x)
    whole = numpy.asarray(x, dtype=numpy.float64)
    return lambda: numpy.linalg.svd(whole, compute_uv=False)


def anonymous_bytes(process: int) -> int:
    """``RssAnon`` of a process; 0 once it has ended."""
    found = re.search(r"^RssAnon:\s*(\d+)", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def measure_here(what: str, path: str) -> None:
    """Runs in the measured process: prints when it begins, and then how long it took."""
    x = numpy.load(path, mmap_mode="r")
    print("begins", flush=True)
    run = prepare(what, x)
    start = time.perf_counter()
    run()
    print(time.perf_counter() - start, flush=True)


def measure(what: str, path: Path) -> dict[str, float]:
    """Watches a process from outside, since NumPy lets no other thread run during the decomposition."""
    command = [sys.executable, __file__, "--measure", what, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "begins\n":
            raise SystemExit(f"the measurement of {what} did not begin.")
        before = most = anonymous_bytes(process.pid)
        while process.poll() is None:
            most = max(most, anonymous_bytes(process.pid))
            time.sleep(0.002)
        seconds = process.stdout.readline()
    if process.returncode:
        raise SystemExit(f"the measurement of {what} ended with {process.returncode}.")
    return {"seconds": float(seconds), "peak_bytes": most - before}


def compare(count: int, dim: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "embeddings.npy"
        make(path, count, dim)
        fits = count * dim * 8 < PEER_BYTES
        turns = [{what: measure(what, path) for what in ["summary", "svd"][: 1 + fits]} for _ in range(rounds)]
    row: dict[str, Any] = {"count": count, "dim": dim, "file_bytes": count * dim * 4}
    for what in turns[0]:
        row[f"{what}_seconds"] = statistics.median(turn[what]["seconds"] for turn in turns)
        row[f"{what}_peak_bytes"] = max(turn[what]["peak_bytes"] for turn in turns)
    if fits:
        ratios = sorted(turn["summary"]["seconds"] / turn["svd"]["seconds"] for turn in turns)
        row |= {"ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}
    return row


def show(row: dict[str, Any]) -> None:
    line = f"{row['count']:>10,} x {row['dim']:<5}{row['file_bytes'] / 2**20:8.0f} MiB{row['summary_seconds']:9.2f} s"
    line += f"{row['summary_seconds'] / row['count'] * 1e6:12.1f} s{row['summary_peak_bytes'] / 2**20:8.0f} MiB"
    if "ratio" in row:
        line += f"{row['svd_seconds']:9.2f} s{row['svd_peak_bytes'] / 2**20:8.0f} MiB{row['ratio']:9.2f}x"
        line += f"  ({row['lowest']:.2f} to {row['highest']:.2f})"
    else:
        line += f"{'-':>11}{'-':>12}{'-':>10}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="embeddings")
    parser.add_argument("--dims", type=int, nargs="+", default=[384], help="dimensions (default 384)")
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure each (default 3)")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure_here(*args.measure)
        return
    if sys.platform != "linux":
        raise SystemExit("memory is read from /proc/PID/status, which only Linux has.")
    print(f"torch {torch.__version__}, numpy {numpy.__version__}, {torch.get_num_threads()} threads; float32 in a file")
    print("svd: numpy.linalg.svd(x, compute_uv=False) in float64; ratio: time of summary to that, lower is better")
    print(f"\n{'embeddings':18}{'file':>12}{'summary':>11}{'per million':>14}{'peak':>12}", end="")
    print(f"{'svd':>11}{'its peak':>12}{'ratio':>10}")
    rows = []
    for dim in args.dims:
        for count in args.counts:
            rows.append(compare(count, dim, args.rounds))
            show(rows[-1])
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
