"""Selects the best weights of a run by a score measured during training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from sepnorm.files import write_text, write_whole

_SCORES, _WEIGHTS = "scores.json", "best.safetensors"


class Selection:
    """Scores a model every ``every`` steps and after the last, and keeps the best weights, in checkpoints too.

    A ``Watcher`` of ``training.train``.
    """

    def __init__(self, model: nn.Module, score: Callable[[], float], every: int) -> None:
        self.model, self.score, self.every = model, score, every
        self.scores: list[tuple[int, float]] = []
        self._weights: dict[str, Tensor] = {}

    @property
    def best(self) -> tuple[int, float]:
        """Step and score of the best weights, the first of equal scores."""
        return max(self.scores, key=lambda pair: pair[1])

    def due(self, step: int, steps: int) -> bool:
        return step % self.every == 0 or step == steps

    def look(self, step: int, steps: int) -> None:
        self.scores.append((step, self.score()))
        if self.best[0] == step:
            self._weights = {key: value.detach().cpu().clone() for key, value in self.model.state_dict().items()}

    def save(self, checkpoint: Path) -> None:
        if not self.scores:
            return
        from safetensors.torch import save_file

        write_whole(checkpoint / _WEIGHTS, lambda scratch: save_file(self._weights, scratch))
        write_text(checkpoint / _SCORES, json.dumps(self.scores))

    def resume(self, checkpoint: Path) -> None:
        if not (checkpoint / _SCORES).is_file():
            return
        from safetensors.torch import load_file

        self.scores = [(int(step), float(score)) for step, score in json.loads((checkpoint / _SCORES).read_text())]
        self._weights = load_file(checkpoint / _WEIGHTS)

    def apply(self) -> None:
        """Loads the best weights into the model."""
        self.model.load_state_dict(self._weights)
