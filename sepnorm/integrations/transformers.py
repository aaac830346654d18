"""Loads converted models by transformers itself: ``AutoModel.from_pretrained(folder)``, ``pipeline``, the Trainer.

transformers lets registered quantizers replace modules before weights are loaded. Ours puts separate norms where the
config records them (``sepnorm.surgery.config_trace``), and removes itself once the weights are loaded. The model is
then an ordinary one: you can train, cast, compile and save it. Importing this module registers the quantizer.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sepnorm.errors import SepNormError
from sepnorm.layer.kinds import WIDE_BUFFERS
from sepnorm.surgery.config_trace import LOCKS, METHOD, vet_trace, write_trace
from sepnorm.surgery.opening.sizes import names_of
from sepnorm.surgery.replacement import GUARD
from sepnorm.surgery.site_records import rebuild


@register_quantization_config(METHOD)
class SepNormConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """The record of a conversion, in the form that transformers passes to a quantizer."""

    def __init__(self, **trace: Any) -> None:
        _register_lock()
        self.quant_method = METHOD
        self.trace = vet_trace(trace, "the config of the model")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """Called by transformers with the entry of ``config.json``."""
        config = cls(**config_dict)
        return (config, kwargs) if return_unused_kwargs else config

    def to_dict(self) -> dict[str, Any]:
        """The entry of ``config.json``."""
        return self.trace


@register_quantizer(METHOD)
class SepNormQuantizer(HfQuantizer):  # type: ignore[misc]
    """Replaces the norms of a fresh model by separate norms, before its weights are loaded."""

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Any = None, **kwargs: Any) -> None:
        sites = _sites_in(model, self.quantization_config.trace["sites"])
        rebuild(model, sites, {})
        _require_tensors(model, sites, checkpoint_files)
        kept = model._keep_in_fp32_modules_strict or ()
        model._keep_in_fp32_modules_strict = {*kept, *WIDE_BUFFERS}

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        self.remove_quantization_config(model)
        for module in model.modules():
            config: Any = getattr(module, "config", None)
            if "_is_quantized" in getattr(config, "__dict__", {}):
                del config._is_quantized
        write_trace(model)
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True


def _sites_in(model: Any, sites: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sites with their paths in ``model``, which may have a head that the converted model lacks, or the reverse."""
    modules = dict(model.named_modules())
    prefix = f"{model.base_model_prefix}."
    if any(site["path"] in modules for site in sites):
        return sites
    if any(site["path"].startswith(prefix) for site in sites):  # converted with a head, loaded without it
        inner = (site for site in sites if site["path"].startswith(prefix))
        return [site | {"path": site["path"].removeprefix(prefix)} for site in inner]
    if model.base_model is not model:
        return [site | {"path": prefix + site["path"]} for site in sites]
    return sites


def _require_tensors(model: Any, sites: list[dict[str, Any]], files: Any) -> None:
    """Raises if the weights lack those of separate norms: transformers would initialise them at random.

    Files may name a norm and its parents differently, so only the ends of names are counted.
    """
    if not files or not all(str(file).endswith(".safetensors") for file in files):
        return
    names = names_of(map(Path, files))
    wanted = [
        (site["path"], f".{name}")
        for site in sites
        for name in model.get_submodule(site["path"]).state_dict()
        if name != GUARD
    ]
    for end, count in Counter(end for _, end in wanted).items():
        if sum(f".{name}".endswith(end) for name in names) < count:
            path = next(path for path, its_end in wanted if its_end == end)
            raise SepNormError(
                f"the config says that {path} of this {type(model).__name__} has separate norms, and the weights have none for it "
                f"(…{end}): use the weights and config of the same model."
            )


def _register_lock() -> None:
    """Registers the fusion that locks converted models. It fuses nothing."""
    try:
        from transformers.fusion_mapping import _FUSION_REGISTRY, ModuleFusionSpec
    except ImportError:  # versions without fusions, or with another registry
        return
    for lock in LOCKS:
        _FUSION_REGISTRY.setdefault(lock, ModuleFusionSpec())
