"""Where a command is run: locales, names, streams that are closed, variables and folders that are not as one expects."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet
import pytest
from whole_files import COMPARE, IMAGES, RUN_IMAGES, TEXT, copy, settings

PATIENCE = 240  # seconds after which a command hangs
ODD = "é日本😀"
LATIN = os.fsdecode(b"\xe9t\xe9")  # a name in Latin-1
NO_TEXT = os.fsdecode(b"\xff\xfe")  # and one in nothing
#: As in a container without a locale, and without what Python does about that.
PLAIN = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": None}


def long(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.faults)


class Done(NamedTuple):
    code: int
    out: str
    err: str


def sepnorm(folder: Path, *words: object, shell: str = "", **environment: str | None) -> Done:
    """The command as a process of its own; ``shell`` is what comes behind it there, such as ``>&-``."""
    surroundings = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"} | environment
    command = [sys.executable, "-m", "sepnorm", *(word if isinstance(word, bytes) else str(word) for word in words)]
    if shell:
        command = ["sh", "-c", f'"$@" {shell}', "sh", *command]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={name: value for name, value in surroundings.items() if value is not None},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"{words} hangs: {error.stderr!r}")
    return Done(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def check_said(done: Done) -> None:
    """Success, or one sentence."""
    assert "Traceback" not in done.err and "Exception ignored" not in done.err, done.err
    if done.code:
        assert done.code == 1 and done.err.strip().split("\n")[-1].startswith("Error: "), done


def works(folder: Path, *words: object, **others: str | None) -> Done:
    done = sepnorm(folder, *words, **others)
    check_said(done)
    assert done.code == 0, done.err
    return done


def refused(folder: Path, *words: object, **others: str | None) -> str:
    done = sepnorm(folder, *words, **others)
    check_said(done)
    assert done.code == 1, done
    return done.err.strip().split("\n")[-1]


def works_or_says(folder: Path, *words: object, **others: str | None) -> bool:
    done = sepnorm(folder, *words, **others)
    check_said(done)
    return done.code == 0


# ---- a locale that knows ASCII only -------------------------------------------------------------------------------------


def odd_pictures(whole: Path, folder: Path, *names: str) -> Path:
    """The pictures, with classes and files of other names."""
    place = folder / f"pictures {ODD}"
    for name, old in zip(names or (f"a {ODD}", "b ±"), ("even", "odd"), strict=True):
        shutil.copytree(whole / "pictures" / old, place / name)
        for number, path in enumerate(sorted((place / name).iterdir())):
            path.rename(path.with_name(f"{ODD} {number}{path.suffix}"))
    return place


def test_a_diagnosis_is_shown_where_the_locale_is_ascii(whole, tmp_path):
    copy(whole, ["e.parquet"], tmp_path)
    done = works(tmp_path, "diagnose", "e.parquet", "--out", "out", **PLAIN)
    assert "Verdict" in done.out
    assert (tmp_path / "out" / "report.html").is_file() and (tmp_path / "out" / "results.json").is_file()


@pytest.mark.parametrize("out", ["e.npy", "e.parquet"])
@pytest.mark.faults
def test_embeddings_of_odd_names_are_written_where_the_locale_is_ascii(whole, tmp_path, out):
    copy(whole, ["vit"], tmp_path)
    pictures = odd_pictures(whole, tmp_path)
    works(tmp_path, "embed", "vit", pictures.name, "--out", f"{ODD} {out}", **PLAIN)
    assert (tmp_path / f"{ODD} {out}").is_file()
    if out == "e.parquet":
        table = pyarrow.parquet.read_table(tmp_path / f"{ODD} {out}").to_pydict()
        assert len(set(table["name"])) == 40 and len(set(table["label"])) == 2


@pytest.mark.faults
def test_texts_and_labels_are_read_where_the_locale_is_ascii(whole, tmp_path):
    copy(whole, ["bert"], tmp_path)
    rows = [{"text": f"the cat {ODD} {number}", "label": ODD} for number in range(9)]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    (tmp_path / f"{ODD}.txt").write_text("\n".join(row["text"] for row in rows), encoding="utf-8")
    works(tmp_path, "diagnose", "bert", "--data", "t.jsonl", "--out", "out", **PLAIN)
    assert json.dumps(ODD)[1:-1] in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    works(tmp_path, "convert", "bert", "--data", f"{ODD}.txt", "--out", "new", **PLAIN)
    works(tmp_path, "embed", "new", "t.jsonl", "--out", "e.parquet", **PLAIN)
    assert set(pyarrow.parquet.read_table(tmp_path / "e.parquet")["label"].to_pylist()) == {ODD}


@pytest.mark.faults
def test_a_model_of_an_odd_name_works_or_is_told_where_the_locale_is_ascii(whole, tmp_path):
    """Libraries in other languages take paths in UTF-8 only."""
    (tmp_path / ODD).mkdir()
    copy(whole, ["bert", "lines.txt"], tmp_path / ODD)
    model, data = f"{ODD}/bert", f"{ODD}/lines.txt"
    for words, left in (
        (["diagnose", model, "--data", data, "--out", f"{ODD}/out"], "out/report.html"),
        (["convert", model, "--data", data, "--out", f"{ODD}/new"], "new/sepnorm.json"),
        (["embed", model, data, "--out", f"{ODD}/e.npy"], "e.npy"),
    ):
        assert works_or_says(tmp_path, *words, **PLAIN) == (tmp_path / ODD / left).exists()


@pytest.mark.faults
def test_names_of_columns_are_shown_where_the_locale_is_ascii(whole, tmp_path):
    copy(whole, ["bert"], tmp_path)
    table = f"{ODD},b\n" + "".join(f"the cat {ODD} {n},{n}\n" for n in range(9))
    (tmp_path / "t.csv").write_text(table, encoding="utf-8")
    assert "'nothing'" in refused(tmp_path, "embed", "bert", "t.csv", "--column", "nothing", "--out", "e.npy", **PLAIN)
    works_or_says(tmp_path, "embed", "bert", "t.csv", "--column", ODD, "--out", "e.npy", **PLAIN)


@pytest.mark.faults
@pytest.mark.parametrize("out", ["out", ODD])
def test_arms_are_compared_where_the_locale_is_ascii(whole, tmp_path, out):
    pictures = odd_pictures(whole, tmp_path)
    words = [pictures.name if word == "pictures" else word for word in COMPARE]
    worked = works_or_says(tmp_path, *words, "--out", out, "--lambdas", "0,0.1", **PLAIN)
    assert worked or out == ODD  # libraries in other languages take paths in UTF-8 only
    for name in ("report.html", "results.md", "results.tex", "results.csv", "results.json") if worked else ():
        assert (tmp_path / out / name).is_file()
    assert not worked or "λ" in (tmp_path / out / "results.md").read_text(encoding="utf-8")


# ---- names that are no UTF-8 --------------------------------------------------------------------------------------------


@pytest.fixture
def latin(whole, tmp_path) -> Path:
    """Pictures whose files and classes have such names."""
    if sys.platform != "linux":
        pytest.skip("names of files are text here")
    copy(whole, ["vit", "bert", "lines.txt", "e.npy"], tmp_path)
    for old, name in (("even", LATIN), ("odd", "odd")):
        shutil.copytree(whole / "pictures" / old, tmp_path / "pictures" / name)
    first = sorted((tmp_path / "pictures" / "odd").iterdir())[0]
    first.rename(first.with_name(f"{NO_TEXT}{first.suffix}"))
    shutil.copy(tmp_path / "lines.txt", tmp_path / f"{LATIN}.txt")
    shutil.copy(tmp_path / "e.npy", tmp_path / f"{NO_TEXT}.npy")
    shutil.copytree(tmp_path / "bert", tmp_path / f"{LATIN} model")
    return tmp_path


SPLIT = [*settings(*IMAGES), "--max-steps", "1"]
LATIN_WORDS = {
    "embed images to parquet": ["embed", "vit", "pictures", "--out", "e.parquet"],
    "embed images": ["embed", "vit", "pictures", "--out", "e2.npy"],
    "diagnose images": ["diagnose", "vit", "--data", "pictures", "--out", "out"],
    "evaluate images": ["evaluate", "vit", "--data", "pictures", "--on", "knn", "--out", "out"],
    "pretrain images": ["pretrain", "images", "--data", "pictures", *SPLIT, "--out", "out"],
    "compare images": [*COMPARE[:2], "--data", "pictures", *COMPARE[4:], "--out", "out"],
    "texts": ["embed", "bert", f"{LATIN}.txt", "--out", "e2.npy"],
    "diagnose texts": ["diagnose", "bert", "--data", f"{LATIN}.txt", "--out", "out"],
    "embeddings": ["diagnose", f"{NO_TEXT}.npy", "--out", "out"],
    "two embeddings": ["diagnose", f"{NO_TEXT}.npy", "--compare", "e.npy", "--out", "out"],
    "a model": ["embed", f"{LATIN} model", "lines.txt", "--out", "e2.npy"],
    "diagnose a model": ["diagnose", f"{LATIN} model", "--data", "lines.txt"],
    "--out of embed": ["embed", "bert", "lines.txt", "--out", f"{NO_TEXT}/{LATIN}.parquet"],
    "--out of diagnose": ["diagnose", "e.npy", "--out", LATIN],
    "--out of convert": ["convert", "bert", "--data", "lines.txt", "--out", LATIN],
    "--out of evaluate": ["evaluate", "vit", "--data", "pictures", "--on", "knn", "--out", LATIN],
    "--out of pretrain": ["pretrain", "images", "--data", "pictures", *SPLIT, "--out", LATIN],
    "--out of compare": [*COMPARE[:2], "--data", "pictures", *COMPARE[4:], "--out", LATIN],
    "nothing there": ["embed", "bert", f"{LATIN}-nothing.txt", "--out", "e2.npy"],
}
QUICK = ("embed images to parquet", "embeddings")


@pytest.mark.parametrize("what", [name if name in QUICK else long(name) for name in LATIN_WORDS])
def test_names_that_are_no_utf_8_work_or_are_told(latin, what):
    worked = works_or_says(latin, *map(os.fsencode, LATIN_WORDS[what]))
    if what in ("embed images", "--out of diagnose"):  # where no name has to be written down
        assert worked


# ---- streams that are closed --------------------------------------------------------------------------------------------

#: What a command leaves, whether or not anybody reads what it says.
LEAVING = {
    "embed": (["embed", "bert", "lines.txt", "--out", "new.npy"], "new.npy"),
    "diagnose": (["diagnose", "e.npy", "--out", "out"], "out/report.html"),
    "json": (["diagnose", "e.npy", "--out", "out", "--json"], "out/report.html"),
    "convert": (["convert", "bert", "--data", "lines.txt", "--out", "out"], "out/sepnorm.json"),
    "evaluate": (["evaluate", "bert", "--data", "sets", "--on", "stsb", "--out", "out"], "out/results.json"),
    "pretrain": ([*RUN_IMAGES, "--out", "out"], "out/metrics.json"),
    "compare": ([*COMPARE, "--out", "out"], "out/report.html"),
    "help": (["--help"], "lines.txt"),
}


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("diagnose", ">&-"),
        *(long(command, ">&-") for command in ("embed", "json", "convert", "evaluate", "pretrain", "compare", "help")),
        *(long(command, "2>&-") for command in ("embed", "diagnose", "pretrain", "compare")),
        *(long(command, ">&- 2>&- <&-") for command in ("embed", "diagnose", "pretrain")),
    ],
)
def test_a_command_does_its_work_without_a_place_to_say_so(whole, tmp_path, command, closed):
    copy(whole, ["bert", "lines.txt", "e.npy", "sets", "pictures"], tmp_path)
    words, left = LEAVING[command]
    works(tmp_path, *words, shell=closed)
    assert (tmp_path / left).stat().st_size


@pytest.mark.parametrize("command", ["embed", *(long(name) for name in LEAVING if name != "embed")])
def test_a_command_does_its_work_for_a_reader_who_is_gone(whole, tmp_path, command):
    copy(whole, ["bert", "lines.txt", "e.npy", "sets", "pictures"], tmp_path)
    words, left = LEAVING[command]
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "sepnorm", *words],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    said = process.communicate(timeout=PATIENCE)[1].decode("utf-8", "replace")
    assert "Traceback" not in said and "Exception ignored" not in said, said
    assert process.returncode in (0, 1, 141), (
        said
    )  # 141 is what a shell gives for one that was ended by the closed pipe
    assert (tmp_path / left).stat().st_size


@pytest.mark.faults
def test_a_run_whose_reader_is_gone_can_go_on(whole, tmp_path):
    """Its lines of progress go to the same pipe."""
    copy(whole, ["pictures"], tmp_path)
    sepnorm(tmp_path, *RUN_IMAGES, "--out", "run", shell="2>&1 | head -c 1")
    if not (tmp_path / "run" / "metrics.json").exists():
        works(tmp_path, *RUN_IMAGES, "--out", "run", "--resume")
    assert (tmp_path / "run" / "metrics.json").exists()


# ---- names that mean something to a terminal ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["[red]x", "[bold red on blue]", "[link=x]y", "x[not a style]"])
def test_names_in_brackets_are_shown_as_they_are(run, whole, tmp_path, name):
    for target in (f"{name}.npy", "other.npy"):
        shutil.copy(whole / "e.npy", tmp_path / target)
    code, out, err = run("diagnose", f"{name}.npy", "--compare", "other.npy", "--out", "out")
    assert code == 0 and "Traceback" not in err, err
    assert f"{name}.npy:embeddings".replace(" ", "") in "".join(out.split())


@pytest.mark.parametrize("name", ["x[/red]", "[/]", "[red]x[/red]", "a[/bold]b"])
def test_brackets_that_close_nothing_are_shown_as_they_are(run, whole, tmp_path, name):
    """Two files of one name are told apart by their folders, in which there may be such signs."""
    for folder in (name, "other"):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(whole / "e.npy", tmp_path / folder / "e.npy")
    code, out, err = run("diagnose", f"{name}/e.npy", "--compare", "other/e.npy", "--out", "out")
    assert code == 0 and "Traceback" not in err, err
    assert f"{name}/e.npy:embeddings" in "".join(out.split())


def test_brackets_in_the_name_of_a_model_are_shown_as_they_are(run, whole, tmp_path):
    copy(whole, ["lines.txt"], tmp_path)
    shutil.copytree(whole / "bert", tmp_path / "[red]model")
    code, out, err = run("diagnose", "[red]model", "--data", "lines.txt", "--compare", "[red]model", "--out", "out")
    assert code == 0 and "Traceback" not in err, err
    assert "[red]model(1):[CLS]" in "".join(out.split())


ESCAPE = "\x1b[2J\x1b]0;title\x07"


def odd_columns(folder: Path) -> list[str]:
    (folder / "t.csv").write_text(f"a{ESCAPE},b\nthe cat,the dog\n")
    return ["embed", "bert", "t.csv", "--column", "c", "--out", "new.npy"]


def odd_file(folder: Path) -> list[str]:
    return ["embed", "bert", f"x{ESCAPE}.txt", "--out", "new.npy"]


def odd_model(folder: Path) -> list[str]:
    return ["embed", f"./x{ESCAPE}", "lines.txt", "--out", "new.npy"]


def odd_out(folder: Path) -> list[str]:
    return ["embed", "bert", "lines.txt", "--out", f"x{ESCAPE}.npy"]


def odd_embeddings(folder: Path) -> list[str]:
    shutil.copy(folder / "e.npy", folder / f"x{ESCAPE}.npy")
    return ["diagnose", f"x{ESCAPE}.npy", "--compare", "e.npy", "--out", "out"]


def odd_class(folder: Path) -> list[str]:
    shutil.copytree(folder / "pictures" / "odd", folder / "one" / f"x{ESCAPE}")
    return ["pretrain", "images", "--data", "one", "--out", "run", *settings(*IMAGES)]


def odd_image(folder: Path) -> list[str]:
    (folder / "one").mkdir()
    (folder / "one" / f"x{ESCAPE}.png").write_bytes(b"no image")
    return ["embed", "vit", "one", "--out", "new.npy"]


def odd_setting(folder: Path) -> list[str]:
    return ["pretrain", "images", "--set", f"x{ESCAPE}=1", "--out", "run"]


def odd_arrays(folder: Path) -> list[str]:
    np.savez(folder / "o.npz", **{f"x{ESCAPE}": np.ones((3, 2)), "b": np.ones((3, 2))})
    return ["diagnose", "o.npz"]


def odd_array_asked_for(folder: Path) -> list[str]:
    return [*odd_arrays(folder), "--column", "c"]


ESCAPED = [odd_columns, odd_file, odd_model, odd_out, odd_embeddings, odd_class, odd_image, odd_setting, odd_arrays]


@pytest.mark.parametrize("make", [*ESCAPED, odd_array_asked_for], ids=lambda make: make.__name__)
def test_what_would_steer_a_terminal_is_made_visible(run, whole, tmp_path, make):
    """In names that come from files as much as in those that were typed."""
    copy(whole, ["bert", "vit", "lines.txt", "e.npy", "pictures"], tmp_path)
    code, out, err = run(*make(tmp_path))
    assert code in (0, 1) and "Traceback" not in err, err
    for sign in ("\x1b", "\x07"):
        assert sign not in out and sign not in err, (out, err)


@pytest.mark.parametrize("name", ["run\nError: all is lost", "run\r\nmore", "run\u2028x"])
def test_a_folder_with_lines_in_its_name_is_one_line_in_a_sentence(run, whole, tmp_path, name):
    copy(whole, ["pictures"], tmp_path)
    code, _, err = run(*RUN_IMAGES, "--max-steps", "1", "--out", name)
    assert code == 0 and "Traceback" not in err, err
    assert (tmp_path / name / "metrics.json").is_file()
    code, out, err = run(*RUN_IMAGES, "--max-steps", "2", "--out", name)
    said = err.strip().split("\n")
    assert code == 1 and out == "" and said[-1].startswith("Error: run"), err
    assert sum(line.startswith("Error: ") for line in said) == 1


class Terminal:
    """A terminal in which the error channel ends, and all that came there."""

    def __init__(self) -> None:
        self.master, self.end = pty.openpty()
        self.parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self.master, 2**16)
            except OSError:
                return
            if not part:
                return
            self.parts.append(part)

    def close(self) -> str:
        os.close(self.end)
        self._reader.join(30)
        os.close(self.master)
        return b"".join(self.parts).decode("utf-8", "replace")


def in_a_terminal(folder: Path, *words: str) -> tuple[int, str]:
    terminal = Terminal()
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "sepnorm", *words],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=terminal.end,
    )
    process.wait(timeout=PATIENCE)
    return process.returncode, terminal.close()


def test_brackets_in_the_name_of_an_arm_are_shown_beside_its_bar(whole, tmp_path):
    """Patterns of sites have brackets."""
    copy(whole, ["pictures"], tmp_path)
    sites = "*layernor[m]"
    code, said = in_a_terminal(tmp_path, *RUN_IMAGES, "--norm", "bn+ln", "--sites", sites, "--out", "run")
    assert code == 0 and "Traceback" not in said, said
    assert f"bn+ln@{sites}, seed 0" in said


@pytest.mark.faults
@pytest.mark.parametrize("name", ["[red]x", "x\x1b[2Jy", "[blink]"])
def test_the_name_of_a_model_is_shown_beside_its_bar(whole, tmp_path, name):
    copy(whole, ["lines.txt"], tmp_path)
    shutil.copytree(whole / "bert", tmp_path / name)
    code, said = in_a_terminal(tmp_path, "diagnose", name, "--data", "lines.txt", "--out", "out")
    assert code == 0 and "Traceback" not in said, said
    assert "\x1b[2J" not in said
    if "\x1b" not in name:
        assert name in said


# ---- variables of those who start several processes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "abc"},
        long({"WORLD_SIZE": "x"}),
        long({"RANK": "5", "WORLD_SIZE": "2"}),
        long({"RANK": "-1", "WORLD_SIZE": "2"}),
        long({"RANK": "0", "WORLD_SIZE": "0"}),
        long({"RANK": "0", "WORLD_SIZE": "-3"}),
        long({"RANK": "0", "WORLD_SIZE": "1.5"}),
        long({"RANK": "1"}),
        long({"RANK": "", "WORLD_SIZE": ""}),
        long({"RANK": "0", "WORLD_SIZE": "2"}),  # of a start without an address where the others are met
    ],
    ids=lambda found: " ".join(f"{key}={value}" for key, value in found.items()),
)
def test_numbers_of_processes_that_are_none_are_one_sentence(whole, tmp_path, variables):
    copy(whole, ["pictures"], tmp_path)
    absent = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"))
    said = refused(tmp_path, *RUN_IMAGES, "--out", "run", **(absent | variables))
    assert any(name in said for name in variables) or "MASTER_ADDR" in said
    assert not (tmp_path / "run" / "config.json").exists()  # nothing to resume


@pytest.mark.faults
@pytest.mark.parametrize("variables", [{"LOCAL_RANK": "-1"}, {"LOCAL_RANK": "abc"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_a_run_by_itself_works_or_says_why_not(whole, tmp_path, variables):
    copy(whole, ["pictures"], tmp_path)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29581"} if "RANK" in variables else {}
    worked = works_or_says(tmp_path, *RUN_IMAGES, "--out", "run", **(variables | address))
    assert worked == (tmp_path / "run" / "metrics.json").exists()
    assert worked or "RANK" not in variables


@pytest.mark.faults
@pytest.mark.parametrize(
    "words",
    [
        ["embed", "bert", "t.parquet", "--out", "new.npy"],
        ["diagnose", "e.npy", "--out", "out"],
        ["pretrain", "text", "--data", "lines.txt", "--max-steps", "1", *settings(*TEXT, "stream=16"), "--out", "run"],
        [*COMPARE, "--out", "out"],
        ["evaluate", "bert", "--data", "sets", "--on", "stsb", "--out", "out"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_takes_a_number_that_is_none_without_a_traceback(whole, tmp_path, words):
    copy(whole, ["bert", "lines.txt", "t.parquet", "e.npy", "sets", "pictures"], tmp_path)
    works_or_says(tmp_path, *words, RANK="abc", WORLD_SIZE="x", LOCAL_RANK="?")


# ---- folders that are not there or not ours -----------------------------------------------------------------------------

NOWHERE = "/proc/1/nothing"  # nobody can make a folder there, root neither
HOMES = {
    "nowhere": {"HOME": NOWHERE},
    "unset": {"HOME": None},
    "a file": {"HOME": "lines.txt"},
    "cache nowhere": {"HF_HOME": NOWHERE},
    "cache a file": {"HF_HOME": "lines.txt"},
    "data nowhere": {"HF_DATASETS_CACHE": NOWHERE, "XDG_CACHE_HOME": NOWHERE},
    "temporary nowhere": {"TMPDIR": NOWHERE, "TEMP": NOWHERE, "TMP": NOWHERE},
    "all nowhere": dict.fromkeys(("HOME", "HF_HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCH_HOME"), NOWHERE),
}
STREAM = ["pretrain", "text", "--data", "shards/*.jsonl", "--max-steps", "1"]
STREAM += settings(*TEXT, "stream=16", "test=sets")
FROM_HERE = {
    "embed": (["embed", "bert", "t.parquet", "--out", "new.npy"], "new.npy"),
    "sentences": (["convert", "sentences", "--data", "lines.txt", "--out", "new"], "new/sepnorm.json"),
    "stream": (
        [*STREAM, "--out", "run"],
        "run/metrics.json",
    ),
    "compare": ([*COMPARE, "--out", "out"], "out/report.html"),
    "export": (["export", "vit", "--out", "m.onnx"], "m.onnx"),
}


def without_caches(variables: dict[str, str | None]) -> dict[str, str | None]:
    return dict.fromkeys(("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "XDG_CACHE_HOME")) | variables


@pytest.mark.parametrize(
    ("where", "command"),
    [
        ("all nowhere", "embed"),
        *(long(where, "embed") for where in HOMES if where != "all nowhere"),
        *(long("all nowhere", command) for command in FROM_HERE if command != "embed"),
        long("temporary nowhere", "sentences"),
        long("unset", "stream"),
    ],
)
def test_a_home_that_cannot_be_written_to_is_no_matter_or_one_sentence(whole, tmp_path, where, command):
    copy(whole, ["bert", "sentences", "vit", "lines.txt", "t.parquet", "shards", "pictures", "sets"], tmp_path)
    words, left = FROM_HERE[command]
    before = {path.name for path in tmp_path.iterdir()}
    worked = works_or_says(tmp_path, *words, **without_caches(HOMES[where]))
    assert worked == (tmp_path / left).exists()
    new = {path.name for path in tmp_path.iterdir()} - before
    assert new <= {Path(left).parts[0]}, "files in a folder that nobody named"


@pytest.fixture
def read_only(tmp_path) -> Iterator[Path]:
    """A folder that nobody may write to."""
    place = tmp_path / "ours not"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.faults
@pytest.mark.parametrize("command", ["embed", "sentences", "compare"])
def test_a_home_on_a_read_only_disk_is_no_matter_or_one_sentence(whole, tmp_path, read_only, command):
    copy(whole, ["bert", "sentences", "lines.txt", "t.parquet", "pictures"], tmp_path)
    words, left = FROM_HERE[command]
    names = ("HOME", "HF_HOME", "TMPDIR", "XDG_CACHE_HOME")
    worked = works_or_says(tmp_path, *words, **without_caches(dict.fromkeys(names, str(read_only))))
    assert worked == (tmp_path / left).exists()
