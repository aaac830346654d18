"""Memory while molecules are streamed: read, made graphs of in other processes, and trained on by a small Graphormer.

    python benchmarks/streaming.py FILE [--read 1000000] [--trained 1000000]

FILE has SMILES, as .smi.gz or .parquet. First molecules are read and made graphs of, then a model is trained on molecules of the
same stream. Prints the resident memory of this process and of its workers on the way (Linux), and molecules per second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from sepnorm.domains.molecules.config import PRESETS
from sepnorm.domains.molecules.recipe import MoleculeRecipe

SMALL: dict[str, Any] = dict(
    width=16, depth=1, heads=2, feed_forward=16, features="zinc", batch_size=256, train_molecules=None
)
BUFFER = 8192


def resident() -> str:
    """MiB of this process and of its workers; pages that they share count for each."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    sizes = [count * os.sysconf("SC_PAGE_SIZE") / 2**20 for count in pages]
    return f"{sizes[0]:,.0f} MiB and {max(sizes[1:], default=0):,.0f} MiB in the largest of {len(sizes) - 1} workers"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--read", type=int, default=1_000_000, help="molecules that are read alone (default 1000000)")
    parser.add_argument("--trained", type=int, default=1_000_000, help="molecules trained on (default 1000000)")
    given = parser.parse_args()
    steps = given.trained // SMALL["batch_size"]
    changes = SMALL | {"data": given.file, "task": "pretrain", "stream": BUFFER, "max_rejected": 0.2}
    config = PRESETS["demo"].changed(changes | {"max_steps": steps, "checkpoints": 0, "monitor": 0})
    torch.set_num_threads(1)
    recipe = MoleculeRecipe(config)
    assert recipe.stream is not None
    source, read, began = recipe.stream.open(0), 0, time.perf_counter()
    while read < given.read:
        read += len(source.take(BUFFER))
        if read // BUFFER in (1, 2) or read % (16 * BUFFER) == 0 or read >= given.read:
            print(f"{read:9,} molecules read: {resident()}, {read / (time.perf_counter() - began):,.0f}/s", flush=True)
    source.close()
    marks = [steps * number // 40 for number in range(1, 40)] + [steps]

    def report(step: int, _: int, __: float, rate: float) -> None:
        if step >= marks[0]:
            print(f"{step * SMALL['batch_size']:9,} molecules trained on: {resident()}, {rate:,.0f}/s", flush=True)
            marks[:] = [mark for mark in marks if mark > step] or [steps + 1]

    with tempfile.TemporaryDirectory() as folder:
        recipe.train(config, Path(folder), report)


if __name__ == "__main__":
    main()
