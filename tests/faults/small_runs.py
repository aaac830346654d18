"""Runs of the command line as processes of their own, small ones of each domain, and whether two of them gave the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from whole_files import IMAGES, MOLECULES, TEXT, settings

_OFTEN = ("checkpoints=11", "norm=bn+ln", "sites=all")
#: What a run of each domain needs of the whole files, and its words; it is saved every second of its 24 steps.
RUNS = {
    "images": (("pictures",), ["--data", "pictures", *settings(*IMAGES, "epochs=40", "smallest_crop=0.5", *_OFTEN)]),
    "text": (
        ("bert", "lines.txt", "sets"),
        ["--data", "lines.txt", *settings(*TEXT, "epochs=40", "test=sets", *_OFTEN)],
    ),
    "molecules": (("s.csv",), ["--data", "s.csv", *settings(*MOLECULES, "epochs=40", *_OFTEN)]),
}


def start(domain: str, folder: Path, out: str) -> subprocess.Popen[str]:
    """Begins a run, or goes on with it."""
    words = ["pretrain", domain, *RUNS[domain][1], "--max-steps", "24", "--out", out, "--resume"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "sepnorm", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def spent(process: subprocess.Popen[str]) -> float:
    """Seconds that a process has computed: a busy machine changes them little."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until(process: subprocess.Popen[str], seconds: float) -> bool:
    """Waits until a process has computed so long; whether it is still at work then."""
    while process.poll() is None and spent(process) < seconds:
        time.sleep(0.01)
    return process.poll() is None


def wait_for_checkpoint(process: subprocess.Popen[str], run: Path) -> None:
    deadline = time.monotonic() + 600
    while not list((run / "checkpoints").glob("checkpoint-*/complete")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.01)


def finish(process: subprocess.Popen[str]) -> None:
    said = process.communicate(timeout=1200)[1]
    assert process.returncode == 0, said


def outcome(run: Path) -> tuple[dict[str, bytes], list[object], dict[str, float]]:
    """Weights to the bit, losses, and metrics but for speed."""
    weights = {path.name: path.read_bytes() for path in (run / "model").rglob("*.safetensors")}
    assert weights
    metrics = json.loads((run / "metrics.json").read_text())
    kept = {name: value for name, value in metrics.items() if not name.endswith("_per_second")}
    return weights, json.loads((run / "losses.json").read_text()), kept
