"""Separate normalisation of [CLS] and tokens in transformers: the layer, the surgery, the statistics.

``__init__.pyi`` lists the public names. Each is imported on first use, so ``sepnorm --help`` does not wait for torch.
If transformers is imported, before or after sepnorm, its ``from_pretrained`` also loads converted models.
"""

import ast
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from sepnorm.integrations.arrivals import await_libraries

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {name.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for name in node.names}
__all__ = sorted(_HOMES)


#: Old documented module names, and where these modules are now.
_MOVED = {
    "diagnosis": "domains.diagnosis",
    "embedding": "domains.embedding",
    "evaluation": "domains.evaluation",
    "exporting": "domains.export",
    "feed": "surgery.model_call",
    "images": "domains.images",
    "inspection": "surgery.inspection",
    "molecules": "domains.molecules",
    "pretraining": "domains.pretraining",
    "sites": "surgery.sites",
    "text": "domains.text",
    "verdict": "report.verdict",
}


class _Moved(MetaPathFinder, Loader):
    """Keeps old import paths working: ``sepnorm.sites`` imports ``sepnorm.surgery.sites``."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        first, _, rest = name.removeprefix("sepnorm.").partition(".")
        if not name.startswith("sepnorm.") or first not in _MOVED:
            return None
        new = f"sepnorm.{_MOVED[first]}" + (f".{rest}" if rest else "")
        return ModuleSpec(name, self, origin=new)

    def create_module(self, spec: ModuleSpec) -> Any:
        self._spec = import_module(str(spec.origin)).__spec__
        return import_module(str(spec.origin))

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._spec  # both paths lead to one module object, which keeps its new name


sys.meta_path.append(_Moved())
await_libraries()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sepnorm' has no attribute {name!r}")
    value = import_module(f"sepnorm.{name}") if home == "sepnorm" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
