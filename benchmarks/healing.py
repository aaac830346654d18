"""Time and peak memory of healing a file of vectors, by default a million of 384 dimensions.

    python benchmarks/healing.py [--count 1000000] [--dim 384]

The file is first made in parts. A separate process is measured, from its imports to the healed file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

MEASURED = """
import resource, sys, time
start = time.monotonic()
from sepnorm import heal
found = heal(sys.argv[1], method="whiten 0.5" if sys.argv[3] == "whiten" else None, out=sys.argv[2])
seconds = time.monotonic() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(f"{found.count:,} x {found.source.dim}: {found.chosen}, {seconds:.0f} s, peak memory {peak:.2f} GiB")
"""


def write_vectors(path: Path, count: int, dim: int) -> None:
    """Writes off-centre vectors of different scales in float32."""
    rng = numpy.random.default_rng(0)
    scale, mean = rng.uniform(0.2, 2, dim).astype("f4"), 3 * rng.standard_normal(dim).astype("f4")
    array = numpy.lib.format.open_memmap(path, "w+", "f4", (count, dim))
    for start in range(0, count, 50_000):
        stop = min(start + 50_000, count)
        array[start:stop] = rng.standard_normal((stop - start, dim), dtype="f4") * scale + mean
    array.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--folder", type=Path, help="where there is room for two such files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "vectors.npy"
        write_vectors(path, options.count, options.dim)
        for how in ("choose", "whiten"):
            out = Path(folder) / how
            subprocess.run([sys.executable, "-c", MEASURED, str(path), str(out), how], check=True)


if __name__ == "__main__":
    main()
