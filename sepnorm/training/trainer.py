"""One adapter to transformers' ``Trainer`` for all domains. A run has a folder and can be interrupted and resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sepnorm.data.choices import seeded
from sepnorm.distributed import check_joined, join, many, meet, part, rank, total, world
from sepnorm.errors import InterruptedRunError, OthersDoneError
from sepnorm.training.accumulation import Accumulation
from sepnorm.training.batching import Steps
from sepnorm.training.checkpoints import common_checkpoint, complete, read_note, require_plain, step_of
from sepnorm.training.devices import device_of, uses_bfloat16
from sepnorm.training.guard import Guard
from sepnorm.training.interruptions import lost_processes, on_interrupt
from sepnorm.training.sharding import Twin, begin_states, keep_precision, shard_on_cpu, trainer_arguments

#: Called with the step, the number of steps, the loss, and samples per second.
Report = Callable[[int, int, float, float], None]


class Kept(Protocol):
    """An object with state in the run's checkpoints."""

    def save(self, checkpoint: Path) -> None: ...

    def resume(self, checkpoint: Path) -> None: ...


class Watcher(Kept, Protocol):
    """Looks at a run after the steps that ``due`` selects."""

    def due(self, step: int, steps: int) -> bool: ...

    def look(self, step: int, steps: int) -> None: ...


@dataclass(eq=False)
class Trained:
    """Result of a training run.

    Losses by step, seconds, samples per second, the share of time spent waiting for data, and the step of the checkpoint that
    this process resumed from, 0 if it began the run.
    """

    losses: list[tuple[int, float]]
    seconds: float
    rate: float
    waiting: float
    resumed_from: int = 0


def train(
    model: nn.Module, steps: Steps, folder: Path, report: Report | None = None, watcher: Watcher | None = None
) -> Trained:
    """Trains ``model``, whose forward returns ``{"loss": ...}``; resumes from the last checkpoint in ``folder``.

    Only rank 0 returns; in all other processes ``OthersDoneError`` is raised.
    """
    twin = Twin(model) if steps.config.sharded else None
    trainer = _trainer(model, steps, folder, report, watcher, twin)
    check_joined()
    with lost_processes(folder):
        last = common_checkpoint(folder, trainer.args.device)
    watch: _Watch = trainer.watch
    if last is not None:
        require_plain(last)
        watch.resume(read_note(last))
        for each in watch.kept_with:
            each.resume(last)
    watch.begin()
    with on_interrupt(watch.stop), lost_processes(folder):
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        if trainer.accumulation is not None:
            trainer.accumulation.end()
        if twin is not None:
            twin.follow()
        part()
    if rank():
        raise OthersDoneError
    if watch.stopped:
        raise InterruptedRunError(
            f"the run was stopped at step {trainer.state.global_step} of {steps.steps} and saved in {folder}"
        )
    if twin is not None:
        device = trainer.args.device
        twin.release(trainer)
        model.to(device)
    done = steps.steps * steps.batch * steps.config.accumulation
    return Trained(watch.losses, watch.seconds, done / max(watch.seconds, 1e-9), watch.waiting, step_of(last))


def _trainer(
    model: nn.Module,
    steps: Steps,
    folder: Path,
    report: Report | None,
    watcher: Watcher | None = None,
    twin: Twin | None = None,
) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    config = steps.config
    device = device_of(config.device)
    if device.type == "cpu":
        join(config.timeout)
    every = max(1, steps.steps // (config.checkpoints + 1)) if config.checkpoints else steps.steps + 1
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,  # an item is a whole batch
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
        use_cpu=device.type == "cpu",  # without it, CPU processes would train independently
        ddp_timeout=config.timeout,
        ddp_broadcast_buffers=False,  # batch statistics are synchronised and so equal in all processes
        **({} if twin is None else trainer_arguments(model)),
    )

    class Adapter(transformers.Trainer):
        """A Trainer that keeps the order of the data set and exempts special tokens and positions from weight decay."""

        watch: _Watch
        accumulation: Accumulation | None
        of_step: list[Any]  # batches of the current step

        def create_accelerator_and_postprocess(self) -> None:
            if twin is not None:
                keep_precision(self.args)
            super().create_accelerator_and_postprocess()
            if twin is not None:
                shard_on_cpu(self)

        def get_train_dataloader(self) -> Any:
            """Every process loops over all batches and makes its own part of each, so nothing is distributed here."""
            return torch.utils.data.DataLoader(steps, collate_fn=lambda items: items[0])

        def get_decay_parameter_names(self, model: Any) -> list[str]:
            exempt = ("cls_token", "mask_token", "position_embeddings", "pos_embed")
            return [n for n in super().get_decay_parameter_names(model) if not n.endswith(exempt)]

        def get_batch_samples(self, *arguments: Any) -> Any:
            start = time.monotonic()
            self.of_step, count = super().get_batch_samples(*arguments)
            self.watch.waited += time.monotonic() - start
            return self.of_step, count

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            if self.accumulation is not None and self.watch.begins_step:
                self.accumulation.measure(
                    lambda batch: self._forward(self.model, self._prepare_inputs(batch)), self.of_step
                )
            loss = self._forward(model, inputs)
            self.watch.see(loss.detach())
            return (loss, {}) if return_outputs else loss

        def _forward(self, model: Any, inputs: Any) -> Tensor:
            with self.accelerator.autocast():  # accelerate does this for all models except sharded ones
                loss: Tensor = model(**inputs)["loss"]
            return loss

    trained = model if twin is None else twin.trained
    accumulation = Accumulation(trained) if config.statistics == "step" and config.accumulation > 1 else None
    watch = _Watch(steps, report, folder.parent / "tensorboard", watcher, twin)
    trainer = Adapter(
        model=trained,
        args=arguments,
        train_dataset=steps,
        callbacks=[watch.callback()],
    )
    if rank():  # the Trainer seeds all processes alike, and each has samples of its own to drop parts of
        torch.manual_seed(seeded(config.order_seed, rank(), 4).initial_seed())
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.watch, trainer.accumulation = watch, accumulation
    return trainer


class _Watch:
    """Records losses and time, reports progress, completes checkpoints, and makes Ctrl-C save and stop."""

    def __init__(
        self, steps: Steps, report: Report | None, logs: Path, watcher: Watcher | None = None, twin: Twin | None = None
    ) -> None:
        self.steps, self.report, self._logs, self.watcher, self._twin = steps, report, logs, watcher, twin
        self.losses: list[tuple[int, float]] = []
        self.seconds = self._before = 0.0  # of all, and before the run went on
        self.waited = 0.0  # for data, since then
        self.stopped = False
        self.guard = Guard()
        self._of_step: list[Tensor] = []  # losses of the batches of this step
        self._pending: list[float] = []  # losses of steps since the last log entry
        self._since = time.monotonic()
        self._every = max(1, steps.steps // 200)
        self.kept_with: list[Kept] = [steps] if watcher is None else [steps, watcher]  # with state in checkpoints
        self._board: Any = None

    def resume(self, note: dict[str, Any]) -> None:
        """Restores the state of a checkpoint."""
        self.losses, self.seconds, self._pending = note["losses"], note["seconds"], note["pending"]
        self._before = self.seconds

    def begin(self) -> None:
        self._since = time.monotonic()

    def see(self, loss: Tensor) -> None:
        self._of_step.append(total(loss) / world())

    @property
    def waiting(self) -> float:
        """The share of the time that steps waited for data, since the run began or went on."""
        return self.waited / max(self.seconds - self._before, 1e-9)

    @property
    def begins_step(self) -> bool:
        """Whether the next batch is the first of a step."""
        return not self._of_step

    def judge(self, model: nn.Module, step: int) -> None:
        """Before the optimizer's step: skips it if a loss or gradient is not finite."""
        if self.guard.allows(model, self._of_step, step + 1, lambda: self.steps.named(step)):
            self._pending.append(float(torch.stack(self._of_step).mean()))
        self._of_step = []

    def look(self, step: int) -> None:
        """Calls the watcher if it is due. With a sharded model only rank 0 has whole weights to look at."""
        if self.watcher is None or not self.watcher.due(step, self.steps.steps):
            return
        if self._twin is not None:
            self._twin.follow()
        if self._twin is None or rank() == 0:
            self.watcher.look(step, self.steps.steps)

    def stop(self) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True

    def to_stop(self, device: Any) -> bool:
        """Whether any process was asked to stop; then all stop after the same step."""
        if many():
            self.stopped = bool(total(torch.tensor(float(self.stopped), device=device)))
        return self.stopped

    def callback(self) -> Any:
        import transformers

        watch = self

        class Callback(transformers.TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any, **kwargs: Any) -> None:
                if watch._twin is not None:
                    begin_states(optimizer)

            def on_step_begin(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
                watch.guard.begin(model)

            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
                watch.judge(model, state.global_step)

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                step = state.global_step
                if step % watch._every == 0 or step == watch.steps.steps:
                    watch._log(step, kwargs["lr_scheduler"].get_last_lr()[0])
                watch.look(step)
                if watch.to_stop(args.device):
                    control.should_save = control.should_training_stop = True

            def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                watch.steps.save(folder)
                meet()  # until every process has written its part
                if state.is_world_process_zero:
                    if watch.watcher is not None:
                        watch.watcher.save(folder)
                    kept = {"losses": watch.losses, "seconds": watch.seconds, "pending": watch._pending}
                    complete(folder, kept)

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
            values = {"loss": loss, "learning_rate": learning_rate, "samples_per_second": rate}
            self._write(step, values | {"waiting_share": self.waiting})
        if self.report is not None:
            self.report(step, self.steps.steps, loss, rate)

    def _write(self, step: int, values: dict[str, float]) -> None:
        """Writes to TensorBoard's log; drops what an interrupted run wrote after its last checkpoint."""
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self._logs), purge_step=step)
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        if step == self.steps.steps or self.stopped:
            self._board.close()
            self._board = None
