"""``sepnorm.Monitor``: how [CLS] lies in space while a model trains, in anyone's loop, and a warning before it is lost."""

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
from sepnorm.surgery import model_call as feed
from sepnorm.training.monitor_figures import embed_by_cls, figures_of
from sepnorm.training.statistics_drift import watch_drift

#: From a model and the batch to [CLS] (samples, dim) and the mean of tokens alike, or None where there is none.
Embed = Callable[[nn.Module, Any], tuple[Tensor, Tensor | None]]
ACTIONS = ("warn", "stop", "nothing")
# What other trainers call beside the hooks below: nothing is done there.
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
    """When [CLS] counts as collapsed, and when it has recovered: between the two nothing changes (hysteresis).

    ``cosine``: mean cosine of two samples; ``rank``: centred effective rank, as a share of what is possible. A collapse is
    ``patience`` readings in a row beyond one of the first two limits. The [CLS] of a model that is new is alike for all samples:
    until it was healthy once, the first ``grace`` readings do not count.
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
                f"recovery is at the healthy side of collapse: cosine_recovered={self.cosine_recovered} is at most {self.cosine}, "
                f"and rank_recovered={self.rank_recovered} at least {self.rank}."
            )


@dataclass(frozen=True)
class Reading:
    """Figures by name, as ``cls_effective_rank_centered``, at one step; ``collapsed`` is the state after it."""

    step: int
    figures: dict[str, float]
    collapsed: bool


class Monitor:
    """Measures [CLS] and the mean of tokens on one fixed batch every so many steps, and warns when [CLS] collapses.

    The training is as it would be without it: random numbers, modes, batch statistics and gradients are left as they were, to
    the bit. In a loop of your own call ``monitor.step(step)`` after each step. For transformers' and sentence-transformers'
    trainers ``monitor.attach(trainer)``, or give it in ``callbacks=[monitor]``; for Lightning ``Trainer(callbacks=[monitor])``.

    Args:
        model: the model that is trained.
        batch: at least two samples (better 256), in a form that ``sepnorm.inspect`` takes.
        every: steps between readings.
        on_collapse: ``"warn"``, ``"stop"`` (the trainer saves a checkpoint and ends; in a loop ``monitor.stopped`` is True), or
            ``"nothing"``.
        limits: see ``Limits``.
        embed: ``embed(model, batch)`` gives [CLS] (samples, dim) and the mean of tokens or None, where the model's output is no
            hidden states (batch, tokens, dim) with [CLS] first.
        log: called with a reading's figures and the step.
        save: called with the step before a stop, to save a checkpoint; for Lightning it may be a path.

    ``history`` has every ``Reading``. Figures are ``mean_cosine``, ``uniformity``, ``effective_rank``,
    ``effective_rank_centered``, ``alpha_req`` and ``dead`` (share of dead dimensions), each of ``cls_`` and ``mean_``, and
    ``drift``: how far running batch statistics are from those of the batch, in standard deviations.
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
            raise SepNormError(f"limits are sepnorm.Limits(...), found {limits!r}.")
        for what, given in (("embed", embed), ("log", log)):
            if given is not None and not callable(given):
                raise SepNormError(f"{what} is a function, found {given!r}.")
        self.limits = limits or Limits()
        self.embed, self.save = embed or embed_by_cls, save
        self._log = log  # not as log: Lightning puts a function of that name on every callback
        self.history: list[Reading] = []
        self.collapsed = self.stopped = False
        self._beyond = 0  # readings in a row
        self._was_healthy = False
        self._trainer: Any = None

    def step(self, step: int) -> Reading | None:
        """To be called after each step of training: a reading where one is due, else None."""
        if step % self.every:
            return None
        return self.read(step)

    def read(self, step: int) -> Reading:
        """A reading now, whether one is due or not."""
        figures, before = self.measure(), self.stopped
        reading = Reading(step, figures, self._judge(figures))
        if self.stopped and not before and callable(self.save):
            self.save(step)
        self.history.append(reading)
        if self._log is not None:
            self._log(figures, step)
        return reading

    def measure(self) -> dict[str, float]:
        """The figures of the batch as the model is now."""
        with _untouched(self.model), torch.no_grad(), watch_drift(self.model) as drift:
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
            "Lower the rate of learning, add a uniformity term, or give [CLS] a norm of its own (sepnorm.convert).",
            CollapseWarning,
            stacklevel=4,
        )
        self.stopped = self.on_collapse == "stop"

    # ---- trainers ----

    def attach(self, trainer: Any) -> Monitor:
        """Adds itself to a trainer of transformers or sentence-transformers, and logs to what that logs to."""
        trainer.add_callback(self)
        self._trainer = trainer
        return self

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Of transformers' trainers."""
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
        """Of Lightning's trainer."""
        last = self.history[-1].step if self.history else None
        reading = (
            self.step(trainer.global_step) if trainer.global_step != last else None
        )  # batches may be gathered to a step
        if reading is not None:
            for logger in getattr(trainer, "loggers", []):
                logger.log_metrics(dict(reading.figures), step=reading.step)
            if self.stopped:
                if isinstance(self.save, str | Path):
                    trainer.save_checkpoint(str(self.save))
                trainer.should_stop = True

    @property
    def state_key(self) -> str:
        """By which Lightning knows it."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints hold of it: the readings, and whether [CLS] is collapsed."""
        return {
            "history": [[r.step, r.figures, r.collapsed] for r in self.history],
            "collapsed": self.collapsed,
            "beyond": self._beyond,
            "was_healthy": self._was_healthy,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what ``state_dict`` gave."""
        self.history = [Reading(int(step), dict(figures), bool(c)) for step, figures, c in state["history"]]
        self.collapsed, self._beyond = bool(state["collapsed"]), int(state["beyond"])
        self._was_healthy = bool(state["was_healthy"])

    def __getattr__(self, name: str) -> Any:
        if name in _HOOKS:
            return _pass
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")


def _pass(*args: Any, **kwargs: Any) -> None:
    """A hook where nothing is done."""


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; random numbers, modes and buffers are as they were after it."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    state, of_numpy = random.getstate(), _numpy_state()
    try:
        with feed.quiet(model):
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
