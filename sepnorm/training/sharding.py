"""Sharding of weights, gradients and optimizer state over all processes, by accelerate's FSDP2."""

from __future__ import annotations

import copy
import gc
import os
from typing import Any

import torch
from torch import nn

from sepnorm.distributed import rank, world
from sepnorm.errors import SepNormError
from sepnorm.training.configs import RunConfig

_ASKED = "ACCELERATE_USE_FSDP"  # set by ``accelerate launch --use_fsdp``


def check_sharding(config: RunConfig) -> None:
    """Refuses sharding with one process, and a run without sharding if accelerate was told to shard."""
    if config.sharded and world() < 2:
        raise SepNormError(
            "sharded=true spreads a model over several processes, and there is one: start the command by torchrun or "
            "accelerate launch with more, or leave it out."
        )
    if not config.sharded and _asked():
        raise SepNormError(
            f"accelerate was told to shard models ({_ASKED}=true), and this run was not: add --set sharded=true."
        )


def refuse_sharding(config: RunConfig) -> None:
    """Refuses sharding in a comparison, by whatever launcher: each of its runs has one process."""
    if config.sharded:
        raise SepNormError(
            "sharded=true spreads a model over several processes, and each run of a comparison has one: leave it out, or "
            "train each norm by sepnorm pretrain under torchrun."
        )
    if _asked():
        raise SepNormError(
            f"accelerate was told to shard models ({_ASKED}=true), and each run of a comparison has one process: start it "
            "without accelerate launch."
        )


def _asked() -> bool:
    return os.environ.get(_ASKED, "").lower() == "true"


def trainer_arguments(model: nn.Module) -> dict[str, Any]:
    """``TrainingArguments`` for sharding. Each block, a member of a ``ModuleList``, is gathered when it is called.

    Checkpoints are whole: any number of processes can resume from one, and it contains nothing to unpickle.
    """
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    blocks = sorted({type(block).__name__ for blocks in lists for block in blocks})
    settings = {"version": 2, "transformer_layer_cls_to_wrap": blocks, "state_dict_type": "FULL_STATE_DICT"}
    return {"fsdp": True, "fsdp_config": settings}


def keep_precision(arguments: Any) -> None:
    """Gathers weights and sums gradients unrounded, so ``precision`` means the same with and without sharding.

    By default accelerate computes everything in bfloat16, including the loss and the residual stream.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    arguments.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy()


def shard_on_cpu(trainer: Any) -> None:
    """Makes accelerate shard over CPU processes too; by default it silently ignores the setting there."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    state = trainer.accelerator.state
    if state.distributed_type == DistributedType.MULTI_CPU:
        PartialState().distributed_type = state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**trainer.args.fsdp_plugin_args)
        trainer.is_fsdp_enabled = True


def begin_states(optimizer: Any) -> None:
    """Creates AdamW's zero state for all weights, also for those without gradients, such as an unused head.

    Without it torch refuses to load a checkpoint.
    """
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if not optimizer.state.get(weight):
                steps = torch.zeros((), device=weight.device if group["fused"] else "cpu")
                moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[weight] = {"step": steps, **moments}


class Twin:
    """A copy of a model that is sharded and trained, while the model itself stays whole for measuring and saving.

    All processes call ``follow``; it copies the trained weights to the model of rank 0.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.trained = model, copy.deepcopy(model)

    def follow(self) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(self.trained, options=whole)
        if rank() == 0:
            self.model.load_state_dict(state)

    def release(self, trainer: Any) -> None:
        """Frees the trained copy and its optimizer, so that the whole model has room on the device."""
        trainer.accelerator.free_memory()
        for holder in (trainer, trainer.callback_handler):
            holder.model = holder.optimizer = holder.lr_scheduler = None
        trainer.model_wrapped = trainer.accumulation = None
        del self.trained
        gc.collect()
