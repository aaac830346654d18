from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from noted_runs import CONFIG, Noting, Watching, jobs, metrics

from sepnorm import SepNormError
from sepnorm.distributed import cores
from sepnorm.errors import InterruptedRunError
from sepnorm.experiment.launcher_settings import refuse_many_processes
from sepnorm.experiment.launchers import run_jobs
from sepnorm.experiment.launchers.local import places


def test_what_was_finished_before_is_told_too(tmp_path):
    run_jobs(jobs(tmp_path))
    watch = Watching([])
    run_jobs(jobs(tmp_path), "local", watch)
    assert watch.ended == [(seed, False) for seed in range(4)] and not watch.seen


def test_runs_side_by_side_have_their_own_process_and_threads_and_tidy_up(tmp_path, monkeypatch):
    monkeypatch.setattr("sepnorm.experiment.launchers.local.places", lambda config: 2)
    seen: list[tuple] = []
    watch = Watching(seen)
    run_jobs(jobs(tmp_path, data="tidy"), "local", watch)
    found = metrics(tmp_path)
    assert sorted(watch.ended) == [(seed, False) for seed in range(4)]
    processes = {run["process"] for run in found}
    assert 1 <= len(processes) <= 2 and os.getpid() not in processes
    assert {run["threads"] for run in found} == {1}
    assert sorted(seen) == [(seed, 1, 2, 0.5, 10.0) for seed in range(4)]
    assert {f"tidied-{process}" for process in processes} == {path.name for path in tmp_path.rglob("tidied-*")}


def test_one_at_a_time_stays_in_this_process(tmp_path):
    threads = torch.get_num_threads()
    run_jobs(jobs(tmp_path, 2, threads=0))
    assert {run["process"] for run in metrics(tmp_path, 2)} == {os.getpid()}
    assert torch.get_num_threads() == threads


def test_finished_runs_start_nothing(tmp_path, monkeypatch):
    run_jobs(jobs(tmp_path, 2, threads=0))
    monkeypatch.setattr(Noting, "__init__", None)  # would be called
    run_jobs(jobs(tmp_path, 2, threads=0))


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        ("broken", SepNormError, "the data are broken"),
        ("crash", SepNormError, "ended with exit code 3"),
        ("odd", RuntimeError, "ValueError: odd"),
    ],
)
def test_what_goes_wrong_in_a_process_is_told(tmp_path, monkeypatch, data, error, said):
    monkeypatch.setattr("sepnorm.experiment.launchers.local.places", lambda config: 2)
    with pytest.raises(error, match=said):
        run_jobs(jobs(tmp_path, 2, data=data))


def test_control_c_stops_all_and_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr("sepnorm.experiment.launchers.local.places", lambda config: 2)

    class Interrupting(Watching):
        def start(self, arm, seed):
            return lambda *progress: os.kill(os.getpid(), signal.SIGINT) if seed == 1 else None

    begun = time.monotonic()
    with pytest.raises(InterruptedRunError, match="the same command goes on"):
        run_jobs(jobs(tmp_path, 2, data="slow"), "local", Interrupting([]))
    assert time.monotonic() - begun < 200  # not the four minutes that the runs would have slept


@pytest.mark.timeout(120)
@pytest.mark.parametrize("data", ["slow", "ahead"])
def test_workers_end_when_the_parent_is_killed(tmp_path, data):
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import sepnorm.experiment.launchers as launchers, noted_runs as t\n"
        "import sepnorm.experiment.launchers.local as local\n"
        "from pathlib import Path\n"
        "if __name__ == '__main__':\n"
        "    local.places = lambda config: 2\n"
        "    class Saying(t.Watching):\n"
        "        def start(self, arm, seed):\n"
        "            return lambda *progress: print('under way', flush=True)\n"
        f"    launchers.run_jobs(t.jobs(Path({str(tmp_path)!r}), 2, data={data!r}), 'local', Saying([]))\n"
    )
    script = tmp_path / "main.py"
    script.write_text(code)
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, cwd=root)
    assert parent.stdout is not None and parent.stdout.readline() == b"under way\n"
    children = children_of(parent.pid)
    readers = [reader for child in children for reader in children_of(child)]
    parent.kill()
    parent.wait()
    assert children and bool(readers) == (data == "ahead")
    children += readers
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.timeout(120)
def test_runs_side_by_side_read_ahead_with_their_share_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("sepnorm.experiment.launchers.local.places", lambda config: 2)
    run_jobs(jobs(tmp_path, 2, data="ahead at once"))
    shares = {(tmp_path / str(seed) / "readers").read_text() for seed in range(2)}
    assert shares == {str(max(1, cores() // 2))}


@pytest.mark.timeout(120)
def test_control_c_of_a_terminal_while_workers_start_is_one_sentence(tmp_path):
    """A terminal sends Ctrl-C to all processes of a command, also to those that still import torch."""
    script = tmp_path / "main.py"
    script.write_text(
        "import sys; sys.path.insert(0, 'tests')\n"
        "import sepnorm.experiment.launchers as launchers, noted_runs as t\n"
        "import sepnorm.experiment.launchers.local as local\n"
        "from pathlib import Path\n"
        "if __name__ == '__main__':\n"
        "    local.places = lambda config: 2\n"
        "    class Saying(t.Watching):\n"
        "        def start(self, arm, seed):\n"
        "            print('given', flush=True)\n"
        "    try:\n"
        f"        launchers.run_jobs(t.jobs(Path({str(tmp_path)!r}), 2, data='slow'), 'local', Saying([]))\n"
        "    except t.SepNormError as stop:\n"
        "        print(stop)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    assert parent.stdout is not None and [parent.stdout.readline() for _ in range(2)] == ["given\n"] * 2
    while not any("libtorch" in Path(f"/proc/{child}/maps").read_text() for child in children_of(parent.pid)):
        time.sleep(0.01)
    os.killpg(parent.pid, signal.SIGINT)
    said = parent.communicate()[0].splitlines()
    assert len(said) == 1 and said[0].startswith("the comparison was stopped and is saved in")
    assert not list(tmp_path.rglob("begun"))


def test_places_are_cores_by_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [places(CONFIG.changed({"threads": n})) for n in (0, 1, 3, 16)] == [1, 8, 2, 1]


def test_a_number_of_workers_is_the_largest_number_of_parallel_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("sepnorm.experiment.launchers.local.places", lambda config: 4)
    asked = []
    monkeypatch.setattr(
        "sepnorm.experiment.launchers.local._side_by_side", lambda jobs, workers, *rest: asked.append(workers)
    )
    for workers in (None, 3, 8):
        run_jobs(jobs(tmp_path), "local", None, workers)
    assert asked == [4, 3, 4]


def test_unknown_launchers_and_those_not_installed_are_refused(tmp_path, monkeypatch):
    with pytest.raises(SepNormError, match=r"unknown launcher 'submitti'.*Did you mean 'submitit'"):
        run_jobs(jobs(tmp_path), "submitti")
    with pytest.raises(SepNormError, match="local takes no settings"):
        run_jobs(jobs(tmp_path), "local x=1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SepNormError, match=r"--launcher ray needs ray: pip install 'sepnorm\[cluster\]'"):
        run_jobs(jobs(tmp_path), "ray")


def test_an_empty_launcher_is_refused(tmp_path):
    with pytest.raises(SepNormError, match="unknown launcher ''"):
        run_jobs(jobs(tmp_path), " ")


@pytest.mark.parametrize("words", ["compare images", "compare text --launcher ray", "study sites", "reproduce table1"])
def test_a_comparison_in_many_processes_is_refused_before_any_work(run, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun and accelerate set it
    code, out, err = run(*words.split())
    assert (code, out) == (1, "") and len(err.splitlines()) == 1
    assert "started in 2 processes (WORLD_SIZE), which would all begin the same runs: start it in one" in err
    assert not list(tmp_path.iterdir())


def test_tasks_of_slurm_and_runs_of_a_launcher_may_compare(monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"):  # srun alone, and submitit
        monkeypatch.setenv(name, "3")
    refuse_many_processes()
    monkeypatch.setenv("WORLD_SIZE", "1")  # torchrun with one process
    refuse_many_processes()
