"""Makes sepnorm known to a library as soon as both are imported, in whichever order, without importing the library itself."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

#: The module of a library that has a place for us, and ours that fills it.
PLACES = {"transformers.quantizers.auto": "sepnorm.integrations.transformers"}


def await_libraries() -> None:
    """Fills the places of libraries that are there, and waits for the others."""
    for place, ours in PLACES.items():
        if place in sys.modules:
            _fill(ours)
        else:
            sys.meta_path.insert(0, _Waiting(place, ours))


class _Waiting(MetaPathFinder):
    """Sees a library's module when it is about to be imported, and lets it be imported as ever."""

    def __init__(self, place: str, ours: str) -> None:
        self.place, self.ours = place, ours

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self.place or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _AndThen(spec.loader, self.ours)
        return spec


class _AndThen(Loader):
    """The library's own loader, and our module after it."""

    def __init__(self, loader: Loader, ours: str) -> None:
        self.loader, self.ours = loader, ours

    def create_module(self, spec: ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _fill(self.ours)


def _fill(ours: str) -> None:
    try:
        import_module(ours)
    except Exception as error:  # a version that we do not know must not keep anybody from importing it
        from sepnorm.errors import SepNormWarning

        library = ours.rpartition(".")[2]
        warnings.warn(
            f"this version of {library} has no place for sepnorm ({error}): it cannot load converted models, sepnorm.load can.",
            SepNormWarning,
            stacklevel=2,
        )
