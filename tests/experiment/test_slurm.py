"""Runs by submitit, on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from noted_runs import CONFIG, Watching, jobs, metrics

from sepnorm import SepNormError
from sepnorm.domains.images.recipe import ImageRecipe
from sepnorm.errors import RunFailedError
from sepnorm.experiment.launchers import Job, run_jobs

pytest.importorskip("submitit")
ROOT = Path(__file__).parents[2]
LOCAL = "submitit cluster=local timeout_min=5"


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    """Processes of submitit find what runs are made of."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))


def test_runs_have_their_processes_and_a_failure_is_one_sentence(tmp_path):
    watch = Watching([])
    with pytest.raises(RunFailedError) as told:
        run_jobs(jobs(tmp_path, 2, data="odd one"), LOCAL, watch)
    error = tmp_path / "1" / "error.txt"
    assert str(told.value).startswith(
        f"the run of ln, seed 1 raised ValueError: odd ({error}). The other runs are done"
    )
    assert "Traceback" in error.read_text() and "\n" not in str(told.value)
    assert metrics(tmp_path, 1)[0]["process"] != os.getpid() and metrics(tmp_path, 1)[0]["threads"] == 1
    assert sorted(watch.ended) == [(0, False), (1, True)] and (0, 1, 2, 0.5, 10.0) in watch.seen


@pytest.mark.parametrize(
    ("settings", "said"),
    [("nonsense=1", "need to be prefixed"), ("timeout_min=soon", "timeout_min"), ("cluster=moon", "named moon")],
)
def test_settings_that_submitit_does_not_know_are_refused(tmp_path, settings, said):
    with pytest.raises(SepNormError, match=f"submitit does not take these settings of --launcher submitit: .*{said}"):
        run_jobs(jobs(tmp_path), f"submitit cluster=local {settings}")
    assert not list(tmp_path.rglob("metrics.json"))


@pytest.mark.parametrize("setting", ["tasks_per_node=2", "nodes=2", "slurm_ntasks_per_node=4"])
def test_jobs_of_several_processes_are_refused(tmp_path, setting):
    with pytest.raises(
        SepNormError, match=f"each run is one process on one node, found {setting} in --launcher submitit"
    ):
        run_jobs(jobs(tmp_path), f"submitit cluster=local {setting}")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_process_that_is_gone_is_told_by_arm_and_seed(tmp_path):
    with pytest.raises(RunFailedError, match=r"the run of ln, seed 0, ended without a result \(.*\); see .*\.err\."):
        run_jobs(jobs(tmp_path, 1, data="crash"), LOCAL)


@pytest.mark.slow
def test_a_run_that_is_preempted_goes_on_from_what_is_saved(tmp_path):
    """As SLURM does before a time limit: it sends a signal, upon which the run ends, saved, and is queued again."""

    class Preempting(Watching):
        def start(self, arm, seed):
            def report(*progress):
                self.seen.append(progress)
                if len(self.seen) == 1:
                    os.kill(int((tmp_path / "0" / "begun").read_text()), signal.SIGUSR2)

            return report

    watch = Preempting([])
    run_jobs(jobs(tmp_path, 1, data="slow at first"), LOCAL, watch)
    assert metrics(tmp_path, 1)[0]["process"] != int((tmp_path / "0" / "begun").read_text())
    assert watch.ended == [(0, False)]
    assert any("Requeued" in log.read_text() for log in (tmp_path / "submitit").glob("*_log.*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_trains_goes_on_from_its_checkpoint_when_it_is_preempted(tmp_path):
    tiny = {"width": 16, "depth": 1, "heads": 2, "decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}
    base = CONFIG.changed(tiny | {"max_steps": 600, "epochs": 50, "batch_size": 32, "checkpoints": 59, "monitor": 0})
    job = Job(ImageRecipe, base, base, tmp_path / "0")

    class Preempting(Watching):
        def start(self, arm, seed):
            return self.report

        def report(self, *progress):
            if not self.seen and list(job.folder.glob("checkpoints/*/complete")):
                self.seen.append(progress)
                controller = next((tmp_path / "submitit").glob("*_submitted.pkl")).name.split("_")[0]
                (task,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
                os.kill(int(task), signal.SIGUSR2)

    watch = Preempting([])
    run_jobs([job], LOCAL, watch)
    assert watch.seen and watch.ended == [(0, False)]
    assert json.loads((job.folder / "environment.json").read_text())["resumed_from"] > 0


@pytest.mark.slow
def test_control_c_of_a_terminal_lets_runs_save_and_the_same_command_goes_on(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        "from pathlib import Path\n"
        "import noted_runs as t\n"
        "from sepnorm.experiment.launchers import run_jobs\n"
        f"run_jobs(t.jobs(Path({str(tmp_path)!r}), 1, data='slow at first'), {LOCAL!r})\n"
    )
    first = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True, start_new_session=True)
    begun = tmp_path / "0" / "begun"
    deadline = time.monotonic() + 120
    while not (begun.exists() and begun.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: to all processes that it shows
    assert f"the comparison was stopped and is saved in {tmp_path}" in first.communicate(timeout=120)[1]
    assert not Path(f"/proc/{begun.read_text()}").exists() and not (tmp_path / "0" / "metrics.json").exists()
    subprocess.run([sys.executable, script], check=True, timeout=120)
    assert len(metrics(tmp_path, 1)) == 1
