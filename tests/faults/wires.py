"""Opens folders in a process of its own, each in a fork of it, with wires that tell what is run, read or asked."""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from several import peak_of_memory
from whole_files import command

import sepnorm

HERE = Path(__file__).parent
MEMORY = 3 * 2**29  # bytes that opening a folder may take at most, libraries included
PATIENCE = 20  # seconds, by far more than it takes
TEXTS = ["the cat sat on the mat", "a dog", "b and c and d", "number 7", "e"]
SMILES = ["C1CCC1O", "N1CCCCN1", "CCC1CCCC1OO"]


class Watch:
    """Tells which files are opened, by whatever means: of what compiled libraries open, Python hears nothing. On Linux."""

    OPENED = 0x20

    def __init__(self) -> None:
        self.places: dict[int, str] = {}
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.file = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if sys.platform == "linux" else -1

    def over(self, place: str) -> None:
        """From now on, over a file, or a folder with all that is in it."""
        for path in [place, *(str(path) for path in Path(place).rglob("*") if path.is_dir())] if self.file >= 0 else []:
            number = self.libc.inotify_add_watch(self.file, os.fsencode(path), ctypes.c_uint32(self.OPENED))
            assert number >= 0, (path, os.strerror(ctypes.get_errno()))
            self.places[number] = path

    def opened(self) -> list[str]:
        """What was, since it was last asked for."""
        found = []
        with suppress(BlockingIOError):
            while self.file >= 0:
                data = os.read(self.file, 65536)
                while data:
                    number, _, _, length = struct.unpack_from("iIII", data)
                    name, data = data[16 : 16 + length].rstrip(b"\0"), data[16 + length :]
                    found.append(str(Path(self.places.get(number, "?"), os.fsdecode(name))))
        return sorted(set(found))

    def nothing(self) -> None:
        for number in self.places:
            self.libc.inotify_rm_watch(self.file, number)
        self.opened()
        self.places = {}


class Asked(BaseException):
    """Somebody would have been, over the network or before the machine."""


class Wires:
    """While they are ``armed``: what is run out of a folder, is imported by an evil name, started, unpickled or asked for."""

    STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn")
    ASKS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind")

    def __init__(self, ground: str) -> None:
        self.ground, self.armed = ground, False  # all that is hostile is below the ground
        self.told: set[str] = set()
        self.note = -1  # a file for what is told, since the process may be stopped
        self.watch = Watch()
        sys.addaudithook(self._hear)
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, *others: object) -> None:
        self._imported(name)

    def _imported(self, name: str) -> None:
        if self.armed and any(part.startswith("evil") for part in name.split(".")):
            self._tell(f"imports {name}")

    def _tell(self, what: str) -> None:
        if what not in self.told:
            self.told.add(what)
            if self.note >= 0:
                os.write(self.note, f"{what!s}\n".encode())

    def _inside(self, path: object) -> bool:
        path = os.fsdecode(path) if isinstance(path, str | bytes) else ""
        return path.startswith(self.ground) and not path.startswith(f"{self.ground}/packages/")

    def _hear(self, event: str, words: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event == "import":
            self._imported(str(words[0]))
        elif event == "exec" and self._inside(getattr(words[0], "co_filename", None)):
            self._tell(f"runs {words[0].co_filename}")
        elif event == "compile" and self._inside(words[1]):
            self._tell(f"compiles {words[1]}")
        elif event == "ctypes.dlopen" and self._inside(words[0]):
            self._tell(f"loads {words[0]}")
        elif event == "pickle.find_class":
            self._tell(f"unpickles {words[0]}.{words[1]}")
        elif event == "open" and self._inside(words[0]) and "/outside/" in os.fsdecode(words[0]):
            self._tell(f"opens {os.path.realpath(os.fsdecode(words[0]))}")
        elif event in self.STARTS:
            self._tell(f"starts a process by {event}: {words[0]!r}")
        elif event in self.ASKS:
            where = words[-1] if event in ("socket.connect", "socket.sendto", "socket.bind") else words[0]
            self._tell(f"asks {where!r} by {event}")
            raise Asked(where)  # or else it would be tried again and again
        elif event == "builtins.input":
            self._tell("asks who sits before the machine")
            raise Asked


def serve() -> None:
    """Takes what to open as JSON on stdin; gives what became of each on stdout, a line each."""
    task = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    wires = Wires(task["ground"])
    torch.set_num_threads(1)
    for job in task["warm"]:  # whatever is imported now need not be imported in each fork
        carried_out(job, wires)
    for job in task["jobs"]:
        print(json.dumps(forked(job, wires, Path(task["ground"]))), file=answer, flush=True)


def forked(job: dict[str, Any], wires: Wires, ground: Path) -> dict[str, Any]:
    for place in job["watched"]:
        wires.watch.over(place)
    note, mark, told = ground / "note.json", ground / "mark", ground / "told.txt"
    note.unlink(missing_ok=True)
    stopped, begun = "", time.monotonic()
    wires.note = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    child = os.fork()
    if child == 0:
        wires.armed = True
        note.write_text(json.dumps(carried_out(job, wires)))
        os._exit(0)
    os.close(wires.note)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() - begun > job.get("patience", PATIENCE):
            stopped = f"does not end within {PATIENCE} s"
        elif _memory(child) > MEMORY:
            stopped = f"takes more than {MEMORY / 2**30} GiB"
        if stopped:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.005)
    done = json.loads(note.read_text()) if note.is_file() else {"said": "", "peak": 0}
    found = {*told.read_text().splitlines(), *(f"opens {path}" for path in wires.watch.opened()), stopped} - {""}
    if not note.is_file() and not stopped:
        found.add("ends the process")
    if mark.exists():
        found.add("runs what it was given")
        mark.rmdir()
    wires.watch.nothing()
    return done | {"told": sorted(found), "seconds": time.monotonic() - begun}


def _memory(process: int) -> int:
    """What a process holds now, in bytes."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
    return 0


def carried_out(job: dict[str, Any], wires: Wires) -> dict[str, Any]:
    """A command, ``sepnorm.load`` or ``open_encoder``: how it ended."""
    from sepnorm import SepNormError, load

    os.chdir(job["folder"])
    if job["offline"]:  # read once, when it was imported
        import huggingface_hub.constants

        huggingface_hub.constants.HF_HUB_OFFLINE = True
    kept, sys.stderr = sys.stderr, io.StringIO()
    done: dict[str, Any] = {}
    try:
        if job["call"] == "command":
            done["code"] = command(job["words"])
        elif job["call"] == "load":
            done["class"] = type(load(job["words"][0])).__name__
        elif job["call"] == "trip":
            TRIPS[job["words"][0]][0](Path(job["words"][1]))
        else:
            done["vectors"] = _vectors(job["words"][0])
    except SepNormError as error:
        done["refused"] = str(error)
    except BaseException as error:
        done["raised"] = f"{type(error).__name__}: {error}"[:2000]
    wires.armed = False
    done |= {"said": sys.stderr.getvalue(), "peak": peak_of_memory()}
    sys.stderr = kept
    return done


def _vectors(target: str) -> list[list[float]]:
    """What a folder gives for fixed texts, pixels or molecules."""
    from sepnorm.domains.encoders import open_encoder

    encoder = open_encoder(target)
    if encoder.kind == "text":
        batch = encoder.prepare(TEXTS)
    elif encoder.kind == "molecules":
        batch = encoder.prepare(graphs(encoder.model.config.features))
    else:
        images, name = pixels(len(encoder.prepare.mean), *encoder.prepare.size), encoder.prepare.name
        batch = images if name is None else {name: images}
    with encoder.evaluating():
        return encoder.encode(batch).cls.tolist()


def pixels(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 3 * int(np.prod(shape))).sin().reshape(3, *shape)


def graphs(features: str) -> list[Any]:
    from sepnorm.domains.molecules.features import featurise

    return featurise(SMILES, features, max_atoms=50)[0]


#: What the wires are tried with: what is done, and what is to be told.
TRIPS: dict[str, tuple[Callable[[Path], object], str]] = {
    "unpickling": (lambda place: torch.load(place / "bomb.bin", weights_only=False), "unpickles posix.mkdir"),
    "unpickled code": (lambda place: torch.load(place / "bomb.bin", weights_only=False), "runs what it was given"),
    "an import": (lambda place: __import__("importlib").import_module("evil_on_path"), "imports evil_on_path"),
    "a file that is run": (lambda place: __import__("runpy").run_path(str(place / "evil.py")), "runs "),
    "a connection": (lambda place: __import__("socket").create_connection(("evil.invalid", 80)), "asks 'evil.invalid'"),
    "a process": (lambda place: subprocess.run(["true"], check=True), "starts a process by subprocess.Popen"),
    "a shell": (lambda place: os.system("true"), "starts a process by os.system"),
    "a question": (lambda place: input(), "asks who sits before the machine"),
    "a file elsewhere": (lambda place: (place / "vocab.txt").read_text(), "opens "),
    "memory": (lambda place: torch.ones(2**29), "takes more than 1.5 GiB"),
    "waiting": (lambda place: time.sleep(60), "does not end"),
}
if sys.platform == "linux":
    from safetensors.torch import load_file

    TRIPS["weights elsewhere"] = (lambda place: load_file(place / "model.safetensors"), "opens ")


def in_a_process(folder: Path, call: str, given: str = "", before: str = "", module: str = "wires") -> str:
    """What a function of these tests prints, called where it may read nothing but what is below a folder."""
    before_ours = filter(None, [os.environ.get("PYTHONPATH")])
    paths = [str(folder / "packages"), *before_ours, str(Path(sepnorm.__file__).parents[1])]
    settings = {
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0",  # or else nobody would be asked
        "HTTPS_PROXY": "http://evil.invalid",  # so that it is not tried whether the hub answers
        "TMPDIR": str(folder / "scratch"),
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    code = (
        f"import sys; sys.path[:] = {[str(HERE), str(HERE.parent)]} + [path for path in sys.path if path]\n{before}\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", f"{code}import {module} as tests; tests.{call}"],
        input=given,
        capture_output=True,
        text=True,
        env=os.environ | settings,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
