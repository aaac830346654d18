"""Converted models by transformers' own means: ``AutoModel.from_pretrained(folder)``, ``pipeline``, the Trainer.

transformers lets registered quantizers replace modules of a model before its weights are loaded. Ours puts separate norms where
the config says that they were (``sepnorm.surgery.config_trace``), and takes itself out when the weights are in: the model is an
ordinary one then, which can be trained, cast, compiled and saved. Importing this module registers it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sepnorm.errors import SepNormError
from sepnorm.surgery.config_trace import LOCK, METHOD, vet_trace, write_trace
from sepnorm.surgery.opening.sizes import names_of
from sepnorm.surgery.replacement import GUARD
from sepnorm.surgery.site_records import rebuild


@register_quantization_config(METHOD)
class SepNormConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """The record of a conversion, as transformers hands it to a quantizer."""

    def __init__(self, **trace: Any) -> None:
        _register_lock()
        self.quant_method = METHOD
        self.trace = vet_trace(trace, "the config of the model")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """As transformers calls it with what ``config.json`` says."""
        config = cls(**config_dict)
        return (config, kwargs) if return_unused_kwargs else config

    def to_dict(self) -> dict[str, Any]:
        """What ``config.json`` says."""
        return self.trace


@register_quantizer(METHOD)
class SepNormQuantizer(HfQuantizer):  # type: ignore[misc]
    """Separate norms in the place of a fresh model's own, before its weights are loaded."""

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Any = None, **kwargs: Any) -> None:
        sites = _sites_in(model, self.quantization_config.trace["sites"])
        rebuild(model, sites, {})
        _require_tensors(model, sites, checkpoint_files)
        kept = model._keep_in_fp32_modules_strict or ()
        model._keep_in_fp32_modules_strict = {*kept, "running_mean", "running_var"}  # a sum of small steps needs it

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
    """The sites by their paths in ``model``, which may have a head that the converted one had not, or the other way round."""
    modules = dict(model.named_modules())
    prefix = f"{model.base_model_prefix}."
    if any(site["path"] in modules for site in sites):
        return sites
    if any(site["path"].startswith(prefix) for site in sites):  # with a head then, without it now
        inner = (site for site in sites if site["path"].startswith(prefix))
        return [site | {"path": site["path"].removeprefix(prefix)} for site in inner]
    if model.base_model is not model:
        return [site | {"path": prefix + site["path"]} for site in sites]
    return sites


def _require_tensors(model: Any, sites: list[dict[str, Any]], files: Any) -> None:
    """Refuses weights without those of separate norms, which transformers would draw afresh.

    Files may have other names for a norm and for what is around it, so the ends of names are counted.
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
                f"(…{end}): take the weights and the config from one place."
            )


def _register_lock() -> None:
    """Makes the fusion known that locks converted models: there is nothing to fuse."""
    try:
        from transformers.fusion_mapping import _FUSION_REGISTRY, ModuleFusionSpec
    except ImportError:  # versions that do not read what asks for it, or that keep it elsewhere
        return
    _FUSION_REGISTRY.setdefault(LOCK, ModuleFusionSpec())
