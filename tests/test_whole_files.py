"""Files are there whole or not at all, whoever else writes, whatever stops, and whatever names are in them."""

from __future__ import annotations

import csv
import errno
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "faults"))

import whole_files
from small_runs import outcome
from whole_files import COMPARE, IMAGES, RUN_IMAGES, copy

from sepnorm import files
from sepnorm.domains.comparison import write_comparison_folder
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.pretraining import pretrain
from sepnorm.errors import InterruptedRunError
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.experiment.runs import Outcome, perform
from sepnorm.report.selection import references
from sepnorm.report.tables import comparison_rows, difference_rows, summary_rows
from sepnorm.training.checkpoints import last_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Pictures, a finished comparison and a finished run of them, and one that was stopped."""
    folder = tmp_path_factory.mktemp("whole")
    torch.manual_seed(0)
    whole_files._pictures(folder)
    whole_files._runs(folder)
    return folder


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ---- write_whole --------------------------------------------------------------------------------------------------------

SIZE = 200_000


def content(letter: int) -> bytes:
    return bytes([letter]) * SIZE


def in_two_halves(letter: int) -> Callable[[str], None]:
    """Leaves another the time to come in between."""

    def write(scratch: str) -> None:
        with open(scratch, "wb") as file:
            file.write(content(letter)[: SIZE // 2])
            file.flush()
            time.sleep(0.001)
            file.write(content(letter)[SIZE // 2 :])

    return write


class Reader(threading.Thread):
    """Reads a file again and again, and keeps what was not whole."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.torn, self.reads, self.done = path, set[str](), 0, threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            found = self.path.read_bytes()
            self.reads += 1
            if len(found) != SIZE or len(set(found)) != 1:
                self.torn.add(f"{len(found)} bytes of {sorted(set(found))}")

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.join()


def test_writers_with_one_process_number_do_not_disturb_each_other(tmp_path, monkeypatch):
    """In two containers on one disk both may be process 1."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    path = tmp_path / "file.bin"
    path.write_bytes(content(0))
    failed: list[BaseException] = []

    def write(letter: int) -> None:
        try:
            for _ in range(50):
                files.write_whole(path, in_two_halves(letter))
        except BaseException as error:
            failed.append(error)

    with Reader(path) as reader:
        threads = [threading.Thread(target=write, args=(letter,)) for letter in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == [] and reader.torn == set() and reader.reads
    assert [found.name for found in tmp_path.iterdir()] == ["file.bin"]


def test_processes_with_one_number_and_one_seed_do_not_disturb_each_other(tmp_path):
    """Names that are drawn after a seed was set, as runs do, are the same ones in both."""
    code = (
        "import os, random, sys, time; from pathlib import Path; from sepnorm.files import write_whole\n"
        "os.getpid = lambda: 1\n"
        "def write(scratch):\n"
        "    with open(scratch, 'wb') as file:\n"
        f"        file.write(bytes([int(sys.argv[2])]) * {SIZE // 2}); file.flush(); time.sleep(0.001)\n"
        f"        file.write(bytes([int(sys.argv[2])]) * {SIZE // 2})\n"
        "Path(sys.argv[1] + '-' + sys.argv[2]).touch()\n"
        "while not Path(sys.argv[1] + '-start').exists(): time.sleep(0.001)\n"
        "for _ in range(150):\n"
        "    random.seed(0); write_whole(Path(sys.argv[1]), write)\n"
    )
    path = tmp_path / "here" / "file.bin"
    path.parent.mkdir()
    path.write_bytes(content(0))
    signs = [Path(f"{path}-{number}") for number in (1, 2)]
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), str(number)], stderr=subprocess.PIPE, text=True)
        for number in (1, 2)
    ]
    with Reader(path) as reader:
        while not all(sign.exists() for sign in signs):
            assert all(writer.poll() is None for writer in writers), [writer.communicate() for writer in writers]
            time.sleep(0.01)
        Path(f"{path}-start").touch()
        said = [writer.communicate(timeout=200)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], said
    assert reader.torn == set() and reader.reads
    left = {found.name for found in path.parent.iterdir()} - {sign.name for sign in signs} - {f"{path.name}-start"}
    assert left == {"file.bin"}


def test_a_write_inside_of_a_write_to_the_same_file_is_a_write_of_its_own(tmp_path):
    path = tmp_path / "file.txt"

    def outer(scratch: str) -> None:
        Path(scratch).write_text("outer")
        files.write_text(path, "inner")
        assert path.read_text() == "inner" and Path(scratch).read_text() == "outer"

    files.write_whole(path, outer)
    assert path.read_text() == "outer" and os.listdir(tmp_path) == ["file.txt"]


def test_what_a_killed_process_or_somebody_else_left_is_not_written_through(tmp_path):
    """Where the name beside the file can be guessed, a link of that name leads elsewhere."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / f".file.txt.{os.getpid()}").symlink_to(victim)
    files.write_text(tmp_path / "here" / "file.txt", "new")
    assert victim.read_text() == "precious"
    written = tmp_path / "here" / "file.txt"
    assert written.read_text() == "new" and not written.is_symlink()


def full(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half(error: BaseException) -> Callable[[str], None]:
    def write(scratch: str) -> None:
        Path(scratch).write_text("half of i")
        raise error

    return write


@pytest.mark.parametrize("moment", ["before", "while writing", "interrupted", "fsync", "replace"])
def test_nothing_is_left_behind_and_nothing_lost_after_an_error(tmp_path, monkeypatch, moment):
    path = tmp_path / "file.txt"
    path.write_text("earlier")
    write: Callable[[str], Any] = lambda scratch: Path(scratch).write_text("new")  # noqa: E731
    if moment in ("before", "while writing"):
        write = full if moment == "before" else half(OSError(errno.ENOSPC, "No space left on device"))
    elif moment == "interrupted":
        write = half(KeyboardInterrupt())
    else:
        monkeypatch.setattr(os, moment, full)
        if moment == "replace":
            monkeypatch.setattr(os, "rename", full)
    with pytest.raises((OSError, KeyboardInterrupt)):
        files.write_whole(path, write)
    assert listing(tmp_path) == {"file.txt": b"earlier"}


def test_the_names_of_files_may_be_as_long_as_the_disk_takes_them(tmp_path):
    path = tmp_path / ("é" * 125 + ".json")  # 255 bytes
    files.write_text(path, "{}")
    assert path.read_text() == "{}"


def test_others_may_read_what_is_written_as_the_mask_says(tmp_path):
    old = os.umask(0o027)
    try:
        files.write_text(tmp_path / "file.txt", "new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == 0o640


@pytest.fixture
def synced(monkeypatch) -> Iterator[list[tuple[str, int]]]:
    """What happens in order: ``("fsync", inode)``, ``("replace", inode of what comes in place)``."""
    seen: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(file: int) -> None:
        fsync(file)
        seen.append(("fsync", os.fstat(file).st_ino))

    def note_replace(source: Any, target: Any, **options: Any) -> None:
        inode = os.stat(source).st_ino
        replace(source, target, **options)
        seen.append(("replace", inode))

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "fdatasync", note_fsync, raising=False)
    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(os, "rename", note_replace)
    return seen


def test_a_file_is_on_the_disk_before_its_name_and_the_name_before_one_goes_on(tmp_path, synced):
    path = tmp_path / "folder" / "file.txt"
    path.parent.mkdir()
    files.write_text(path, "new")
    file, folder = path.stat().st_ino, path.parent.stat().st_ino
    place = synced.index(("replace", file))
    assert ("fsync", file) in synced[:place], "the content was not on the disk when it got its name"
    assert ("fsync", folder) in synced[place:], "the folder was not on the disk after it"


# ---- a run that is done -------------------------------------------------------------------------------------------------


class Recipe:
    """In the place of a training: what any recipe leaves, with a model that its library writes as it likes."""

    def run(self, config: Any, folder: Path, report: Any) -> Outcome:
        (folder / "checkpoint-1").mkdir(parents=True)
        (folder / "checkpoint-1" / "model.safetensors").write_bytes(b"all that there is, until the run is finished")

        def save(model: Path) -> None:
            (model / "1_Pooling").mkdir(parents=True)
            for name in ("config.json", "model.safetensors", "1_Pooling/config.json"):
                (model / name).write_text("{}")

        arrays = {"cls": torch.ones(3, 2)}
        return Outcome({"loss": 1.0}, [(1, 1.0)], arrays, save, arrays={"drawn": arrays}, names=["a", "b", "c"])


def test_all_that_a_run_leaves_is_on_the_disk_before_it_counts_as_finished(tmp_path, monkeypatch):
    run = tmp_path / "run"
    seen: dict[int, tuple[bool, bool]] = {}  # by inode: whether the run had no metrics yet, and its checkpoints still
    fsync = os.fsync

    def note(file: int) -> None:
        fsync(file)
        state = (not (run / "metrics.json").exists(), (run / "checkpoints").exists())
        old = seen.get(os.fstat(file).st_ino, (False, False))
        seen[os.fstat(file).st_ino] = (state[0] or old[0], state[1] or old[1])

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "fdatasync", note, raising=False)
    perform(Recipe(), PRESETS["demo"], run)
    assert not (run / "checkpoints").exists() and (run / "metrics.json").exists()
    names = ["losses.json", "embeddings.npz", "drawn.npz", "names.json", "model/config.json", "model/model.safetensors"]
    names += ["model/1_Pooling/config.json", "model", "model/1_Pooling", "."]
    early = {name: seen.get((run / name).stat().st_ino, (False, False))[0] for name in names}
    assert all(early.values()), f"not on the disk before metrics.json: {[name for name in names if not early[name]]}"
    late = {name: seen.get((run / name).stat().st_ino, (False, False))[1] for name in [*names, "metrics.json"]}
    assert all(late.values()), f"not on the disk before checkpoints went: {[name for name in late if not late[name]]}"


# ---- checkpoints --------------------------------------------------------------------------------------------------------

GIVEN, SETTINGS = {"data": "pictures", "max_steps": 8}, [*IMAGES, "checkpoints=7"]  # one for each step


def cut_short(checkpoint: Path) -> None:
    (checkpoint / "complete").unlink()


def damaged(checkpoint: Path) -> None:
    os.truncate(checkpoint / "optimizer.pt", 100)


def no_note(checkpoint: Path) -> None:
    (checkpoint / "complete").write_text("[]")


@pytest.mark.parametrize("harm", [cut_short, damaged, no_note])
def test_a_damaged_checkpoint_does_not_push_out_a_whole_one(whole, tmp_path, monkeypatch, harm):
    copy(whole, ["pictures"], tmp_path)
    monkeypatch.chdir(tmp_path)
    place = Path("run/checkpoints")
    kept: list[str] = []

    def look(step: int, *others: object) -> None:
        """Before the checkpoint of this step is written."""
        if step == 3:
            harm(place / "checkpoint-2")
        elif step == 4:
            kept.extend(path.name for path in place.glob("checkpoint-*"))
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRunError):
        pretrain("images", "demo", GIVEN, SETTINGS, Path("run"), start=lambda *arm: look)
    assert {"checkpoint-1", "checkpoint-3"} <= set(kept)
    whole_now = sorted(path.name for path in place.glob("checkpoint-*"))
    assert {"checkpoint-3", "checkpoint-4"} <= set(whole_now) and "checkpoint-1" not in whole_now


def note_with(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda old: json.dumps(json.loads(old) | changes).encode()


def note_without(key: str) -> Callable[[bytes], bytes]:
    return lambda old: json.dumps({name: value for name, value in json.loads(old).items() if name != key}).encode()


NOTES: dict[str, Callable[[bytes], bytes]] = {
    "list": lambda old: b"[]",
    "number": lambda old: b"3",
    "nothing": lambda old: b"null",
    "text": lambda old: b'"checksums"',
    "empty": lambda old: b"",
    "cut": lambda old: old[:-20],
    "no-utf-8": lambda old: b"\xff\xfe" + old,
    "deep": lambda old: b"[" * 60_000,
    "object": lambda old: b"{}",
    **{f"no-{key}": note_without(key) for key in ("losses", "seconds", "pending", "checksums")},
    "losses-number": note_with(losses=3),
    "losses-text": note_with(losses="ab"),
    "losses-none": note_with(losses=None),
    "losses-short": note_with(losses=[[1]]),
    "losses-words": note_with(losses=[["one", "two"]]),
    "losses-lists": note_with(losses=[[[1], [2]]]),
    "seconds-text": note_with(seconds="soon"),
    "seconds-none": note_with(seconds=None),
    "seconds-list": note_with(seconds=[1]),
    "pending-number": note_with(pending=3),
    "pending-none": note_with(pending=None),
    "pending-words": note_with(pending=["one"]),
    "losses-endless": note_with(losses=[[float("inf"), 1]]),
    "seconds-endless": note_with(seconds=10**400),
    "pending-lists": note_with(pending=[[]]),
    "checksums-list": note_with(checksums=["model.safetensors"]),
    "checksums-numbers": note_with(checksums={"model.safetensors": 3}),
    "checksums-of-nothing": note_with(checksums={}),
}


@pytest.mark.parametrize("note", NOTES)
def test_a_checkpoint_with_a_damaged_note_is_passed_over(whole, tmp_path, caplog, note):
    copy(whole, ["begun"], tmp_path)
    newest = tmp_path / "begun" / "checkpoints" / "checkpoint-3"
    (newest / "complete").write_bytes(NOTES[note]((newest / "complete").read_bytes()))
    found = last_checkpoint(newest.parent)
    assert found is not None and found.name == "checkpoint-2"
    assert "checkpoint-3 is incomplete or damaged and is skipped" in caplog.text


RESUMED = (
    "list deep no-losses no-seconds no-pending losses-short losses-words seconds-text pending-number pending-words"
)


@pytest.mark.parametrize("note", [*RESUMED.split(), "checksums-of-nothing"])
def test_a_run_goes_on_from_the_checkpoint_before_one_with_a_damaged_note(run, whole, tmp_path, note):
    copy(whole, ["begun", "pictures"], tmp_path)
    newest = tmp_path / "begun" / "checkpoints" / "checkpoint-3"
    (newest / "complete").write_bytes(NOTES[note]((newest / "complete").read_bytes()))
    if note == "checksums-of-nothing":
        (newest / "optimizer.pt").write_bytes(b"")  # which nobody would notice
    code, _, err = run(*RUN_IMAGES, "--out", "begun", "--resume")
    assert code == 0 and "Traceback" not in err, err
    assert outcome(tmp_path / "begun") == outcome(whole / "run")


# ---- tables of a comparison ---------------------------------------------------------------------------------------------

NAMES = ["plain", r"bn+ln@\input{/etc/passwd}", "100 % & more", "a_b#c", "{x}", "~user^2", "$HOME$", "\\", "x±λ"]
METRICS = ["acc%of&all", "a_b", "$x^{2}$~#", r"\write18{rm}"]
#: What may stand for a sign in LaTeX's text.
WRITTEN = {
    "\\": ["\\textbackslash{}", "{\\textbackslash}", "\\textbackslash ", "$\\backslash$"],
    "~": ["\\textasciitilde{}", "{\\textasciitilde}", "\\textasciitilde ", "\\~{}", "$\\sim$"],
    "^": ["\\textasciicircum{}", "{\\textasciicircum}", "\\textasciicircum ", "\\^{}"],
    "$": ["\\$", "\\textdollar{}"],
    "_": ["\\_", "\\textunderscore{}"],
    **{sign: [f"\\{sign}"] for sign in "%&#"},
    "{": ["\\{", "\\textbraceleft{}"],
    "}": ["\\}", "\\textbraceright{}"],
    "±": ["$\\pm$", "\\textpm{}"],
    "λ": ["$\\lambda$"],
}
SIGNS = {form: sign for sign, forms in WRITTEN.items() for form in sorted(forms, key=len, reverse=True)}
TOKEN = re.compile("|".join(map(re.escape, sorted(SIGNS, key=len, reverse=True))) + r"|[^\\~^$_%&#{}]")


def typeset(cell: str) -> str:
    """What LaTeX prints for a cell; fails at what it would not take for text."""
    shown, place = "", 0
    while place < len(cell):
        match = TOKEN.match(cell, place)
        assert match is not None, f"{cell[place : place + 20]!r} in {cell!r} is no text to LaTeX"
        shown += SIGNS.get(match[0], match[0])
        place = match.end()
    return shown


@pytest.fixture
def comparison() -> Comparison:
    """Arms and metrics with names that mean something to LaTeX or to Markdown."""
    config = PRESETS["demo"]
    arms = []
    for number, name in enumerate(NAMES):
        values = {metric: number + place / 10 for place, metric in enumerate(METRICS)}
        arms.append(Arm(name, config, {0: values, 1: values}, {}, {}))
    return Comparison(arms, Metrics(Metric(key, key, True) for key in METRICS))


def tables_of(comparison: Comparison) -> list[list[list[str]]]:
    """What is to be seen, as rows of cells."""
    found = [comparison_rows(comparison), *(difference_rows(comparison, arm) for arm in references(comparison))]
    return [[header, *rows] for header, rows in found]


def test_names_are_text_in_the_table_for_latex(comparison, tmp_path):
    write_comparison_folder(comparison, tmp_path, "Odd names")
    written = (tmp_path / "results.tex").read_text(encoding="utf-8")
    bodies = re.findall(r"\\begin\{tabular\}\{l+\}\n(.*?)\\end\{tabular\}", written, re.DOTALL)
    shown = []
    for body in bodies:
        lines = body.replace("\\hline\n", "").removesuffix(" \\\\\n").split(" \\\\\n")
        shown.append([[typeset(cell) for cell in re.split(" & ?", line)] for line in lines])
    assert shown == tables_of(comparison)


def test_bars_and_lines_in_names_do_not_make_cells_and_rows_in_markdown(comparison, tmp_path):
    for arm, name in zip(comparison.arms, ["a|b", "|", "c||d", "g\nh"], strict=False):
        arm.name = name
    write_comparison_folder(comparison, tmp_path, "Odd names")
    written = (tmp_path / "results.md").read_text(encoding="utf-8")
    lines = [line for line in written.splitlines() if line.startswith("|")]
    header, summary = summary_rows(comparison)
    for rows in [[header, *summary], *tables_of(comparison)]:
        some, lines = lines[: len(rows) + 1], lines[len(rows) + 1 :]  # with the line below the header
        assert [len(re.findall(r"(?<!\\)\|", line)) for line in some] == [len(rows[0]) + 1] * (len(rows) + 1), some
    assert lines == []


def test_the_table_for_programs_has_the_names_as_they_are(comparison, tmp_path):
    write_comparison_folder(comparison, tmp_path, "Odd names")
    with open(tmp_path / "results.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["arm", "seed", *METRICS] and list(dict.fromkeys(row[0] for row in rows[1:])) == NAMES


# ---- a comparison in the folder of another ------------------------------------------------------------------------------


def with_arms(arms: str) -> list[str]:
    words = list(COMPARE)
    words[words.index("--norms") + 1] = arms
    return words


def reports(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("arms", ["ln,bn+bn@final", "bn@final,bn+bn@final"])
def test_another_comparison_does_not_take_the_place_of_the_report(run, whole, tmp_path, arms):
    copy(whole, ["compared", "pictures"], tmp_path)
    before, runs = reports(tmp_path / "compared"), sorted(os.listdir(tmp_path / "compared" / "runs"))
    assert {"report.html", "results.json", "results.csv", "results.md", "results.tex"} <= before.keys()
    code, out, err = run(*with_arms(arms))
    last = err.strip().split("\n")[-1]
    assert code == 1 and out == "" and last.startswith("Error: "), err
    assert "bn+ln@final" in last and "--out" in last
    assert reports(tmp_path / "compared") == before
    assert sorted(os.listdir(tmp_path / "compared" / "runs")) == runs


def test_the_same_comparison_again_is_no_other(run, whole, tmp_path):
    copy(whole, ["compared", "pictures"], tmp_path)
    before = reports(tmp_path / "compared")
    code, _, err = run(*COMPARE)
    assert code == 0, err
    assert reports(tmp_path / "compared")["results.json"] == before["results.json"]


def test_a_comparison_takes_in_more_arms_and_then_none_less(run, whole, tmp_path):
    copy(whole, ["compared", "pictures"], tmp_path)
    runs = listing(tmp_path / "compared" / "runs")
    code, _, err = run(*with_arms("ln,bn+bn@final,bn+ln@final"))
    assert code == 0, err
    after = reports(tmp_path / "compared")
    assert [arm["name"] for arm in json.loads(after["results.json"])["arms"]] == ["ln", "bn+bn@final", "bn+ln@final"]
    assert b"bn+bn@final" in after["report.html"] and b"bn+ln@final" in after["report.html"]
    now = listing(tmp_path / "compared" / "runs")
    assert {name: now[name] for name in runs} == runs  # those that were there are not done again
    code, _, err = run(*COMPARE)
    assert code == 1 and "bn+bn@final" in err.strip().split("\n")[-1], err
    assert reports(tmp_path / "compared") == after


def test_a_comparison_that_has_no_report_yet_goes_on(run, whole, tmp_path):
    """One that was stopped has runs only."""
    copy(whole, ["compared", "pictures"], tmp_path)
    for path in (tmp_path / "compared").iterdir():
        if path.is_file():
            path.unlink()
    shutil.rmtree(next((tmp_path / "compared" / "runs").glob("bn+ln*")))
    code, _, err = run(*with_arms("ln,bn+bn@final"))
    assert code == 0, err
    assert (tmp_path / "compared" / "report.html").is_file()


def test_seeds_of_names_are_those_of_runs(tmp_path):
    """Writing draws no numbers that a run would have drawn."""
    random.seed(7)
    torch.manual_seed(7)
    wanted = random.random(), float(torch.rand(()))
    random.seed(7)
    torch.manual_seed(7)
    files.write_text(tmp_path / "file.txt", "new")
    assert (random.random(), float(torch.rand(()))) == wanted
