"""Runs that are killed at any moment, ended by a scheduler, or started twice in one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from random import Random

import pytest
from small_runs import RUNS, finish, outcome, spent, start, wait_for_checkpoint, wait_until
from whole_files import IMAGES, RUN_IMAGES, copy

from sepnorm.domains.pretraining import pretrain
from sepnorm.errors import InterruptedRunError, SepNormError
from sepnorm.training.checkpoints import last_checkpoint

GIVEN, SETTINGS = {"data": "pictures", "max_steps": 4}, [*IMAGES, "checkpoints=3"]  # as of the whole files
KILLS = 10  # for each of the three domains


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("domain", RUNS)
def test_a_run_that_is_killed_again_and_again_ends_with_the_weights_of_one_that_was_not(domain, whole, tmp_path):
    copy(whole, RUNS[domain][0], tmp_path)
    process = start(domain, tmp_path, "undisturbed")
    whole_time = 0.0
    while process.poll() is None:
        whole_time = max(whole_time, spent(process))
        wait_until(process, whole_time + 0.2)
    finish(process)
    wanted = outcome(tmp_path / "undisturbed")
    rng, kills, runs = Random(domain), 0, 0
    while kills < KILLS:
        runs += 1
        process = start(domain, tmp_path, f"run{runs}")
        while kills < KILLS and wait_until(process, rng.uniform(0.5, 1.05) * whole_time):
            process.kill()
            process.communicate()
            kills += process.returncode == -signal.SIGKILL
            process = start(domain, tmp_path, f"run{runs}")
        finish(process)
        assert outcome(tmp_path / f"run{runs}") == wanted
        left = [path.name for path in (tmp_path / f"run{runs}").iterdir() if path.name.startswith(".")]
        assert left == [".lock"] and not (tmp_path / f"run{runs}" / "checkpoints").exists()


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_scheduler_ends_a_run_as_control_c_does(number, whole, tmp_path):
    copy(whole, RUNS["images"][0], tmp_path)
    finish(start("images", tmp_path, "undisturbed"))
    process = start("images", tmp_path, "run")
    wait_for_checkpoint(process, tmp_path / "run")
    process.send_signal(number)
    said = process.communicate(timeout=600)[1]
    assert process.returncode == 130
    assert "Stopped: the run was stopped at step" in said and "--resume makes the same command go on" in said
    assert "Traceback" not in said
    finish(start("images", tmp_path, "run"))
    assert outcome(tmp_path / "run") == outcome(tmp_path / "undisturbed")


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_the_second_of_two_runs_in_one_folder_is_refused_and_the_first_is_unharmed(whole, tmp_path):
    copy(whole, RUNS["images"][0], tmp_path)
    finish(start("images", tmp_path, "undisturbed"))
    first = start("images", tmp_path, "run")
    wait_for_checkpoint(first, tmp_path / "run")
    os.kill(first.pid, signal.SIGSTOP)  # or it might be done before the second has begun
    second = start("images", tmp_path, "run")
    said = second.communicate(timeout=600)[1]
    os.kill(first.pid, signal.SIGCONT)
    assert second.returncode == 1
    assert said.strip().split("\n")[-1].startswith("Error: another process is at work in run: wait until it has ended")
    finish(first)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "undisturbed")


# ---- quick ones, in this process ----------------------------------------------------------------------------------------


def test_sigterm_saves_and_says_how_to_go_on(whole, tmp_path, monkeypatch):
    copy(whole, ["pictures"], tmp_path)
    monkeypatch.chdir(tmp_path)

    def end(step: int, *others: object) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    given = {"data": "pictures", "max_steps": 4}
    with pytest.raises(
        InterruptedRunError, match=r"stopped at step [23] of 4 .*: --resume makes the same command go on"
    ):
        pretrain("images", "demo", given, [*IMAGES, "checkpoints=3"], Path("run"), start=lambda *arm: end)
    run = pretrain("images", "demo", given, [*IMAGES, "checkpoints=3"], Path("run"), resume=True)
    assert run is not None and outcome(Path("run")) == outcome(whole / "run")


def holder(folder: Path, config: str) -> subprocess.Popen[str]:
    """Another process that has begun a run in a folder, and holds it."""
    code = (
        "import sys, time; from pathlib import Path; from sepnorm.files import locked\n"
        "folder = Path(sys.argv[1]); folder.mkdir(exist_ok=True)\n"
        "with locked(folder):\n"
        "    (folder / 'config.json').write_text(sys.argv[2])\n"
        "    (folder / 'checkpoints').mkdir(exist_ok=True)\n"
        "    print('held', flush=True); time.sleep(600)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(folder), config], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    return other


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_run_that_another_process_has_begun_is_left_alone(whole, tmp_path, monkeypatch, moment):
    """Also where it is begun while this one reads its data."""
    from sepnorm.domains.images.recipe import ImageRecipe

    copy(whole, ["pictures"], tmp_path)
    monkeypatch.chdir(tmp_path)
    others, config = [], (whole / "begun" / "config.json").read_text()
    read = ImageRecipe.__init__

    def begun(recipe, settings):
        others.append(holder(tmp_path / "run", config))
        read(recipe, settings)

    if moment == "before":
        others.append(holder(tmp_path / "run", config))
    else:
        monkeypatch.setattr(ImageRecipe, "__init__", begun)
    try:
        with pytest.raises(SepNormError, match="another process is at work in run"):
            pretrain("images", "demo", GIVEN, SETTINGS, Path("run"), resume=True)
        assert sorted(os.listdir("run")) == [".lock", "checkpoints", "config.json"]
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_a_clock_that_runs_backwards_changes_nothing(whole, tmp_path, monkeypatch):
    copy(whole, ["pictures"], tmp_path)
    monkeypatch.chdir(tmp_path)
    backwards = count(2e9, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(backwards)))
    pretrain("images", "demo", GIVEN, SETTINGS, Path("run"))
    assert outcome(Path("run")) == outcome(whole / "run")


def test_a_clock_that_jumps_back_loses_no_checkpoint(whole, tmp_path, monkeypatch):
    """Files of before the jump look newer than those of after it."""
    copy(whole, ["pictures", "begun"], tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in Path("begun").rglob("*"):
        os.utime(path, (4e9, 4e9))  # in the year 2096
    pretrain("images", "demo", GIVEN, SETTINGS, Path("begun"), resume=True)
    assert outcome(Path("begun")) == outcome(whole / "run")


def test_checkpoints_are_kept_by_their_step_and_not_by_their_date(run, whole, tmp_path, monkeypatch):
    """A run that is stopped after a jump of the clock has its newest checkpoints."""
    copy(whole, ["pictures"], tmp_path)
    seen: list[int] = []

    def age(step: int, *others: object) -> None:
        seen.append(step)
        for path in Path("run/checkpoints").glob("checkpoint-*"):
            os.utime(path, (4e9 - step, 4e9 - step))  # what is there is newer than what is to come
        if step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    given = {"data": "pictures", "max_steps": 8}
    with pytest.raises(InterruptedRunError, match="stopped at step 6"):
        pretrain("images", "demo", given, [*IMAGES, "checkpoints=7"], Path("run"), start=lambda *arm: age)
    kept = sorted(path.name for path in Path("run/checkpoints").glob("checkpoint-*"))
    assert kept == ["checkpoint-5", "checkpoint-6"]
    assert run(*RUN_IMAGES, "--max-steps", "8", "--set", "checkpoints=7", "--out", "run", "--resume")[0] == 0


def test_a_copy_beside_the_checkpoints_is_none_of_them(tmp_path):
    (tmp_path / "checkpoint-3-copy").mkdir()
    assert last_checkpoint(tmp_path) is None
