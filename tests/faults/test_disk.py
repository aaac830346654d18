"""Disks that are full or read-only, and clocks that jump: one sentence, nothing lost, and the same command goes on."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from whole_files import RUN_IMAGES, copy

LINES = ["embed", "bert", "lines.txt", "--out"]


def long(*words: str) -> object:
    return pytest.param(list(words), marks=pytest.mark.faults)


@pytest.fixture
def mounted(tmp_path):
    """Mounts a small disk in memory at ``small`` below the test's folder; skips where that is not possible."""
    place = tmp_path / "small"
    place.mkdir()

    def mount(*options: str) -> Path:
        if os.geteuid() != 0 or shutil.which("mount") is None:
            pytest.skip("mounting a disk needs root")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(place)], capture_output=True
        )
        if done.returncode:
            pytest.skip(f"a disk cannot be mounted here: {done.stderr.decode().strip()}")
        return place

    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def remount(place: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(place)], check=True)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(place: Path, left: int) -> None:
    """Leaves so many bytes."""
    room = os.statvfs(place)
    with open(place / "filler", "wb") as file:
        file.write(bytes(room.f_bavail * room.f_bsize - left))


@pytest.mark.parametrize("left", [0, pytest.param(12_000, marks=pytest.mark.faults)])
@pytest.mark.parametrize(
    "words",
    [
        [*LINES, "small/e.npy"],
        long(*LINES, "small/e.parquet"),
        ["diagnose", "e.npy", "--out", "small/d"],
        long("evaluate", "bert", "--data", "sets", "--on", "stsb", "--out", "small/v"),
        long("evaluate", "vit", "--data", "idx", "--on", "knn", "--out", "small/w"),
        ["convert", "bert", "--data", "lines.txt", "--out", "small/c"],
        long("convert", "sentences", "--data", "lines.txt", "--out", "small/s"),
    ],
    ids=lambda words: words[-1],
)
def test_a_full_disk_is_one_sentence_and_earlier_results_stay(run, mounted, whole, tmp_path, words, left):
    copy(whole, ["bert", "lines.txt", "e.npy", "sets", "vit", "idx", "sentences"], tmp_path)
    place = mounted("size=12m")
    if words[0] != "convert":  # which takes new folders only
        assert run(*words)[0] == 0
    before = files(place)
    fill(place, left)
    code, out, err = run(*words)
    if code == 0 and left:
        return  # so little was to be written
    assert code == 1 and out == "", err
    assert err.strip().split("\n")[-1].startswith("Error: ") and "No space left on device" in err
    (place / "filler").unlink()
    assert {name: content for name, content in files(place).items() if content} == before
    code, _, err = run(*words)
    assert code == 0, err


def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(run, mounted, whole, tmp_path):
    copy(whole, ["pictures"], tmp_path)
    assert run(*RUN_IMAGES, "--out", "undisturbed")[0] == 0
    place = mounted("size=300k")  # less than two checkpoints
    code, _, err = run(*RUN_IMAGES, "--out", "small/run")
    assert code == 1, err
    assert err.strip().split("\n")[-1].startswith("Error: ") and "Traceback" not in err
    remount(place, "size=20m")
    code, _, err = run(*RUN_IMAGES, "--out", "small/run", "--resume")
    assert code == 0, err
    one, other = (Path(f"{folder}/model/sepnorm.safetensors").read_bytes() for folder in ("undisturbed", "small/run"))
    assert one == other


@pytest.mark.parametrize(
    "words",
    [
        [*LINES, "small/e.npy"],
        ["diagnose", "e.npy", "--out", "small/d"],
        long("convert", "bert", "--data", "lines.txt", "--out", "small/c"),
        long("evaluate", "bert", "--data", "sets", "--on", "stsb", "--out", "small/v"),
        ["pretrain", "images", "--data", "pictures", "--out", "small/r"],
        long("compare", "images", "--data", "pictures", "--set", "threads=0", "--out", "small/r"),
    ],
    ids=lambda words: words[0],
)
def test_a_read_only_folder_is_one_sentence(run, mounted, whole, tmp_path, words):
    copy(whole, ["bert", "lines.txt", "e.npy", "sets", "pictures"], tmp_path)
    remount(mounted("size=1m"), "ro")
    code, out, err = run(*words)
    assert code == 1 and out == "", err
    assert err.strip().split("\n")[-1].startswith("Error: ") and "small" in err.strip().split("\n")[-1]
    assert list(Path("small").iterdir()) == []


def test_files_that_may_not_grow_are_one_sentence_and_the_old_one_stays(run, whole, tmp_path):
    """Without root too: a limit on the size of files, as some clusters set it."""
    copy(whole, ["bert", "lines.txt"], tmp_path)
    (tmp_path / "e.npy").write_bytes(b"earlier")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))  # bytes, less than the vectors take
    try:
        code, out, err = run(*LINES, "e.npy", "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert code == 1 and out == ""
    assert err.strip().split("\n")[-1].startswith("Error: ") and "File too large" in err
    assert (tmp_path / "e.npy").read_bytes() == b"earlier"
    assert sorted(os.listdir(tmp_path)) == ["bert", "e.npy", "lines.txt"]
