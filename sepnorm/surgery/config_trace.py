"""Records a conversion in the config that transformers saves beside the weights.

``save_pretrained``, the Trainer, ``push_to_hub`` and sentence-transformers write the config of a model. We add two
entries. ``quantization_config`` is where transformers keeps what must be done to a model before its weights are loaded.
Ours holds one record per site (see ``site_records``), and ``sepnorm.integrations.transformers`` acts on it. Without
sepnorm, transformers would skip the unknown quantisation and continue with fresh norms. So ``fusion_config`` requests a
fusion that only sepnorm registers: transformers then stops, and its error shows the name, which is a sentence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sepnorm.errors import SepNormError
from sepnorm.layer import TokenNorm
from sepnorm.surgery.families import is_transformers
from sepnorm.surgery.site_records import describe_site, vet_sites

METHOD = "sepnorm"
FORMAT = 1
#: Part of the format. transformers shows it if sepnorm is not imported.
LOCK = (
    "sepnorm. This model has separate norms for [CLS] and tokens: install the package sepnorm, and `import sepnorm` before the "
    "model is loaded."
)
#: With what folders that were saved earlier have; they still open.
LOCKS = (LOCK, LOCK.replace("install the package sepnorm", "pip install sepnorm"))


def write_trace(model: nn.Module) -> None:
    """Updates the configs in ``model`` to its present separate norms; removes our entries if there are none."""
    for owner in _owners(model):
        sites = [
            {key: value for key, value in describe_site(path, layer).items() if key != "trained"}
            for path, layer in owner.named_modules()
            if isinstance(layer, TokenNorm) and layer.origin is not None
        ]
        if not sites and not is_ours(getattr(owner.config, "quantization_config", None)):
            continue
        config = _own_config(model, owner)
        _clear(config)
        if sites and getattr(config, "quantization_config", None) is None:
            config.quantization_config = {"quant_method": METHOD, "format": FORMAT, "sites": sites}
            config.fusion_config = {**(getattr(config, "fusion_config", None) or {}), LOCK: False}


def without_trace(config: Any) -> Any:
    """A copy of a config without our entries, for an unconverted model."""
    plain = copy.copy(config)
    _clear(plain)
    return plain


def is_ours(found: Any) -> bool:
    """Whether a ``quantization_config`` is ours."""
    return isinstance(found, Mapping) and found.get("quant_method") == METHOD


def vet_trace(found: Mapping[str, Any], where: Path | str) -> dict[str, Any]:
    """Our record from a file, restricted to what ``write_trace`` can write."""
    if found.get("format") != FORMAT or isinstance(found.get("format"), bool):
        raise SepNormError(
            f"{where} has norms of sepnorm in the format {found.get('format')!r}, and this version reads {FORMAT}: upgrade sepnorm."
        )
    sites = vet_sites(found.get("sites"), where)
    if not sites or any(site["original"] is None for site in sites):
        raise SepNormError(f"{where} is damaged: it records norms of sepnorm without the norms they replaced.")
    return {"quant_method": METHOD, "format": FORMAT, "sites": [site | {"trained": True} for site in sites]}


def _owners(model: nn.Module) -> Iterator[Any]:
    """The outermost transformers models in ``model``: each is saved with a config."""
    inner: set[int] = set()
    for module in model.modules():
        if is_transformers(module) and id(module) not in inner and hasattr(module, "config"):
            inner |= {id(part) for part in module.modules()}
            yield module


def _own_config(model: nn.Module, owner: Any) -> Any:
    """A config for this model alone. Several models are often built from one config, and only this one is converted."""
    old = owner.config
    config = copy.copy(old)
    for module in model.modules():
        holder: Any = module
        if getattr(holder, "config", None) is old:
            holder.config = config
    return config


def _clear(config: Any) -> None:
    if is_ours(getattr(config, "quantization_config", None)):
        del config.quantization_config
    fusions = getattr(config, "fusion_config", None)
    if isinstance(fusions, dict) and any(lock in fusions for lock in LOCKS):
        rest = {name: options for name, options in fusions.items() if name not in LOCKS}
        if rest:
            config.fusion_config = rest
        else:
            del config.fusion_config
