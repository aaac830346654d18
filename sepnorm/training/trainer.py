"""One adapter to transformers' ``Trainer`` for all domains: a run in a folder, that can be interrupted and goes on."""

from __future__ import annotations

import json
import logging
import math
import pickle
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sepnorm.distributed import many, meet, part, rank, total, world
from sepnorm.errors import InterruptedRunError, OthersDoneError, SepNormError, one_line
from sepnorm.files import settle, sync_below, write_text
from sepnorm.training.batching import Steps
from sepnorm.training.devices import device_of, uses_bfloat16
from sepnorm.training.guard import Guard
from sepnorm.training.interruptions import lost_processes, on_interrupt

#: Called with the step, the number of steps, the loss and samples per second.
Report = Callable[[int, int, float, float], None]
logger = logging.getLogger("sepnorm")
_COMPLETE = "complete"  # a file in a checkpoint that was written to its end
_KEPT = 2  # checkpoints of a run


class Kept(Protocol):
    """What has something in the run's checkpoints."""

    def save(self, checkpoint: Path) -> None: ...

    def take_up(self, checkpoint: Path) -> None: ...


class Watcher(Kept, Protocol):
    """Looks at a run after every step."""

    def look(self, step: int, steps: int) -> None: ...


@dataclass(eq=False)
class Trained:
    """How a run went: the loss by step, seconds, and samples per second."""

    losses: list[tuple[int, float]]
    seconds: float
    rate: float


def train(
    model: nn.Module, steps: Steps, folder: Path, report: Report | None = None, watcher: Watcher | None = None
) -> Trained:
    """Trains ``model``, whose forward gives ``{"loss": ...}``, from the last whole checkpoint in ``folder`` if there is one.

    Of several processes only the first comes back from it; in the others ``OthersDoneError`` ends what they do.
    """
    trainer = _trainer(model, steps, folder, report, watcher)
    last = last_checkpoint(folder)
    watch: _Watch = trainer.watch
    if last is not None:
        watch.take_up(_read_note(last))
        for each in watch.kept_with:
            each.take_up(last)
    watch.begin()
    with on_interrupt(watch.stop), lost_processes(folder):
        try:
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
        except pickle.UnpicklingError as error:
            raise SepNormError(
                f"{last} holds more than numbers, and is not unpickled: {one_line(error)}. Remove that folder to go on from "
                "the checkpoint before it."
            ) from error
        part()
    if rank():
        raise OthersDoneError
    if watch.stopped:
        raise InterruptedRunError(
            f"the run was stopped at step {trainer.state.global_step} of {steps.steps} and saved in {folder}"
        )
    done = steps.steps * steps.batch * steps.config.accumulation
    return Trained(watch.losses, watch.seconds, done / max(watch.seconds, 1e-9))


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; one that was cut short is passed over, which is said."""
    for path in _checkpoints(folder):
        if _is_whole(path):
            return path
        logger.warning("%s is cut short or damaged and is passed over: the run goes on from the one before it.", path)
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """By their steps, the newest first: dates depend on a clock that may be set."""
    named = {path: re.fullmatch(r"checkpoint-(\d+)", path.name) for path in folder.glob("checkpoint-*")}
    steps = {path: int(match[1]) for path, match in named.items() if match}
    return sorted(steps, key=lambda path: steps[path], reverse=True)


def _is_whole(checkpoint: Path) -> bool:
    """Whether every file is there as it was when the checkpoint was written to its end."""
    try:
        sums = _read_note(checkpoint)["checksums"]
        return bool(sums) and all(settle(checkpoint / name) == checksum for name, checksum in sums.items())
    except (OSError, ValueError):
        return False


def _read_note(checkpoint: Path) -> dict[str, Any]:
    """What was written when the checkpoint was whole; a ``ValueError`` where that is damaged."""
    try:
        note = json.loads((checkpoint / _COMPLETE).read_text(encoding="utf-8"))
        return {
            "checksums": {str(name): str(checksum) for name, checksum in note["checksums"].items()},
            "losses": [(int(step), float(loss)) for step, loss in note["losses"]],
            "seconds": float(note["seconds"]),
            "pending": [float(loss) for loss in note["pending"]],
        }
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{checkpoint / _COMPLETE} is damaged: {error}") from error


def _prune(newest: Path) -> None:
    """Keeps the newest whole checkpoints, of which ``newest`` is one."""
    kept = 1
    for path in _checkpoints(newest.parent):
        if path != newest and kept < _KEPT and _is_whole(path):
            kept += 1
        elif path != newest:
            shutil.rmtree(path, ignore_errors=True)


def _trainer(
    model: nn.Module, steps: Steps, folder: Path, report: Report | None, watcher: Watcher | None = None
) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    config = steps.config
    device = device_of(config.device)
    every = max(1, steps.steps // (config.checkpoints + 1)) if config.checkpoints else steps.steps + 1
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,  # an item is a batch
        gradient_accumulation_steps=config.accumulation,
        max_steps=steps.steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=steps.schedule,
        warmup_steps=int(config.warmup * steps.steps),
        weight_decay=config.weight_decay,
        adam_beta1=config.adam_betas[0],
        adam_beta2=config.adam_betas[1],
        max_grad_norm=config.clip,
        optim="adamw_torch_fused" if device.type in ("cpu", "cuda") else "adamw_torch",
        bf16=uses_bfloat16(config.precision, device),
        seed=config.order_seed,
        save_strategy="steps",
        save_steps=every,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=device.type == "cpu",  # without this, processes without an accelerator train each for itself
        ddp_broadcast_buffers=False,  # batch statistics are over all processes and so the same in each
    )

    class Adapter(transformers.Trainer):
        """The order of the batches is that of the data set, and what has no decay is told by its shape too."""

        watch: _Watch

        def get_train_dataloader(self) -> Any:
            """Every process goes through all steps, of which it makes its own part: nothing is left to be shared out."""
            return torch.utils.data.DataLoader(steps, collate_fn=lambda items: items[0])

        def get_decay_parameter_names(self, model: Any) -> list[str]:
            exempt = ("cls_token", "mask_token", "position_embeddings", "pos_embed")
            return [n for n in super().get_decay_parameter_names(model) if not n.endswith(exempt)]

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            loss = model(**inputs)["loss"]
            self.watch.see(loss.detach())
            return (loss, {}) if return_outputs else loss

    watch = _Watch(steps, report, folder.parent / "tensorboard", watcher)
    trainer = Adapter(
        model=model,
        args=arguments,
        train_dataset=steps,
        callbacks=[watch.callback()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.watch = watch
    return trainer


class _Watch:
    """Keeps losses and time, reports progress, marks whole checkpoints, and turns Ctrl-C into saving and stopping."""

    def __init__(self, steps: Steps, report: Report | None, logs: Path, watcher: Watcher | None = None) -> None:
        self.steps, self.report, self._logs, self.watcher = steps, report, logs, watcher
        self.losses: list[tuple[int, float]] = []
        self.seconds = 0.0
        self.stopped = False
        self.guard = Guard()
        self._of_step: list[Tensor] = []  # losses of the batches of a step
        self._pending: list[float] = []  # losses of steps since the last line of the log
        self._since = time.monotonic()
        self._every = max(1, steps.steps // 200)
        self.kept_with: list[Kept] = (
            [steps] if watcher is None else [steps, watcher]
        )  # what checkpoints hold something of
        self._board: Any = None

    def take_up(self, note: dict[str, Any]) -> None:
        self.losses, self.seconds, self._pending = note["losses"], note["seconds"], note["pending"]

    def begin(self) -> None:
        self._since = time.monotonic()

    def see(self, loss: Tensor) -> None:
        self._of_step.append(total(loss) / world())

    def judge(self, model: nn.Module, step: int) -> None:
        """Before the optimizer's step: passes it over where something is not finite."""
        if self.guard.allows(model, self._of_step, step + 1, lambda: self.steps.named(step)):
            self._pending.append(float(torch.stack(self._of_step).mean()))
        self._of_step = []

    def stop(self) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True

    def to_stop(self, device: Any) -> bool:
        """Whether any process was asked to stop: then all do, after the same step."""
        if many():
            self.stopped = bool(total(torch.tensor(float(self.stopped), device=device)))
        return self.stopped

    def callback(self) -> Any:
        import transformers

        watch = self

        class Callback(transformers.TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
                watch.guard.begin(model)

            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
                watch.judge(model, state.global_step)

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                step = state.global_step
                if step % watch._every == 0 or step == watch.steps.steps:
                    watch._log(step, kwargs["lr_scheduler"].get_last_lr()[0])
                if watch.watcher is not None:
                    watch.watcher.look(step, watch.steps.steps)
                if watch.to_stop(args.device):
                    control.should_save = control.should_training_stop = True

            def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                watch.steps.save(folder)
                meet()  # until each has written its part
                if state.is_world_process_zero:
                    if watch.watcher is not None:
                        watch.watcher.save(folder)
                    (folder / _COMPLETE).unlink(missing_ok=True)  # of an earlier time at this step
                    files = sorted(path for path in folder.rglob("*") if path.is_file())
                    sums = {str(path.relative_to(folder)): settle(path) for path in files}
                    sync_below(folder)
                    kept = {"losses": watch.losses, "seconds": watch.seconds, "pending": watch._pending}
                    write_text(folder / _COMPLETE, json.dumps(kept | {"checksums": sums}))
                    _prune(folder)

        return Callback()

    def _log(self, step: int, learning_rate: float) -> None:
        now = time.monotonic()
        self.seconds += now - self._since
        self._since = now
        loss = sum(self._pending) / len(self._pending) if self._pending else math.nan
        self._pending = []
        self.losses.append((step, loss))
        rate = step * self.steps.batch * self.steps.config.accumulation / max(self.seconds, 1e-9)
        if find_spec("tensorboard") is not None and rank() == 0:
            self._write(step, {"loss": loss, "learning_rate": learning_rate, "samples_per_second": rate})
        if self.report is not None:
            self.report(step, self.steps.steps, loss, rate)

    def _write(self, step: int, values: dict[str, float]) -> None:
        """To TensorBoard's log; what an interrupted run wrote beyond its last checkpoint is dropped there."""
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self._logs), purge_step=step)
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        if step == self.steps.steps or self.stopped:
            self._board.close()
            self._board = None
