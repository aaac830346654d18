"""Runs that train nothing, for tests of launchers: they note who ran what."""

from __future__ import annotations

import json
import os
import time
from multiprocessing.util import Finalize
from pathlib import Path

import torch

from sepnorm import SepNormError
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.molecules.config import PRESETS as MOLECULES
from sepnorm.domains.molecules.streaming import Ahead
from sepnorm.experiment.launchers import Job
from sepnorm.experiment.runs import Outcome

CONFIG = PRESETS["demo"].changed({"threads": 1})


def slowly_touch(path):
    time.sleep(0.5)
    path.touch()


def carbons():
    """A stream of molecules that is read ahead."""
    from datasets import Dataset

    rows = Dataset.from_dict({"smiles": ["C"] * 8}).to_iterable_dataset()
    return Ahead(MOLECULES["demo"], rows, lambda row: [(row["smiles"], [])], 0)


class Noting:
    """A recipe that trains nothing: it notes who ran what, and fails where its data says so."""

    def __init__(self, base):
        self.base = base

    def run(self, config, folder, report):
        if self.base.data == "broken":
            raise SepNormError("the data are broken, found nothing: repair them.")
        if self.base.data == "crash":
            os._exit(3)
        if self.base.data == "tidy":  # as what is shared between processes is
            Finalize(None, slowly_touch, (folder.parent / f"tidied-{os.getpid()}",), exitpriority=0)
        if self.base.data.startswith("ahead"):
            source = carbons()
            source.take(4)
            (folder.parent / "readers").write_text(str(len(source._pool._processes)))
            if self.base.data == "ahead":
                report(1, 2, 0.5, 10.0)
                time.sleep(240)
            source.close()
        if self.base.data == "odd" or (self.base.data == "odd one" and config.seed == 1):
            raise ValueError("odd")
        if report is not None:
            report(1, 2, 0.5, 10.0)
        begun = folder.parent / "begun"
        if self.base.data == "slow" or (self.base.data == "slow at first" and not begun.exists()):
            begun.write_text(str(os.getpid()))
            for _ in range(2400):
                time.sleep(0.1)
                report(1, 2, 0.5, 10.0)
        return Outcome({"process": os.getpid(), "threads": torch.get_num_threads()}, [(1, 0.5)], {}, Path.mkdir)


def jobs(folder, count=4, **changes):
    base = CONFIG.changed(changes)
    return [Job(Noting, base, base.changed({"seed": seed}), folder / str(seed)) for seed in range(count)]


def metrics(folder, count=4):
    return [json.loads((folder / str(seed) / "metrics.json").read_text()) for seed in range(count)]


class Watching:
    """Keeps what it is told."""

    def __init__(self, seen: list[tuple]) -> None:
        self.seen, self.ended = seen, []

    def expect(self, arms, seeds) -> None:
        raise AssertionError("only a comparison knows what to expect")

    def start(self, arm, seed):
        return lambda *progress: self.seen.append((seed, *progress))

    def finish(self, arm, seed, failed=False) -> None:
        self.ended.append((seed, failed))
