"""That a model has weights to work with: values in memory, and numbers that are finite."""

from __future__ import annotations

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


def require_weights(model: nn.Module) -> None:
    """Also refuses weights that are broken: nothing found by running such a model would mean anything."""
    require_values(model)
    for path, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.detach().isfinite().all()):
            raise SepNormError(
                f"the weights of {type(model).__name__} hold NaN or infinity, such as {path}: nothing was changed. Load weights "
                "that are whole."
            )
