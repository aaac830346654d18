"""Folders of runs on nodes that do not see ours."""

from __future__ import annotations

import io
import math
import shutil
import tarfile
import tempfile

import pytest

from sepnorm.experiment.launchers.transfer import Place, bring_home, carried, pack, saved, unpack
from sepnorm.training.checkpoints import complete


def save(folder, step):
    checkpoint = folder / "checkpoints" / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(bytes([0, step]))
    complete(checkpoint, {"losses": [], "seconds": 0.0, "pending": []})


@pytest.fixture
def run(tmp_path):
    """A run's folder as a node has it."""
    folder = tmp_path / "node" / "ln-seed0"
    for step in (2, 10):
        save(folder, step)
    (folder / "config.json").write_text("{}")
    (folder / ".lock").touch()
    return folder


def test_a_folder_is_shared_where_its_note_is_read(tmp_path):
    ours = tmp_path / "runs"
    place = Place.of(ours)
    assert place.seen and place.here(ours / "ln-seed0") == ours / "ln-seed0"
    assert Place.of(ours) == place  # the same at the next command
    shutil.move(ours, tmp_path / "elsewhere")
    there = place.here(ours / "ln-seed0")
    assert not place.seen and there.name == "ln-seed0" and str(there).startswith(tempfile.gettempdir())
    assert Place.of(ours).token != place.token and not place.seen  # another folder of the same name
    assert there != Place.of(tmp_path / "others").here(ours / "ln-seed0")


def test_an_unfinished_run_is_carried_on(tmp_path, run):
    home = tmp_path / "home" / "ln-seed0"
    bring_home(pack(run), home)
    assert (home / "checkpoints" / "checkpoint-10" / "weights").read_bytes() == b"\0\n"
    assert not (home / ".lock").exists()
    (home / "checkpoints" / "checkpoint-14").mkdir()  # not complete
    unpack(carried(home), tmp_path / "next")
    assert sorted(path.name for path in (tmp_path / "next").iterdir()) == ["checkpoints", "config.json"]
    assert [path.name for path in (tmp_path / "next" / "checkpoints").iterdir()] == ["checkpoint-10"]
    assert saved(home) == saved(tmp_path / "next") == 10


def test_how_far_a_saved_run_is_counts_complete_checkpoints_and_the_end(run):
    assert saved(run / "nowhere") == -1 and saved(run) == 10
    (run / "checkpoints" / "checkpoint-10" / "weights").write_bytes(b"cut")
    assert saved(run) == 2
    shutil.rmtree(run / "checkpoints")
    assert saved(run) == 0
    (run / "metrics.json").write_text("{}")
    assert saved(run) == math.inf


def test_a_finished_run_is_brought_home_and_leaves_nothing(tmp_path, run):
    home = tmp_path / "home" / "ln-seed0"
    bring_home(pack(run), home)
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.json").write_text("{}")
    bring_home(pack(run), home)
    assert sorted(path.name for path in home.iterdir()) == ["config.json", "metrics.json"]


def test_a_run_is_not_finished_before_all_of_it_is_there(tmp_path, run, monkeypatch):
    (run / "a.json").touch()
    (run / "metrics.json").write_text("{}")
    (run / "z.json").touch()
    seen = []
    monkeypatch.setattr(
        "sepnorm.experiment.launchers.transfer.sync_below",
        lambda folder: seen.extend(path.name for path in folder.iterdir()),
    )
    unpack(pack(run), tmp_path / "home")
    assert "z.json" in seen and "metrics.json" not in seen and (tmp_path / "home" / "metrics.json").is_file()


def test_nothing_is_written_outside_of_the_folder(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack(buffer.getvalue(), tmp_path / "home")
    assert not (tmp_path / "outside").exists()
