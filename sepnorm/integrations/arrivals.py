"""Registers sepnorm with a library once both are imported, in either order, without importing the library itself."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

#: A module of a library, and the module of ours to import after it.
PLACES = {"transformers.quantizers.auto": "sepnorm.integrations.transformers"}


def await_libraries() -> None:
    """Registers with libraries that are already imported, and waits for the others."""
    for place, ours in PLACES.items():
        if place in sys.modules:
            _fill(ours)
        else:
            sys.meta_path.insert(0, _Waiting(place, ours))


class _Waiting(MetaPathFinder):
    """Import hook that notices when the module of a library is about to be imported."""

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
    """Runs the library's own loader, then imports our module."""

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
    except Exception as error:  # an unknown version of the library must still be importable
        from sepnorm.errors import SepNormWarning

        library = ours.rpartition(".")[2]
        warnings.warn(
            f"sepnorm cannot register with this version of {library} ({error}): use sepnorm.load for converted models.",
            SepNormWarning,
            stacklevel=2,
        )
