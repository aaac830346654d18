"""The monitor in our own runs: readings at equal distances, saved in checkpoints and with the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from sepnorm.files import write_text
from sepnorm.training.monitor import Embed, Monitor, untouched
from sepnorm.training.trainer import Watcher

#: File of a run with its readings, without ``.npz``.
FILE = "monitor"
_KEPT = "monitor.json"


class Monitored:
    """A ``Watcher`` that takes ``count`` readings in the course of a run and calls other watchers.

    ``more`` returns further figures for a reading, such as the scores of probes.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        embed: Embed,
        count: int,
        others: Sequence[Watcher] = (),
        more: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        self.monitor = Monitor(model, None, embed=embed)
        self.count, self.others, self.more = count, others, more

    def due(self, step: int, steps: int) -> bool:
        return self._reads(step, steps) or any(other.due(step, steps) for other in self.others)

    def look(self, step: int, steps: int) -> None:
        for other in self.others:
            if other.due(step, steps):
                other.look(step, steps)
        if self._reads(step, steps):
            reading = self.monitor.read(step)
            if self.more is not None:
                with untouched(self.monitor.model):
                    reading.figures.update(self.more())

    def _reads(self, step: int, steps: int) -> bool:
        """Whether to read: at the first step, at the last, and at ``count`` equal distances between."""
        every = max(steps // self.count, 1) if self.count else 0
        return bool(every) and (step in (1, steps) or step % every == 0)

    def save(self, checkpoint: Path) -> None:
        """Saves the readings into a checkpoint."""
        for other in self.others:
            other.save(checkpoint)
        write_text(checkpoint / _KEPT, json.dumps(self.monitor.state_dict()))

    def resume(self, checkpoint: Path) -> None:
        """Restores the readings from a checkpoint."""
        for other in self.others:
            other.resume(checkpoint)
        if (checkpoint / _KEPT).is_file():
            self.monitor.load_state_dict(json.loads((checkpoint / _KEPT).read_text(encoding="utf-8")))

    def arrays(self) -> dict[str, dict[str, Tensor]]:
        """Arrays for the run's folder: steps, and the figures of [CLS] by name."""
        history = self.monitor.history
        if not history:
            return {}
        names = [name for name in history[0].figures if name.startswith("cls_")]
        found = {name: torch.tensor([r.figures[name] for r in history], dtype=torch.float64) for name in names}
        return {FILE: {"steps": torch.tensor([r.step for r in history])} | found}
