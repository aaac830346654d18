"""Workers that run the command line in themselves, case after case, and look at what each left behind."""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from damaging import put_odd_file
from whole_files import command, copy

LIMIT = 60  # seconds that a case may compute
PATIENCE = 900  # seconds that it may take, on a machine that others use too
MEMORY = 2**30  # bytes that a case may take beyond those of the libraries
LIFE = 1000  # cases after which a worker makes room for a new one, whose memory is not in pieces
_CACHES = (".cache", ".ses")  # of onnxscript and ONNX Runtime
#: What may be said of a case; the first two are as it should be.
VERDICTS = ("refused", "accepted", "traceback", "unclear", "hang", "crash", "touched", "lost")


@dataclass
class Case:
    """A command, the files that it needs, and which of these have another content; it may write below ``out`` only."""

    number: int
    kind: str
    words: list[str]
    needed: tuple[str, ...] = ()
    contents: dict[str, bytes] = field(default_factory=dict)
    out: str = "out"
    odd: dict[str, str] = field(default_factory=dict)  #: pipes and links in the place of files


@dataclass
class Result:
    number: int
    kind: str
    verdict: str
    said: str = ""
    seconds: float = 0.0


def run_case(case: Case, whole: Path, folder: Path, call: Callable[[list[str]], tuple[int, str]]) -> Result:
    """Sets a case up in ``folder``, which is removed after; ``call`` gives the exit code and what went to stderr."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / case.out).mkdir(parents=True)
    if case.out in case.needed:
        (folder / case.out).rmdir()
    copy(whole, case.needed, folder)
    for name, content in case.contents.items():
        (folder / name).write_bytes(content)
    for name, kind in case.odd.items():
        put_odd_file(folder / name, kind)
    for name in ("results.json", "e.npy", "other.txt"):
        if not (folder / case.out / name).exists():
            (folder / case.out / name).write_bytes(b"earlier " + name.encode())
    before, earlier = _outside(folder, case.out), _contents(folder / case.out)
    begun = time.monotonic()
    try:
        code, said = call(case.words)
        verdict = _judge(code, said)
        if _outside(folder, case.out) != before:
            verdict = "touched"
        elif _is_lost(earlier, _contents(folder / case.out), verdict == "refused"):
            verdict = "lost"
        return Result(case.number, case.kind, verdict, said, time.monotonic() - begun)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge(code: int, said: str) -> str:
    if "Traceback (most recent call last)" in said:
        return "traceback"
    if code == 0:
        return "accepted"
    # one sentence, in the last line that was said
    lines = said.strip("\n").split("\n")
    single = lines[-1].startswith("Error: ") and sum(line.startswith("Error: ") for line in lines) == 1
    return "refused" if single and code in (1, 2) else "unclear"


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): _digest(path) for path in folder.rglob("*") if path.is_file()}


def _outside(folder: Path, out: str) -> dict[str, bytes]:
    """What lies beside the folder that may be written to."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {name: _digest(path) for name, path in found.items() if name != out and not name.startswith(f"{out}/")}


def _digest(path: Path) -> bytes:
    return hashlib.blake2b(path.read_bytes()).digest() if path.is_file() else b""


def _is_lost(earlier: dict[str, bytes], now: dict[str, bytes], refused: bool) -> bool:
    """Whether a refused command changed or removed something, or any command a file that is none of its own."""
    names = set(earlier) if refused else {"other.txt"}
    names = {name for name in names if Path(name).name != ".lock"}
    if any(name.startswith("runs/") for name in names):  # tables and page of a comparison are made anew from its runs
        names = {name for name in names if name.startswith("runs/") or name == "other.txt"}
    return any(now.get(name) != earlier[name] for name in names)


# ---- in a worker --------------------------------------------------------------------------------------------------------


def _serve(pipe: Connection, make: Callable[[int], Case], whole: Path, place: Path) -> None:
    """Takes numbers of cases, gives results."""
    place.mkdir(parents=True)
    for name in ("home", "tmp", "cache"):
        (place / name).mkdir()
    os.environ |= {"HOME": str(place / "home"), "HF_HOME": str(place / "cache"), "TMPDIR": str(place / "tmp")}
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place / "cache")
    tempfile.tempdir = None
    said = open(place / "said", "w+b", buffering=0)  # noqa: SIM115
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(said.fileno() if number == 2 else os.open(os.devnull, os.O_WRONLY), number)
    faulthandler.enable()
    faulthandler.register(signal.SIGXCPU, chain=True)  # says where it was, then ends
    _warm_up()
    ear = Ear(place)

    def call(words: list[str]) -> tuple[int, str]:
        said.seek(0)
        said.truncate()
        old = os.getcwd()
        os.chdir(place / "case")
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + LIMIT, resource.RLIM_INFINITY))
        _leave_room()
        ear.listening = True
        try:
            with warnings.catch_warnings():  # what a command changes there ends with its process
                code = command(words)
        except BaseException:
            code = 1
            traceback.print_exc()
        finally:
            ear.listening = False
            faulthandler.cancel_dump_traceback_later()
            os.chdir(old)
            sys.stdout.flush()
            sys.stderr.flush()
        said.seek(0)
        return code, said.read().decode("utf-8", "replace")

    try:
        while True:
            case = make(pipe.recv())
            ear.heard.clear()
            result = run_case(case, whole, place / "case", call)
            left = [
                str(path) for name in ("home", "tmp") for path in (place / name).iterdir() if path.name not in _CACHES
            ]
            if ear.heard or left:
                result.verdict, result.said = "touched", f"{sorted({*ear.heard, *left})[:3]} {result.said}"
                for name in ("home", "tmp"):
                    shutil.rmtree(place / name)
                    (place / name).mkdir()
            pipe.send(result)
    except EOFError:
        return


def _leave_room() -> None:
    """So much memory for the next command, on top of what the commands before it left: each would have a process of its own."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))


def _warm_up() -> None:
    """Imports what commands import, so that no case is charged for it."""
    import torch

    names = "datasets plotly.graph_objects pyarrow.csv pyarrow.parquet rdkit.Chem sentence_transformers sklearn.linear_model"
    for (
        name
    ) in f"{names} transformers sepnorm.commands.app sepnorm.domains.comparison sepnorm.domains.evaluation".split():
        importlib.import_module(name)
    torch.set_num_threads(1)


#: Events of Python that change files: which of their arguments are paths, and which the folders these are in.
_CHANGES = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
}


class Ear:
    """Hears what Python writes, removes, renames or starts outside of a place, while it listens."""

    def __init__(self, place: Path) -> None:
        self.place, self.listening = str(place.resolve()), False
        self.heard: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.listening:
            return
        if event == "open" and not isinstance(args[0], int):
            writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
            if any(sign in (args[1] or "") for sign in "wax+") or (isinstance(args[2], int) and args[2] & writing):
                self._note(event, args[0])
        elif event in _CHANGES:
            for path, folder in _CHANGES[event]:
                self._note(event, args[path], args[folder])
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            self.heard.append(f"{event} {args[0]!r}")

    def _note(self, event: str, path: Any, folder: int = -1) -> None:
        inside = os.getcwd() if folder < 0 else os.readlink(f"/proc/self/fd/{folder}")
        full = os.path.join(inside, os.fsdecode(path))
        if event == "open":
            full = os.path.realpath(full)
        else:  # these change a link, not what it leads to
            full = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
        if not full.startswith((self.place, "/dev/")):
            self.heard.append(f"{event} {full}")


# ---- for the parent -----------------------------------------------------------------------------------------------------


class Worker:
    """A process that does cases; one that hangs or dies is replaced."""

    def __init__(self, make: Callable[[int], Case], whole: Path, place: Path) -> None:
        self.make, self.whole, self.place = make, whole, place
        self.started = self.done = 0
        self._start()

    def _start(self) -> None:
        self.started += 1
        self.done = 0
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        folder = self.place / str(self.started)
        self.process = context.Process(target=_serve, args=(theirs, self.make, self.whole, folder), daemon=True)
        self.process.start()
        theirs.close()

    def do(self, number: int) -> Result:
        if self.done >= LIFE:
            self.close()
            self._start()
        self.done += 1
        begun = time.monotonic()
        try:
            self.pipe.send(number)
            if self.pipe.poll(2 * PATIENCE):  # the first one waits for imports
                return self.pipe.recv()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            pass
        self.process.join(5)
        code = self.process.exitcode
        hang = code in (None, -signal.SIGXCPU) or time.monotonic() - begun > PATIENCE
        folder = self.place / str(self.started)
        said = (folder / "said").read_text(errors="replace") if (folder / "said").exists() else ""
        self.close()
        self._start()
        return Result(number, self.make(number).kind, "hang" if hang else "crash", f"exit code {code}: {said}")

    def close(self) -> None:
        self.pipe.close()
        self.process.join(5)
        self.process.kill()
        self.process.join()
        shutil.rmtree(self.place / str(self.started), ignore_errors=True)


@contextmanager
def workers(count: int, make: Callable[[int], Case], whole: Path, place: Path) -> Iterator[list[Worker]]:
    found = [Worker(make, whole, place / f"worker{number}") for number in range(count)]
    try:
        yield found
    finally:
        for worker in found:
            worker.close()
