"""Runs on a Ray cluster: an existing one, or one on this machine that is started and stopped with the runs."""

from __future__ import annotations

import logging
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError, as_notes, one_line
from sepnorm.experiment.launchers.cluster import drive, installed
from sepnorm.experiment.launchers.jobs import Ended, Job, Tally, Watch, attempt
from sepnorm.experiment.launchers.transfer import Place, bring_home, carried, pack, saved, unpack

_LOOK = 0.5  # seconds between two checks of the runs
_ANSWER = 10.0  # seconds to wait for a cluster's answer
_TRIES = 3  # attempts at a run whose process is lost
logger = logging.getLogger("sepnorm")


class Ray:
    """Launcher for Ray. ``options`` are those of a Ray task, such as ``num_cpus`` (default: a run's threads), and
    ``address``.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.address = self.options.pop("address", None)

    def run(self, jobs: Iterator[Job], like: Job, watch: Watch | None) -> None:
        # Keeps messages of Ray's nodes out of our output, which may be JSON; we report losses. Ray reads it at import.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        ray = installed("ray")
        usual = {"num_cpus": like.config.threads or 1, "num_gpus": int(like.config.device == "cuda"), "max_retries": 0}
        options = usual | self.options
        try:
            ray.remote(_run_here).options(**options)
            needed = _needed(options)
        except (TypeError, ValueError, AttributeError) as error:
            raise SepNormError(f"Ray does not take these settings of --launcher ray: {one_line(error)}.") from error
        with _connected(ray, self.address):
            tally = Tally(watch)
            folder = like.folder.parent.absolute()
            runs = _Runs(ray, options, needed, tally, Place.of(folder), _board(ray))
            try:
                drive(runs, jobs, folder)
            except ray.exceptions.RayError as error:
                raise SepNormError(
                    f"the Ray cluster is lost: {one_line(error)}. Runs are saved as far as their last checkpoints in {folder}: the "
                    "same command goes on when the cluster is there again."
                ) from error
        tally.close()


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connects to the cluster that is in use already, to ``address`` or this node's, else starts one."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # for a cluster that we start
    try:
        _knock(address or os.environ.get("RAY_ADDRESS", ""))
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises a bare one where a cluster does not start in time
        ray.shutdown()  # what has started of it
        raise SepNormError(
            f"the Ray cluster {address or 'of this machine'} cannot be reached or started: {one_line(error)}. Check by "
            "'ray status' that it runs, with the same versions of Ray and Python as here, and that its token is known here, if it "
            "has one (RAY_AUTH_TOKEN)."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raises if nothing answers at ``HOST:PORT``. Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()


def _needed(options: Mapping[str, Any]) -> dict[str, float]:
    """The resources that a run needs, by Ray's names."""
    named = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    return {name: float(count) for name, count in (named | (options.get("resources") or {})).items() if count}


class Board:
    """An actor on our node to which runs write their progress."""

    def __init__(self) -> None:
        self.news: list[tuple[int, str, tuple[Any, ...]]] = []

    def write(self, *news: Any) -> None:
        self.news.append(news)

    def take(self) -> list[tuple[int, str, tuple[Any, ...]]]:
        news, self.news = self.news, []
        return news


def _board(ray: Any) -> Any:
    here = ray.get_runtime_context().get_node_id()
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": _on(here, soft=False)}
    return ray.remote(Board).options(**options).remote()


def _on(node: str, soft: bool) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=soft)


@dataclass(eq=False)
class _Try:
    """A submitted job, its number of attempts, its node, and whether it was tried again after an error."""

    job: Job
    number: int
    count: int = 1
    node: str = ""
    failed: bool = False


@dataclass(eq=False)
class _Runs:
    """The jobs on the cluster; see ``cluster.Cluster``."""

    ray: Any
    options: dict[str, Any]
    needed: Mapping[str, float]
    tally: Tally
    place: Place
    board: Any
    under_way: dict[Any, _Try] = field(default_factory=dict)
    handed: int = 0

    @property
    def running(self) -> int:
        return len(self.under_way)

    def room(self) -> int:
        """Room by the total resources of all nodes, used or not. Raises if no node can ever run a job."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        places = sum(_times(self.needed, resources) for resources in nodes)
        if not places:
            most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in self.needed}
            raise SepNormError(
                f"no node of the Ray cluster has room for a run, which asks for {_listed(self.needed)}: the most that a node "
                f"has is {_listed(most)}. Ask for less, as --launcher 'ray num_cpus=1', or start a node that has it."
            )
        return max(0, places - self.running)

    def hand_out(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._start(_Try(replace(job, folder=job.folder.absolute()), self.handed))
            self.handed += 1

    def _start(self, this: _Try, content: bytes | None = None) -> None:
        where = {"scheduling_strategy": _on(this.node, soft=True)} if this.node else {}  # its checkpoints may be there
        task = self.ray.remote(_run_here).options(**where | self.options)
        ours = saved(this.job.folder)
        started = task.remote(this.job, self.place, str(Path.cwd()), ours, content, self.board, this.number)
        self.under_way[started] = this

    def look(self, stopping: bool) -> None:
        ended, _ = self.ray.wait(list(self.under_way), timeout=_LOOK)
        by_number = {this.number: this for this in self.under_way.values()}
        for number, node, progress in self._news():
            if this := by_number.get(number):
                this.node = node
                self.tally.progress(this.job, progress)
        for one in ended:
            self._end(one, self.under_way.pop(one), stopping)

    def _news(self) -> list[tuple[int, str, tuple[Any, ...]]]:
        """What runs have written to the board since the last time; nothing while the board is started again."""
        try:
            news: list[tuple[int, str, tuple[Any, ...]]] = self.ray.get(self.board.take.remote(), timeout=_ANSWER)
            return news
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.GetTimeoutError):
            return []

    def _end(self, one: Any, this: _Try, stopping: bool) -> None:
        errors, job = self.ray.exceptions, this.job
        try:
            ended, content = self.ray.get(one)
        except errors.RayTaskError as error:  # before our code ran: most often sepnorm is not installed there
            why = f"{type(error.cause).__name__}: {one_line(error.cause)}"
            ended, content = Ended("failed", f"{job.name}, did not begin on its node of the cluster ({why})."), None
        except errors.RayError as error:
            ended, content = Ended("stopped", one_line(error).split(". ")[0]), None
        if content is not None:
            try:
                bring_home(content, job.folder)
            except OSError as error:
                raise SepNormError(
                    f"{job.name}, cannot be written to {job.folder} ({error.strerror}) and is kept on its node: make room, "
                    "and call the same command again."
                ) from error
            self._tidy(this)
        if ended.how in ("stopped", "unsent") and stopping:
            return
        if ended.how == "unsent":
            self._start(this, carried(job.folder))
        elif ended.how == "stopped" and this.count < _TRIES:
            this.count += 1
            logger.warning(
                "%s, lost its process (%s) and goes on from its last checkpoint: try %d of %d.",
                job.name, ended.why or "it was told to stop", this.count, _TRIES,
            )  # fmt: skip
            self.tally.begin(job)
            self._start(this)
        elif ended.how == "stopped":
            self.tally.end(
                job, f"{job.name}, lost its process {_TRIES} times ({ended.why}), perhaps for want of memory."
            )
        elif ended.again and not this.failed and not stopping:
            this.failed = True
            logger.warning("%s: it is tried once more, from its last checkpoint.", ended.why.rstrip("."))
            self.tally.begin(job)
            self._start(this)
        else:
            self.tally.end(job, ended.why)

    def _tidy(self, this: _Try) -> None:
        """Removes a run's folder from the node that sent it back, if that is known and answers."""
        if not this.node:
            return
        task = self.ray.remote(_remove_there).options(
            num_cpus=0, max_retries=0, scheduling_strategy=_on(this.node, soft=False)
        )
        with suppress(self.ray.exceptions.RayError):
            self.ray.get(task.remote(self.place, this.job.folder), timeout=_ANSWER)

    def stop(self, now: bool) -> None:
        for one in self.under_way:
            self.ray.cancel(one, force=now)


def _times(needed: Mapping[str, float], has: Mapping[str, float]) -> int:
    """How often the needed resources fit into a node."""
    return min((int(has.get(name, 0) // count) for name, count in needed.items()), default=int(has.get("CPU", 1)))


def _listed(resources: Mapping[str, float]) -> str:
    said = {"CPU": "num_cpus", "GPU": "num_gpus"}
    return ", ".join(f"{said.get(name, name)}={count:g}" for name, count in resources.items())


def _run_here(
    job: Job, place: Place, folder: str, ours: float, content: bytes | None, board: Any, number: int
) -> tuple[Ended, bytes | None]:
    """Does a run on a node. If the node does not share our folder, the run's folder is returned as bytes.

    ``ours`` says what is saved in our folder. If the node has less it returns, to be called again with ``content``.
    """
    import ray

    as_notes(silent=True)
    if not ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # newer versions of Ray show all GPUs to a run that asked for none
    node = ray.get_runtime_context().get_node_id()
    ray.get(board.write.remote(number, node, ()))
    there = replace(job, folder=place.here(job.folder))
    if there.folder != job.folder and saved(there.folder) < ours:
        if content is None:
            return Ended("unsent"), None
        shutil.rmtree(there.folder, ignore_errors=True)
        unpack(content, there.folder)
    # data may be named relative to where the command was called
    with chdir(folder) if Path(folder).is_dir() else nullcontext():
        ended = attempt(there, lambda *progress: board.write.remote(number, node, progress))
    if there.folder == job.folder:
        return ended, None
    try:
        content = pack(there.folder)
    except Exception as error:  # most often for want of memory
        address = ray.util.get_node_ip_address()
        why = f"{job.name}, could not be sent back ({one_line(error)}): it is kept in {there.folder} on node {address}."
        return Ended("failed", why), None
    return ended._replace(why=ended.why.replace(str(there.folder), str(job.folder))), content


def _remove_there(place: Place, run: Path) -> None:
    shutil.rmtree(place.apart(run), ignore_errors=True)
