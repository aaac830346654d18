"""Diagnose every file of embeddings in a folder, worst first, and write a page for the worst.

    python diagnose_folder.py FOLDER

FOLDER contains .npy, .npz, .parquet or .csv files. Without it, three files are made up: a healthy one, one in a narrow
cone, and one along a few directions. Prints a row for each file, advice for the worst, and the path of its page.
"""

import sys
from pathlib import Path

import numpy as np

from sepnorm.domains.diagnosis import diagnose
from sepnorm.report.diagnosis_page import write_diagnosis


def make_up(folder: Path) -> Path:
    random = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    healthy = random.normal(size=(500, 64)).astype("float32")
    np.save(folder / "healthy.npy", healthy)
    np.save(folder / "cone.npy", healthy + 2)
    np.save(folder / "few-directions.npy", healthy[:, :6] @ random.normal(size=(6, 64)).astype("float32"))
    return folder


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else make_up(Path("embeddings"))
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in (".npy", ".npz", ".parquet", ".csv"))
    found = [diagnose(str(file)) for file in files]
    found.sort(key=lambda each: each.embeddings.uniformity, reverse=True)  # 0 is a single point, -4 spread evenly

    print(f"{'file':20} {'verdict':17} {'mean cosine':>11} {'uniformity':>10} {'effective rank':>15}")
    for each in found:
        s = each.embeddings
        rank = f"{s.effective_rank:.1f} of {s.available}"
        print(
            f"{Path(each.target).name:20} {each.verdict.level:17} {s.mean_cosine:11.3f} {s.uniformity:10.2f} {rank:>15}"
        )

    worst = found[0]
    print(f"\n{worst.target}: {worst.verdict.reason}", *worst.verdict.advice, sep="\n- ")
    print(f"\nPage: {write_diagnosis('worst.html', [worst])}")


if __name__ == "__main__":
    main()
