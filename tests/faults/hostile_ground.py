"""The ground on which hostile folders are made and opened, and what is said of what became of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from harmful_folders import Made
from harmless_folders import change, make_bases, write
from test_hostile_files import EVIL, torch_bomb
from whole_files import WORDS
from wires import MEMORY, PATIENCE, in_a_process

#: Packages that transformers uses where they are installed, and that harmful settings lead to.
PACKAGES = {
    "kernels/__init__.py": """
import os
class Any:
    def __init__(self, *words, **options): ...
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return Any
def get_kernel(*words, **options): os.makedirs("MARK", exist_ok=True)
def use_kernel_forward_from_hub(*words, **options): return lambda thing: thing
use_kernelized_func = use_kernel_func_from_hub = replace_kernel_forward_from_hub = use_kernel_forward_from_hub
get_local_kernel = load_kernel = get_locked_kernel = has_kernel = kernelize = get_kernel
""",
    "kernels-0.18.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n",
    "peft/__init__.py": """
import os
class PeftModel:
    @classmethod
    def from_pretrained(cls, *words, **options): os.makedirs("MARK", exist_ok=True)
class PeftConfig(PeftModel): ...
def get_peft_model(*words, **options): os.makedirs("MARK", exist_ok=True)
inject_adapter_in_model = get_peft_model
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return type(name, (), {})
""",
    "peft-0.19.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: peft\nVersion: 0.19.0\n",
    "faiss/__init__.py": "",
    "faiss-1.12.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: faiss\nVersion: 1.12.0\n",
    "evil_on_path.py": EVIL,
}


class Ground:
    """Where all folders of these tests are: harmless ones, those that are made of them, and one outside of all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark, self.outside = folder, folder / "mark", folder / "cases/outside"
        self.expected = self._bases(folder / "bases")
        for name, text in PACKAGES.items():
            write(folder / "packages" / name, text.replace("MARK", str(self.mark)))
        for name in ("scratch", "home"):
            (folder / name).mkdir(exist_ok=True)
        write(
            folder / "lines.txt", "\n".join(f"{a} {b} {c}" for a in WORDS[:3] for b in WORDS[3:6] for c in WORDS[6:9])
        )
        rows = [
            f"{n * 7 % 11}\t{' '.join(WORDS[: n % 6 + 1])}\t{' '.join(WORDS[n % 5 : n % 5 + 3])}" for n in range(20)
        ]
        write(folder / "sets/stsb.tsv", "\n".join(["score\tsentence1\tsentence2", *rows]))
        self._furnish(folder / "bases")
        (self.outside / "bomb.bin").write_bytes(torch_bomb(self.mark))
        self.made: list[tuple[str, str, Made]] = []
        self.jobs: list[dict[str, Any]] = []

    def _bases(self, folder: Path) -> dict[str, np.ndarray]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # norms are not calibrated here
            return make_bases(folder)

    def _furnish(self, bases: Path) -> None:
        """Outside is whatever a setting could lead to, whole, but with other words."""
        shutil.copytree(bases / "plain", self.outside)
        for name in ("roberta_words/vocab.json", "roberta_words/merges.txt", "sentences/modules.json"):
            shutil.copy(bases / name, self.outside)
        shutil.copy(bases / "saved/sepnorm.safetensors", self.outside)
        shutil.copytree(bases / "sentences/1_Pooling", self.outside / "1_Pooling")
        words = (bases / "words/vocab.txt").read_text().split()
        write(self.outside / "vocab.txt", "\n".join(words[:5] + words[:4:-1]) + "\n")
        shutil.copy(self.outside / "tokenizer.json", self.outside / "tokenizer.4.0.0.json")
        write(self.outside / "idf.json", dict.fromkeys(words, 1.0))
        write(self.outside / "model.gguf", "GGUF")
        write(self.outside / "evil.py", EVIL.replace("MARK", str(self.mark)))

    def make(self, made: Made, name: str) -> Path:
        """A folder as described, next to the one outside."""
        place = self.outside.parent / name
        shutil.copytree(self.folder / "bases" / made.base, place)
        write(place / "evil.py", EVIL.replace("MARK", str(self.mark)))
        for file in made.gone:
            (place / file).unlink()
        for file in made.pickles:
            (place / file).parent.mkdir(exist_ok=True)
            (place / file).write_bytes(torch_bomb(self.mark))
        for file, content in made.changes.items():
            text = json.loads(json.dumps(content).replace("OUTSIDE", str(self.outside)))
            (write if isinstance(content, str) else change)(place / file, text)
        for file, target in made.links.items():
            if (place / file).is_dir():
                shutil.rmtree(place / file)
            (place / file).unlink(missing_ok=True)
            (place / file).symlink_to(target.replace("OUTSIDE", str(self.outside)))
        for file in made.pipes:
            (place / file).unlink(missing_ok=True)
            os.mkfifo(place / file)
        return place

    def _as_on_the_hub(self, place: Path, name: str) -> Path:
        """The folder as the hub's cache has it: links to files that are named by their contents."""
        top = self.folder / "home/hub" / f"models--{name.replace('/', '--')}"
        commit = hashlib.sha1(name.encode()).hexdigest()
        write(top / "refs/main", commit)
        (top / "blobs").mkdir()
        for file in [path for path in place.rglob("*") if path.is_symlink() or not path.is_dir()]:
            link = top / "snapshots" / commit / file.relative_to(place)
            link.parent.mkdir(parents=True, exist_ok=True)
            if file.is_symlink():
                link.symlink_to(file.readlink())
                continue
            blob = top / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
            shutil.move(file, blob)
            link.symlink_to(os.path.relpath(blob, link.parent))
        shutil.rmtree(place)
        return top / "snapshots" / commit

    def ask(self, kind: str, title: str, made: Made, name: str = "", by_name: bool = True) -> None:
        """All calls on a folder, as jobs."""
        place = self.make(made, f"{len(self.jobs)}-{made.base}")
        if name:
            place = self._as_on_the_hub(place, name)
        target = name if name and by_name else made.target.format(place)
        watched = [path for path in place.rglob("*") if path.suffix in (".bin", ".pt", ".pth") and path.is_file()]
        for call in made.calls:
            out = str(self.folder / "out" / str(len(self.jobs)))
            lines = str(self.folder / "lines.txt")
            words = {
                "embed": [target, lines, "--out", f"{out}/e.npy", "--quiet"],
                "diagnose": [target, "--data", lines, "--out", out, "--quiet"],
                "convert": [target, "--data", lines, "--out", f"{out}/new", "--quiet"],
                "export": [target, "--out", f"{out}/m.onnx"],
                "evaluate": [target, "--data", str(self.folder / "sets"), "--on", "stsb", "--out", out],
            }
            self.made.append((kind, title, made))
            self.jobs.append(
                {
                    "folder": str(self.outside.parent),
                    "call": "command" if call in words else call,
                    "words": [call, *words[call]] if call in words else [target],
                    "watched": [str(self.outside), *(str(path.resolve()) for path in watched)],
                    "offline": bool(name),
                    "patience": 3 * PATIENCE if call == "export" else PATIENCE,
                }
            )

    def trip(self, title: str) -> None:
        self.made.append(("trip", title, Made("plain")))
        watched = [str(self.outside)]
        patience = 1 if title == "waiting" else PATIENCE
        job = {"folder": str(self.outside.parent), "call": "trip", "words": [title, str(self.outside)]}
        self.jobs.append(job | {"watched": watched, "offline": False, "patience": patience})

    def _warm(self) -> list[dict[str, Any]]:
        """Harmless folders, opened first so that whatever is imported for them is there."""
        common = {"folder": str(self.folder), "offline": False}
        out = ["--out", str(self.folder / "out/warm.npy"), "--quiet"]
        places = {base: str(self.folder / "bases" / base) for base in ("plain", "sentences", "saved", "vit", "swin")}
        embed = [["embed", places[base], str(self.folder / "lines.txt"), *out] for base in ("plain", "sentences")]
        opened = [{"call": "open", "words": [places[base]]} for base in ("saved", "vit", "swin")]
        return [common | job for job in [*({"call": "command", "words": words} for words in embed), *opened]]

    def outcomes(self) -> Outcomes:
        """What became of every job, by kind and title; one process does them all, since to start one takes the longest."""
        task = {"ground": str(self.folder), "warm": self._warm(), "jobs": self.jobs}
        said = in_a_process(self.folder, "serve()", json.dumps(task))
        found: Outcomes = {}
        for (kind, title, _), job, line in zip(self.made, self.jobs, said.splitlines(), strict=True):
            found.setdefault((kind, title), []).append((job, json.loads(line)))
        return found


Outcomes = dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]]


def is_refused(job: dict, result: dict) -> bool:
    """In one sentence: by our error in the library, by a line and the code 1 on the command line."""
    if job["call"] != "command":
        return "\n" not in result.get("refused", "\n")
    last = result["said"].strip().split("\n")[-1]
    return result.get("code") == 1 and last.startswith("Error: ") and "Traceback" not in result["said"]


def did_no_harm(job: dict, result: dict) -> None:
    assert result["told"] == [], (job["words"], result)
    assert "raised" not in result, (job["words"], result)
    assert result["peak"] < MEMORY, (job["words"], result)


def gave(result: dict, expected: np.ndarray) -> bool:
    found = np.array(result["vectors"])
    return found.shape == expected.shape and np.allclose(found, expected, atol=1e-5)


def refused_without_harm(found: list[tuple[dict, dict]]) -> None:
    for job, result in found:
        did_no_harm(job, result)
        assert is_refused(job, result), (job["words"], result)


def is_of_a_link(event: str) -> bool:
    """Whether it is told that the file was opened that a link leads to."""
    return event.startswith("opens ") and Path(event).suffix in (".safetensors", ".json", ".txt")


def harmless(found: list[tuple[dict, dict]], expected: np.ndarray | None) -> None:
    for job, result in found:
        did_no_harm(job, result)
        if is_refused(job, result):
            continue
        assert job["call"] != "command" or result["code"] == 0, (job["words"], result)
        if job["call"] == "open":
            assert expected is not None and gave(result, expected), (job["words"], result)


def opens(found: list[tuple[dict, dict]], expected: np.ndarray) -> None:
    for job, result in found:
        did_no_harm(job, result)
        assert not is_refused(job, result), (job["words"], result)
        assert job["call"] != "command" or result["code"] == 0, (job["words"], result)
        assert job["call"] != "open" or gave(result, expected), (job["words"], result)
