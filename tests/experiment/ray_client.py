"""A program that compares on a Ray cluster by ``sepnorm.compare``: ``ray_client.py WHAT FOLDER LAUNCHER``, prints JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import sepnorm


def scored(arm: Any, seed: int, folder: Path) -> dict[str, float]:
    """A made-up score by arm and seed; a file says which node made it."""
    address = "here"
    if "ray" in sys.modules:
        import ray

        address = ray.util.get_node_ip_address()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # nobody asked for a GPU
    (folder / "node.txt").write_text(address)
    return {"accuracy": 0.5 + 0.01 * seed + {"ln": 0.0, "bn": 0.2, "bn+ln": 0.1}[arm.norm] + 0.001 * (seed % 2)}


def failing(arm: Any, seed: int, folder: Path) -> dict[str, float]:
    if arm.norm == "bn" and seed == 1:
        raise ValueError("odd")
    return scored(arm, seed, folder)


def lost(arm: Any, seed: int, folder: Path) -> dict[str, float]:
    """On the second node this waits until that is killed."""
    found = scored(arm, seed, folder)
    while (folder / "node.txt").read_text().endswith(".2"):
        time.sleep(0.1)
    return found


def main() -> None:
    what, folder, launcher = sys.argv[1:]
    run, seeds = {"failing": (failing, 3), "lost": (lost, 2), "auto": (scored, "auto")}[what]
    told = ""
    try:
        sepnorm.compare(
            run, ["ln", "bn", "bn+ln"], seeds, folder, metrics={"accuracy": True}, launcher=launcher, quiet=True
        )
    except sepnorm.SepNormError as error:
        told = str(error)
    from ray_nodes import below

    print(json.dumps({"told": told, "left": below(os.getpid())}))


if __name__ == "__main__":
    main()
