"""Folders of runs on nodes that do not see ours."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile

import pytest

from sepnorm.experiment.launchers.transfer import Place, bring_home, carried, pack, unpack


@pytest.fixture
def run(tmp_path):
    """A run's folder as a node has it."""
    folder = tmp_path / "node" / "ln-seed0"
    (folder / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    (folder / "checkpoints" / "checkpoint-2" / "weights").write_bytes(b"\0\1")
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
    assert (home / "checkpoints" / "checkpoint-2" / "weights").read_bytes() == b"\0\1"
    assert not (home / ".lock").exists()
    content = carried(home)
    assert content is not None
    unpack(content, tmp_path / "next")
    assert sorted(path.name for path in (tmp_path / "next").iterdir()) == ["checkpoints", "config.json"]


def test_a_finished_run_is_brought_home_and_leaves_nothing(tmp_path, run):
    home = tmp_path / "home" / "ln-seed0"
    bring_home(pack(run), home)
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.json").write_text("{}")
    bring_home(pack(run), home)
    assert sorted(path.name for path in home.iterdir()) == ["config.json", "metrics.json"] and carried(home) is None


def test_a_run_that_is_ended_by_a_node_that_sees_our_folder_is_not_carried_any_more(tmp_path, run):
    home = tmp_path / "home" / "ln-seed0"
    bring_home(pack(run), home)
    bring_home(None, home)  # lost once more, before its end
    assert carried(home) is not None
    (home / "metrics.json").write_text("{}")
    bring_home(None, home)
    assert carried(home) is None and not (home / ".sepnorm-fetched").exists()


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
