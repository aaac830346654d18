"""Two hosts with addresses of their own, joined by a wire that can be slow or cut: network namespaces of this machine.

The wire are two TUN devices and a thread that carries packets from one to the other, since not every kernel has ``tc netem``.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001


class Wire:
    """Carries packets between two devices, each ``delay`` seconds late."""

    def __init__(self, names: Sequence[str]) -> None:
        self.delay = 0.0
        self._ends = []
        for name in names:
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            self._ends.append(end)
            fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
        self._open = True
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []
        number = 0
        while self._open:
            wait = min(0.05, max(0.0, under_way[0][0] - time.monotonic())) if under_way else 0.05
            for end in select.select(self._ends, [], [], wait)[0]:
                with suppress(OSError):  # a device that is down
                    packet = os.read(end, 65536)
                    number += 1
                    other = self._ends[1 - self._ends.index(end)]
                    heapq.heappush(under_way, (time.monotonic() + self.delay, number, other, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(under_way)
                with suppress(OSError):
                    os.write(end, packet)

    def close(self) -> None:
        self._open = False
        self._thread.join()
        for end in self._ends:
            os.close(end)


class Nodes:
    """The two hosts. ``start`` runs a command by torchrun in one of them."""

    def __init__(self, wire: Wire, names: Sequence[str], port: int) -> None:
        self.wire, self.names, self._port = wire, names, port
        self.started: list[subprocess.Popen] = []
        self._said: dict[int, Path] = {}

    def start(self, node: int, words: Sequence[str], folder: Path, *options: str) -> subprocess.Popen:
        """``words`` are those behind ``python``; ``options`` are torchrun's, ``--nnodes 2`` among them."""
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"10.9.8.1:{self._port}", "--rdzv-id", "run"]
        # torchrun knows its host by the name of the machine, which is that of both.
        own = ["--nproc-per-node", "1", "--local-addr", f"10.9.8.{node + 1}"]
        own += ["--rdzv-conf", f"is_host={1 - node},join_timeout=120,last_call_timeout=2"]
        command = [
            "ip",
            "netns",
            "exec",
            self.names[node],
            sys.executable,
            "-m",
            "torch.distributed.run",
            *meeting,
            *own,
        ]
        surroundings = {"GLOO_SOCKET_IFNAME": self.names[node], "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        said = folder / f"said-{len(self.started)}.txt"
        with open(said, "w") as file:
            process = subprocess.Popen(
                [*command, *options, *words],
                cwd=folder,
                env=os.environ | surroundings,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        self._said[process.pid] = said
        return process

    def said(self, process: subprocess.Popen) -> str:
        """What torchrun and the processes that it started have said up to now."""
        return self._said[process.pid].read_text()

    def both(self, words: Sequence[str], folder: Path, *options: str) -> list[subprocess.Popen]:
        return [self.start(node, words, folder, *(options or ("--nnodes", "2"))) for node in (0, 1)]

    def cut(self, is_cut: bool = True) -> None:
        """Pulls the cable out of the second host, or puts it in again."""
        _ip("-n", self.names[1], "link", "set", self.names[1], "down" if is_cut else "up")

    @staticmethod
    def kill(process: subprocess.Popen) -> None:
        """As if the host had lost its power: torchrun and what it started."""
        for child in _below(process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.wait()


def _below(pid: int) -> list[int]:
    """A process and all that it started, whatever groups they are in."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [each for child in path.read_text().split() for each in _below(int(child))]
    return found


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def two_nodes(port: int) -> Iterator[Nodes]:
    """Raises ``OSError`` or ``CalledProcessError`` where this machine does not let us."""
    names = [f"sepnorm{os.getpid() % 100_000}{letter}" for letter in "ab"]
    wire: Wire | None = None
    nodes: Nodes | None = None
    try:
        for name in names:
            _ip("netns", "add", name)
        wire = Wire(names)
        for number, name in enumerate(names, 1):
            _ip("link", "set", name, "netns", name)
            for device in ("lo", name):
                _ip("-n", name, "link", "set", device, "up")
            _ip("-n", name, "addr", "add", f"10.9.8.{number}/24", "dev", name)
        nodes = Nodes(wire, names, port)
        yield nodes
    finally:
        for process in nodes.started if nodes is not None else []:
            if process.poll() is None:
                Nodes.kill(process)
        if wire is not None:
            wire.close()  # the devices go with it
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
