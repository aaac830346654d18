"""``sepnorm data``: what it lists, writes and refuses, and that every table of the results runs on what it wrote."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import MAKERS, serving, stand_in

from sepnorm.sources.registry import SOURCES

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs/results"))  # whose scripts import each other


def tables() -> dict[str, Any]:
    """The comparisons and studies of the results that need a file, with the files' names in braces."""
    from tables import TABLES

    return {name: table for name, table in TABLES.items() if table.needs() and table.kind in ("compare", "study")}


def documented() -> list[list[str]]:
    """The commands on the page of data that read what was written."""
    text = (ROOT / "docs/data.md").read_text().replace("\\\n", " ")
    found = [line.split() for line in re.findall(r"(?m)^    sepnorm ((?!data )\w+ .+)$", text)]
    assert {words[0] for words in found} == {"study", "reproduce", "pretrain", "compare"}
    return found


def test_the_page_of_data_names_every_source_and_file():
    text = (ROOT / "docs/data.md").read_text()
    for name, source in SOURCES.items():
        assert f"| `{name}` | " in text and re.search(rf"sepnorm data [a-z0-9 -]*\b{name}\b", text), name
        assert source.origin in text, name
    for name in tables():
        needs = [need for need in tables()[name].needs() if need != "."]
        assert all(f"/{need}" in text or f"`{need}/`" in text for need in needs), name


def test_printed_commands_name_the_files_where_they_are_written():
    from tables import TABLES

    written = {f"data/{name}/{file}" for name, source in SOURCES.items() for file in source.rows}
    written |= {"data", "data/flowers-run/model", *(f"data/{name}" for name in SOURCES)}
    for name, table in TABLES.items():
        named = [word.rpartition("=")[2] for word in table.command.split()]
        assert len([path for path in named if path in written]) == len(table.needs()), name
        assert not re.search(r"[{}]", table.command + table.recorded), name


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Stand-ins in the place of all sources."""
    for name in MAKERS:
        monkeypatch.setitem(SOURCES, name, stand_in(name, tmp_path / "given" / name))


@pytest.mark.parametrize("words", [[], ["--list"]])
def test_the_list_has_every_source(run, words):
    code, out, _ = run("data", *words)
    assert code == 0
    for name, source in SOURCES.items():
        assert f"{name}: {source.what}\n" in out and f"  licence  {source.licence}\n" in out


def test_one_of_the_list(run):
    code, out, _ = run("data", "sick", "--list")
    assert code == 0 and "not for commerce" in out and "cifar10" not in out


def test_a_name_that_is_none_is_refused_before_anything_is_done(run, tmp_path):
    code, _, err = run("data", "stsb", "cifar")
    assert code == 1 and "unknown data set 'cifar'" in err and "Did you mean 'cifar10'?" in err
    assert list(tmp_path.iterdir()) == []


def test_files_are_named_and_then_found(run, tmp_path):
    with serving(tmp_path / "published") as served, pytest.MonkeyPatch.context() as patch:
        for name in ("stsb", "wiki"):
            patch.setitem(SOURCES, name, stand_in(name, served.folder, served.address))
        code, out, err = run("data", "stsb", "wiki", "--out", "here")
        assert code == 0 and out == "here/stsb/stsb.tsv.gz\nhere/wiki/wiki_1m.txt.xz\n", err
        code, out, err = run("data", "stsb", "wiki", "--out", "here")
        assert code == 0 and out == "here/stsb/stsb.tsv.gz is there.\nhere/wiki/wiki_1m.txt.xz is there.\n", err


@pytest.mark.slow
def test_every_table_runs_on_what_was_written(run, published):
    for name in MAKERS:
        code, _, err = run("data", name, "--from", f"given/{name}")
        assert code == 0, err
    found = tables()
    flowers = {"flowers51-6", "flowers51-25"}
    assert set(found) == {"cifar10", "wikipedia", "zinc12k", "moleculenet", "tuning"} | flowers
    for name, table in found.items():
        code, out, err = run(*table.command.split()[1:], "--dry-run")  # as it is printed
        assert code == 0 and out, f"{name}: {err}"
    for words in documented():
        code, out, err = run(*words, "--dry-run")
        assert code == 0 and "run" in out, f"{words}: {err}"
    for words in (
        ["images", "--data", "data/flowers/flowers51.parquet"],
        ["images", "--data", "data/flowers/flowers102.parquet", "--set", "image_size=64", "--set", "patch_size=8"],
    ):
        code, out, err = run("compare", *words, "--dry-run")
        assert code == 0 and "runs" in out, f"{words}: {err}"


def test_ctrl_c_keeps_what_is_there_and_the_same_command_goes_on(tmp_path):
    """A server that stops in the middle and says nothing, until the command is interrupted."""
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, {tests!r}); from stand_ins import stand_in\n"
        "from sepnorm.sources.registry import SOURCES; from sepnorm.commands.app import main\n"
        "SOURCES['wiki'] = stand_in('wiki', Path({folder!r}), {address!r}); sys.argv = ['sepnorm', 'data', 'wiki']; main()"
    )
    with serving(tmp_path / "published") as served:
        served.cut, served.silence = 1000, 20.0
        code = script.format(tests=str(ROOT / "tests"), folder=str(served.folder), address=served.address)
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        kept = tmp_path / "data/originals/wiki"
        for _ in range(300):
            if any(part.stat().st_size for part in kept.glob("*.part")):
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        said = "Stopped: wiki is not written yet: the same command goes on from there.\n"
        assert process.returncode == 130 and err == said
        served.cut, served.silence = None, 0.0
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout == "data/wiki/wiki_1m.txt.xz\n", done.stderr
        assert served.asked[-1][1] == "bytes=1000-"
