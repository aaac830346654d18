"""Writes the architecture of a model, without weights, in the format of its library, and builds the model again."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from sepnorm.errors import SepNormError, one_line
from sepnorm.layer import TokenNorm
from sepnorm.surgery.families import is_sentence_transformers, is_timm, is_transformers
from sepnorm.surgery.leading_tokens import give_leading_tokens
from sepnorm.surgery.opening.models import fresh_sentence_transformer, fresh_transformer, without_bars
from sepnorm.surgery.opening.own_models import own_class
from sepnorm.surgery.opening.timm_settings import fresh_timm


def library_of(model: nn.Module) -> str:
    """The library that can build the model from a file; ``torch`` if none can."""
    if is_sentence_transformers(model):
        return "sentence-transformers"
    its_own = type(model).__module__.startswith("transformers.")
    if is_transformers(model) and (its_own or own_class(type(model).__name__) is type(model)):
        return "transformers"
    if is_timm(model) and _timm_architecture(model):
        return "timm"
    return "torch"


def write_architecture(model: Any, folder: Path) -> dict[str, Any]:
    """Writes the library's own files without weights; returns what else is needed to build the model."""
    library = library_of(model)
    if library == "transformers":
        model.config.save_pretrained(folder)
        return {"attention": getattr(model.config, "_attn_implementation", None)}
    if library == "sentence-transformers":
        with tempfile.TemporaryDirectory(dir=folder) as scratch, without_bars():
            model.save_pretrained(scratch, create_model_card=False)
            for weights in [*Path(scratch).rglob("model*.safetensors"), *Path(scratch).rglob("*.bin")]:
                weights.unlink()
            shutil.copytree(scratch, folder, dirs_exist_ok=True)
        return {}
    if library == "timm":
        build = {"architecture": _timm_architecture(model), "num_classes": model.num_classes}
        build["outline"] = _outline(model, {path for path, m in model.named_modules() if isinstance(m, TokenNorm)})
        embed: Any = getattr(model, "patch_embed", None)
        if getattr(embed, "img_size", None) is not None:
            build |= {"img_size": list(embed.img_size), "in_chans": embed.proj.in_channels}
        return build
    return {}


def _outline(model: nn.Module, leave_out: set[str]) -> str:
    """A digest of what tensors do not show, such as heads, pooling and activations."""
    lines = []
    for path, module in model.named_modules():
        if any(path == left or path.startswith(f"{left}.") for left in leave_out):
            continue
        if type(module).__name__ in ("Identity", "Dropout", "DropPath"):  # no effect in evaluation
            continue
        options = {key: getattr(module, key, None) for key in ("num_heads", "global_pool", "eps")}
        lines.append(f"{path} {type(module).__name__} {options}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _timm_architecture(model: Any) -> str | None:
    config = getattr(model, "pretrained_cfg", None) or {}
    return config.get("architecture") or None


def build_architecture(folder: Path, description: dict[str, Any], weights: Path) -> nn.Module:
    """Builds the described model, unconverted, with fresh weights. The file ``weights`` limits how large it may be."""
    library, name, build = description["library"], str(description["class"]), description["build"]
    try:
        if library == "transformers":
            return _build_transformers(folder, name, build, weights)
        if library == "sentence-transformers":
            return fresh_sentence_transformer(folder, weights)
        if library == "timm":
            return _build_timm(folder, description)
    except SepNormError:
        raise
    except Exception as error:  # damaged settings can make a library raise anything
        raise SepNormError(f"{library} cannot build a {name} from {folder}: {one_line(error)}.") from error
    raise SepNormError(
        f"{folder} holds a {name}, which no library that sepnorm knows can build: build it yourself, without converting it, "
        "and pass it as load(folder, model)."
    )


def _build_transformers(folder: Path, name: str, build: dict[str, Any], weights: Path) -> nn.Module:
    model: Any = fresh_transformer(folder, name, build.get("attention"), weights)
    if name == "ViTMAEModel" and (registers := getattr(model.config, "num_register_tokens", 0)):
        give_leading_tokens(model, 1 + registers)
    found: nn.Module = model
    return found


def _build_timm(folder: Path, description: dict[str, Any]) -> nn.Module:
    import timm

    build = description["build"]
    options = {key: build[key] for key in ("num_classes", "img_size", "in_chans") if key in build}
    model: nn.Module = fresh_timm(timm, build["architecture"], options, folder)
    if _outline(model, {site["path"] for site in description["sites"]}) != build.get("outline"):
        raise SepNormError(
            f"{folder} holds a {description['class']} that was built with options that differ from timm's defaults for "
            f"{build['architecture']}: build it with these options, without converting it, and pass it as "
            "load(folder, model)."
        )
    return model
