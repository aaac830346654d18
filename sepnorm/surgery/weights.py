"""That a model has weights to work with: values in memory, and numbers that are finite."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from sepnorm.errors import SepNormError


def require_weights(model: nn.Module) -> None:
    """Refuses a model whose weights are not there yet, or are broken: nothing found by running it would mean anything."""
    name = type(model).__name__
    for path, parameter in model.named_parameters():
        if parameter.is_meta or is_lazy(parameter):
            state = "on the device meta" if parameter.is_meta else "lazy"
            raise SepNormError(
                f"the weights of {name} are not there yet ({path} is {state}): load or initialise them first."
            )
        if parameter.is_floating_point() and not bool(parameter.detach().isfinite().all()):
            raise SepNormError(
                f"the weights of {name} hold NaN or infinity, such as {path}: nothing was changed. Load weights that are whole."
            )
