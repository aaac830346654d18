"""A Ray cluster of two nodes on this machine, with a core each, started as a user would: by ``ray start``."""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
NODE = [*START, "--num-cpus", "1", "--object-store-memory", "80000000"]


def environment() -> dict[str, str]:
    """Of a cluster and of commands that use it: where Ray is, a token of its own, and nothing is sent to Ray's makers."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / ".ray")])
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return os.environ | {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"} | token


class Nodes:
    """Where ``hidden`` is given, the second node sees an empty folder there, if the system lets us do that."""

    def __init__(self, hidden: Path) -> None:
        self.environment = environment()
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))  # names of sockets are short
        apart = ["unshare", "--mount", "--map-root-user"]
        self.apart = (
            subprocess.run([*apart, "mount", "-t", "tmpfs", "none", hidden], capture_output=True).returncode == 0
        )
        hide = [*apart, "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden)] if self.apart else []
        loop = f"127.{random.randrange(1, 255)}.{random.randrange(255)}"  # of several clusters each has its addresses
        self.hosts = {f"{loop}.1", f"{loop}.2"}
        head = ["--head", "--port", "0", "--include-dashboard=false", "--temp-dir", str(self.folder)]
        self.processes = [self._start([*NODE, *head, "--node-ip-address", f"{loop}.1"], "head")]
        found = re.search(rf"--address='({loop}\.1:\d+)'", (self.folder / "head.log").read_text())
        assert found is not None
        self.address = found[1]
        self.processes += [
            self._start([*hide, *NODE, "--address", self.address, "--node-ip-address", f"{loop}.2"], "second")
        ]

    def _start(self, words: list[str], name: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{name}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out, env=self.environment, start_new_session=True)
        deadline = time.monotonic() + 300
        while b"Ray runtime started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(0.2)
        return process

    def workers(self) -> list[int]:
        """Processes of these nodes that run something of ours."""
        return [
            pid
            for pid in below(*(process.pid for process in self.processes))
            if _title(pid).startswith("ray::_run_here")
        ]

    def kill_second(self) -> None:
        """As if it had lost its power."""
        second = self.processes[1]
        for pid in (second.pid, *below(second.pid)):
            with suppress(ProcessLookupError):  # it went with its parent
                os.kill(pid, signal.SIGKILL)
        second.wait()

    def stop(self) -> None:
        left = below(*(process.pid for process in self.processes))
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(60)
        for pid in left:  # what did not go with its node
            if _title(pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def below(*parents: int) -> list[int]:
    """Children, their children, and so on."""
    found: list[int] = []
    for parent in parents:
        try:
            listed = [path.read_text().split() for path in Path(f"/proc/{parent}/task").glob("*/children")]
        except OSError:
            continue
        children = [int(child) for each in listed for child in each]
        found += [*children, *below(*children)]
    return found


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
