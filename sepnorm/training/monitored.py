"""The monitor in our own runs: readings at equal distances, kept in checkpoints and with the results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sepnorm.files import write_text
from sepnorm.training.monitor import Embed, Monitor
from sepnorm.training.trainer import Watcher

#: The file of a run with its readings, without ``.npz``.
FILE = "monitor"
_KEPT = "monitor.json"


class Monitored:
    """A ``Watcher`` that takes ``count`` readings on the way, and hands on to other watchers."""

    def __init__(self, model: torch.nn.Module, embed: Embed, count: int, others: Sequence[Watcher] = ()) -> None:
        self.monitor = Monitor(model, None, embed=embed)
        self.count, self.others = count, others

    def look(self, step: int, steps: int) -> None:
        """Reads at the first step, at the last, and as often as asked for between."""
        for other in self.others:
            other.look(step, steps)
        every = max(steps // self.count, 1) if self.count else 0
        if every and (step == 1 or step % every == 0 or step == steps):
            self.monitor.read(step)

    def save(self, checkpoint: Path) -> None:
        """Into a checkpoint."""
        for other in self.others:
            other.save(checkpoint)
        write_text(checkpoint / _KEPT, json.dumps(self.monitor.state_dict()))

    def take_up(self, checkpoint: Path) -> None:
        """From a checkpoint."""
        for other in self.others:
            other.take_up(checkpoint)
        if (checkpoint / _KEPT).is_file():
            self.monitor.load_state_dict(json.loads((checkpoint / _KEPT).read_text(encoding="utf-8")))

    def arrays(self) -> dict[str, dict[str, Tensor]]:
        """What the run's folder keeps: steps and figures of [CLS], by name."""
        history = self.monitor.history
        if not history:
            return {}
        names = [name for name in history[0].figures if name.startswith("cls_")]
        found = {name: torch.tensor([r.figures[name] for r in history], dtype=torch.float64) for name in names}
        return {FILE: {"steps": torch.tensor([r.step for r in history])} | found}
