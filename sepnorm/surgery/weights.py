"""That a model has weights to work with: values in memory, and numbers that are finite."""

from __future__ import annotations

import sys

from torch import nn
from torch.nn.parameter import is_lazy

from sepnorm.errors import SepNormError


def require_values(model: nn.Module) -> None:
    """Refuses a model whose weights are not there yet: what is copied to the device ``meta`` is gone without a word."""
    for path, parameter in model.named_parameters():
        if parameter.is_meta or is_lazy(parameter):
            state = "on the device meta" if parameter.is_meta else "lazy"
            raise SepNormError(
                f"the weights of {type(model).__name__} are not there yet ({path} is {state}): load or initialise them first."
            )


def require_whole(model: nn.Module) -> None:
    """Refuses weights of which each process has a part: norms that are put in or taken out would be whole ones among them."""
    tensors = sys.modules.get("torch.distributed.tensor")  # who has not imported it has no such weights
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
    """Also refuses weights that are broken: nothing found by running such a model would mean anything."""
    require_values(model)
    for path, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.detach().isfinite().all()):
            raise SepNormError(
                f"the weights of {type(model).__name__} hold NaN or infinity, such as {path}: nothing was changed. Load weights "
                "that are whole."
            )
