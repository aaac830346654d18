"""Refuses lists of sets where sentence-transformers sorts sentences by length, so that samples would swap sets."""

from __future__ import annotations

from typing import Any

from torch import nn

from sepnorm.errors import SepNormError
from sepnorm.surgery.families import is_sentence_transformers
from sepnorm.tuning.special_tokens import SpecialTokens

#: Methods that sort what they are given: of a SentenceTransformer and its kin, and of a CrossEncoder.
_SORTING = ("encode", "predict")


class _OneSet:
    """Stands in for such a method of a model. An object, so that the model can be copied and pickled."""

    def __init__(self, model: nn.Module, method: str, special: SpecialTokens) -> None:
        self.model, self.method, self.special = model, method, special

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.special.in_use, tuple):
            raise SepNormError(
                f"{self.method} sorts sentences by length, so a list of sets would not fit them: call set_special with one "
                f"name and {self.method} the sentences of each set apart, or call the model on a batch of your own."
            )
        return getattr(type(self.model), self.method)(self.model, *args, **kwargs)


def refuse_lists(model: nn.Module, special: SpecialTokens) -> None:
    """Makes methods that sort sentences raise while a list of sets is in use."""
    for module in filter(is_sentence_transformers, model.modules()):
        for name in _SORTING:
            if callable(getattr(type(module), name, None)) and name not in vars(module):
                vars(module)[name] = _OneSet(module, name, special)


def allow_lists(model: nn.Module, special: SpecialTokens) -> None:
    """Undoes ``refuse_lists``."""
    for module in model.modules():
        for name in _SORTING:
            found = vars(module).get(name)
            if isinstance(found, _OneSet) and found.special is special:
                del vars(module)[name]
