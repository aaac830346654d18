"""Checks that a model has usable weights: present, whole and finite."""

from __future__ import annotations

import sys

from torch import nn
from torch.nn.parameter import is_lazy

from sepnorm.errors import SepNormError


def require_values(model: nn.Module) -> None:
    """Raises if weights are not materialised. Copying to the ``meta`` device would lose data silently."""
    for path, parameter in model.named_parameters():
        if parameter.is_meta or is_lazy(parameter):
            state = "on the device meta" if parameter.is_meta else "lazy"
            raise SepNormError(
                f"the weights of {type(model).__name__} are not there yet ({path} is {state}): load or initialise them first."
            )


def require_whole(model: nn.Module) -> None:
    """Raises if weights are sharded over processes: new norms among them would be whole."""
    tensors = sys.modules.get("torch.distributed.tensor")  # not imported, so there are no sharded weights
    if tensors is None:
        return
    for path, parameter in model.named_parameters():
        if isinstance(parameter, tensors.DTensor):
            raise SepNormError(
                f"the weights of {type(model).__name__} are sharded ({path} is a DTensor). Convert a model before fully_shard; to "
                "save, freeze or revert it, load its whole state (get_model_state_dict with full_state_dict=True, of "
                "torch.distributed.checkpoint.state_dict) into a converted model that is not sharded."
            )


def require_weights(model: nn.Module) -> None:
    """Raises if weights are missing or not finite: running such a model would tell nothing."""
    require_values(model)
    for path, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.detach().isfinite().all()):
            raise SepNormError(
                f"the weights of {type(model).__name__} hold NaN or infinity, such as {path}: nothing was changed. Load intact "
                "weights."
            )
