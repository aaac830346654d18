"""``sepnorm.Monitor``: measures the geometry of [CLS] during training, in any loop, and warns when it collapses."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.arguments import number, require_module, whole
from sepnorm.errors import CollapseWarning, SepNormError, require_known
from sepnorm.surgery import model_call
from sepnorm.training.monitor_figures import embed_by_cls, figures_of
from sepnorm.training.statistics_drift import watch_drift

#: ``embed(model, batch)`` returns [CLS] (samples, dim) and the mean of tokens (samples, dim), or None for the latter.
Embed = Callable[[nn.Module, Any], tuple[Tensor, Tensor | None]]
ACTIONS = ("warn", "stop", "nothing")
# Hooks that trainers call and that need nothing done.
_TRANSFORMERS = (
    "on_init_end on_train_begin on_train_end on_epoch_begin on_epoch_end on_step_begin on_pre_optimizer_step on_optimizer_step "
    "on_substep_end on_evaluate on_predict on_save on_log on_prediction_step on_push_begin"
)
_LIGHTNING = (
    "setup teardown on_fit_start on_fit_end on_sanity_check_start on_sanity_check_end on_train_batch_start on_train_epoch_start "
    "on_train_epoch_end on_validation_epoch_start on_validation_epoch_end on_test_epoch_start on_test_epoch_end "
    "on_predict_epoch_start on_predict_epoch_end on_validation_batch_start on_validation_batch_end on_test_batch_start "
    "on_test_batch_end on_predict_batch_start on_predict_batch_end on_train_start on_validation_start on_validation_end "
    "on_test_start on_test_end on_predict_start on_predict_end on_exception on_save_checkpoint on_load_checkpoint "
    "on_before_backward on_after_backward on_before_optimizer_step on_before_zero_grad"
)
_HOOKS = frozenset(f"{_TRANSFORMERS} {_LIGHTNING}".split())


@dataclass(frozen=True)
class Limits:
    """Thresholds at which [CLS] counts as collapsed, and as recovered. Between the two the state does not change.

    [CLS] is collapsed after ``patience`` readings in a row beyond ``cosine`` or ``rank``. A new model has nearly equal
    [CLS] for all samples, so its first ``grace`` readings do not count until one is healthy.

    Args:
        cosine: collapsed if the mean cosine of two samples is at least this.
        rank: collapsed if the centred effective rank, divided by its largest possible value, is below this.
        cosine_recovered: recovered if the mean cosine is at most this; not above ``cosine``.
        rank_recovered: recovered if the relative rank is at least this; not below ``rank``.
        patience: readings in a row beyond a threshold that make a collapse.
        grace: first readings that do not count unless the model was healthy before.

    Raises:
        SepNormError: if a value is out of range, or recovery lies on the wrong side of collapse.
    """

    cosine: float = 0.9995
    rank: float = 0.05
    cosine_recovered: float = 0.998
    rank_recovered: float = 0.08
    patience: int = 2
    grace: int = 5

    def __post_init__(self) -> None:
        whole(self.patience, "patience", 1)
        whole(self.grace, "grace", 0)
        for name in ("cosine", "rank", "cosine_recovered", "rank_recovered"):
            object.__setattr__(self, name, number(getattr(self, name), name))
        if self.cosine_recovered > self.cosine or self.rank_recovered < self.rank:
            raise SepNormError(
                f"recovery must be healthier than collapse: need cosine_recovered <= {self.cosine} and rank_recovered >= "
                f"{self.rank}, found {self.cosine_recovered} and {self.rank_recovered}."
            )


@dataclass(frozen=True)
class Reading:
    """One measurement of a ``Monitor``.

    Args:
        step: the training step.
        figures: measures by name, such as ``cls_effective_rank_centered``; ``Monitor`` lists them.
        collapsed: whether [CLS] counts as collapsed after this reading.
    """

    step: int
    figures: dict[str, float]
    collapsed: bool


class Monitor:
    """Measures [CLS] and the mean of tokens on a fixed batch during training, and warns when [CLS] collapses.

    In your own loop, call ``monitor.step(step)`` after each optimizer step. With transformers or sentence-transformers,
    call ``monitor.attach(trainer)`` or pass ``callbacks=[monitor]``; with Lightning, ``Trainer(callbacks=[monitor])``.

    Training is not changed by a single bit: random states, modes, batch statistics and gradients are restored.

    ``history`` lists every ``Reading``. Its figures are ``mean_cosine``, ``uniformity``, ``effective_rank``,
    ``effective_rank_centered``, ``rank_share`` (the latter divided by its largest possible value), ``alpha_req`` and
    ``dead`` (share of dead dimensions), each with the prefix ``cls_`` or ``mean_``. ``drift`` is the distance of
    running batch statistics from those of the batch, in standard deviations.

    Args:
        model: the model that is trained.
        batch: a batch of at least two samples (better 256), in any form that ``sepnorm.inspect`` takes.
        every: number of steps between readings.
        on_collapse: ``"warn"``; ``"stop"``, which also makes the trainer save a checkpoint and end, and sets
            ``monitor.stopped`` for your own loop; or ``"nothing"``.
        limits: thresholds of collapse; default ``Limits()``.
        embed: ``embed(model, batch)`` returns [CLS] (samples, dim) and the mean of tokens or None. Needed if the model
            does not return hidden states (batch, tokens, dim) with [CLS] first.
        log: called with the figures and the step of each reading.
        save: called with the step before a stop, to save a checkpoint; with Lightning it may be a path.

    Raises:
        SepNormError: if an argument is of the wrong kind.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        *,
        every: int = 200,
        on_collapse: str = "warn",
        limits: Limits | None = None,
        embed: Embed | None = None,
        log: Callable[[Mapping[str, float], int], Any] | None = None,
        save: Callable[[int], Any] | str | Path | None = None,
    ) -> None:
        require_module(model)
        self.model, self.batch = model, batch
        self.every = whole(every, "every", 1)
        self.on_collapse = require_known("action on collapse", on_collapse, ACTIONS)
        if limits is not None and not isinstance(limits, Limits):
            raise SepNormError(f"limits must be sepnorm.Limits(...), found {limits!r}.")
        for what, given in (("embed", embed), ("log", log)):
            if given is not None and not callable(given):
                raise SepNormError(f"{what} must be a function, found {given!r}.")
        self.limits = limits or Limits()
        self.embed, self.save = embed or embed_by_cls, save
        self._log = log  # not self.log: Lightning puts a function of that name on every callback
        self.history: list[Reading] = []
        self.collapsed = self.stopped = False
        self._beyond = 0  # readings in a row beyond a limit
        self._was_healthy = False
        self._trainer: Any = None

    def step(self, step: int) -> Reading | None:
        """Takes a reading if one is due. Call it after each training step.

        Args:
            step: number of training steps so far.

        Returns:
            The reading, or None if none is due.
        """
        if step % self.every:
            return None
        return self.read(step)

    def read(self, step: int) -> Reading:
        """Takes a reading now, whether one is due or not.

        Args:
            step: number of training steps so far, stored in the reading.

        Returns:
            The reading, which is also added to ``history``.
        """
        figures, before = self.measure(), self.stopped
        reading = Reading(step, figures, self._judge(figures))
        if self.stopped and not before and callable(self.save):
            self.save(step)
        self.history.append(reading)
        if self._log is not None:
            self._log(figures, step)
        return reading

    def measure(self) -> dict[str, float]:
        """Measures the batch with the model as it is now, without adding to ``history``.

        Returns:
            Figures by name.
        """
        with untouched(self.model), torch.no_grad(), watch_drift(self.model) as drift:
            cls, mean = self.embed(self.model, self.batch)
        found = {f"cls_{name}": value for name, value in figures_of(cls).items()}
        if mean is not None:
            found |= {f"mean_{name}": value for name, value in figures_of(mean).items()}
        if (gap := drift()) is not None:
            found["drift"] = gap
        return found

    def _judge(self, figures: Mapping[str, float]) -> bool:
        limits, cosine, share = self.limits, figures["cls_mean_cosine"], figures["cls_rank_share"]
        beyond = math.isnan(cosine) or cosine >= limits.cosine or share < limits.rank
        self._was_healthy |= not beyond
        counts = self._was_healthy or math.isnan(cosine) or len(self.history) >= limits.grace
        self._beyond = self._beyond + 1 if beyond and counts else 0
        if not self.collapsed and self._beyond >= limits.patience:
            self.collapsed = True
            self._act(cosine, figures["cls_effective_rank_centered"])
        elif self.collapsed and cosine <= limits.cosine_recovered and share >= limits.rank_recovered:
            self.collapsed = False
        return self.collapsed

    def _act(self, cosine: float, rank: float) -> None:
        if self.on_collapse == "nothing":
            return
        warnings.warn(
            f"[CLS] collapses: two samples have a cosine of {cosine:.3f}, and they fill {rank:.1f} dimensions after centring. "
            "Lower the learning rate, add a uniformity term, or give [CLS] a norm of its own (sepnorm.convert).",
            CollapseWarning,
            stacklevel=4,
        )
        self.stopped = self.on_collapse == "stop"

    # ---- trainers ----

    def attach(self, trainer: Any) -> Monitor:
        """Adds the monitor to a trainer of transformers or sentence-transformers, and logs where the trainer logs.

        Args:
            trainer: the trainer.

        Returns:
            The monitor itself.
        """
        trainer.add_callback(self)
        self._trainer = trainer
        return self

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Hook of transformers' trainers: takes a reading if one is due.

        Args:
            args: the ``TrainingArguments``.
            state: the ``TrainerState``.
            control: the ``TrainerControl``; asked to save and stop after a collapse with ``on_collapse="stop"``.
            **kwargs: not used.

        Returns:
            ``control``.
        """
        reading = self.step(state.global_step)
        if reading is not None:
            if self._trainer is not None:
                self._trainer.log(dict(reading.figures))
            else:
                state.log_history.append(reading.figures | {"step": reading.step})
        if self.stopped:
            control.should_save = control.should_training_stop = True
        return control

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        """Hook of Lightning's trainer: takes a reading if one is due.

        Args:
            trainer: Lightning's trainer.
            *rest: not used.
        """
        last = self.history[-1].step if self.history else None
        # several batches may make one step
        reading = self.step(trainer.global_step) if trainer.global_step != last else None
        if reading is not None:
            for logger in getattr(trainer, "loggers", []):
                logger.log_metrics(dict(reading.figures), step=reading.step)
            if self.stopped:
                if isinstance(self.save, str | Path):
                    trainer.save_checkpoint(str(self.save))
                trainer.should_stop = True

    @property
    def state_key(self) -> str:
        """Key of the monitor in Lightning's checkpoints."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: the readings, and whether [CLS] is collapsed.

        Returns:
            The state, for ``load_state_dict``.
        """
        return {
            "history": [[r.step, r.figures, r.collapsed] for r in self.history],
            "collapsed": self.collapsed,
            "beyond": self._beyond,
            "was_healthy": self._was_healthy,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state.

        Args:
            state: a return value of ``state_dict``.
        """
        self.history = [Reading(int(step), dict(figures), bool(c)) for step, figures, c in state["history"]]
        self.collapsed, self._beyond = bool(state["collapsed"]), int(state["beyond"])
        self._was_healthy = bool(state["was_healthy"])

    def __getattr__(self, name: str) -> Any:
        if name in _HOOKS:
            return _pass
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")


def _pass(*args: Any, **kwargs: Any) -> None:
    """A hook that does nothing."""


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Puts the model into evaluation mode, and afterwards restores random states, modes and buffers."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    state, of_numpy = random.getstate(), _numpy_state()
    try:
        with model_call.quiet(model):
            yield
    finally:
        random.setstate(state)
        if of_numpy is not None:
            import numpy

            numpy.random.set_state(of_numpy)
        with torch.no_grad():
            for buffer, before in kept:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


def _numpy_state() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy.random.get_state()
